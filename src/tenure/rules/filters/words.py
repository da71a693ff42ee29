"""The one description of the filter language: for `--help`, the reference and error messages."""

from textwrap import fill

from tenure.rules.filters.fields import FIELDS
from tenure.rules.filters.terms import Order

WIDTH = 76
EXAMPLE = "state=failed,cancelled queue!=mail task=app.* attempts>=3 created>2h"

GRAMMAR = """\
A filter is a list of words with spaces between them. A job matches if every
word is true of it.

field=a,b      one of these values; * stands for any text: task=app.*
field!=a,b     none of these values
field~part     the text has this part, in any case; field!~part: it has not
field<value    also <= > >=; for numbers, times and values of documents
field=a..b     from a to b, both included; one end may be left out
123 124        the jobs with these ids
all            every job
order=WORD     the order: {orders}
zone=NAME      the time zone of dates, such as Europe/Berlin; else UTC

Put a value with spaces, commas or stars in double quotes, and write \\" for
a quote inside. A quoted value has no wildcards, and "" is the text of what is
absent. A negation is true of every job of which the word without it is not
true. In a shell, put the whole filter in single quotes.

Times: 2h is two hours ago and +2h is in two hours (s, m, h, d, w; 1h30m); now,
today, yesterday; 2026-01-31 is the whole day; 2026-01-31T08:00+01:00 is a
moment. So created>2h means the last two hours.

Paths: args.user.id, metadata.tags.0, args."a key". In a document, 17 is the
number or the text "17", and "17" is only the text. true, false and null are
values; null is also the value of what is absent.
"""


def orders() -> str:
    """The orders, as a list in words."""
    return ", ".join(Order)


def describe() -> str:
    """The whole language as plain text."""
    width = max(map(len, FIELDS)) + 2
    fields = "\n".join(
        fill(
            field.meaning, WIDTH, initial_indent=f"{field.name:{width}}",
            subsequent_indent=" " * width,
        )
        for field in FIELDS.values()
    )  # fmt: skip
    return f"{GRAMMAR.format(orders=orders())}\nFields:\n\n{fields}\n\nExample: {EXAMPLE}\n"
