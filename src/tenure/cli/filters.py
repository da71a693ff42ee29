"""The jobs that a command is about: the filter language, as words of a command line.

`tenure.rules.filters` is the language. A command also knows `all`, and takes several words or one.
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from tenure.errors import InvalidInput
from tenure.rules import filters
from tenure.rules.filters import Filter, Order, Term, Text
from tenure.rules.job import Job, State

if TYPE_CHECKING:
    from tenure.client import Client

PAGE = 1000
SEE_FILTERS = "FILTER: ids, `all`, or a filter; `tenure ls --help` explains the language."


class HelpOfFilters(click.Command):
    """A command whose `--help` ends with the description of the filter language."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lines of the description stay as they are."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write("FILTER\n\n")
        formatter.write(
            "".join(f"  {line}".rstrip() + "\n" for line in filters.describe().splitlines())
        )


class Chosen:
    """The jobs that a filter chooses, page by page."""

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.looked_at = 0
        self.next: str | None = None
        """Where a search that ran out of time goes on."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids, if it names jobs by their ids alone."""
        return self.filter.ids or ()

    def find(
        self,
        client: "Client",
        within: frozenset[State] | None = None,
        *,
        limit: int | None = None,
        seconds: float | None = None,
        after: str | None = None,
        order: Order | None = None,
    ) -> Iterator[Job]:
        """The jobs, in order. Only jobs named by id may be in a state outside `within`.

        A search that takes longer than `seconds` ends, and `next` says where it goes on.
        """
        if self.ids:
            yield from (client.get(id) for id in self.ids)
            return
        wanted = self.filter
        if within is not None:
            named = tuple(Text((str(state),)) for state in sorted(within))
            wanted = wanted.joined(Filter((Term("state", named),)))
        began, found = time.monotonic(), 0
        while True:
            most = PAGE if limit is None else min(PAGE, limit - found)
            page = client.list_jobs(wanted, limit=most, after=after, order=order)
            self.looked_at += page.looked_at
            found += len(page.jobs)
            yield from page.jobs
            after = page.next
            if after is None or found == limit:
                return
            if seconds is not None and time.monotonic() - began >= seconds:
                self.next = after
                return


def parse(words: Sequence[str], *, need: bool = False) -> Chosen:
    """Read a filter. With `need`, an empty filter is refused: the user must write `all`."""
    if not words and need:
        raise InvalidInput("which jobs? Give ids, or a filter such as state=failed, or `all`")
    return Chosen(filters.parse(" ".join(words)))
