"""Text to a filter. `words.py` describes the language.

Every refusal is an `InvalidFilter` that tells the position in the text, what is wrong and the fix.
"""

import re
from difflib import get_close_matches
from typing import NamedTuple
from zoneinfo import ZoneInfo

from tenure.errors import InvalidFilter, InvalidInput
from tenure.rules.filters import times
from tenure.rules.filters.fields import FIELDS, OPERATORS, Field, Kind
from tenure.rules.filters.terms import Choice, Exact, Filter, Has, Order, Span, Term, Text
from tenure.rules.filters.words import orders
from tenure.rules.job import State
from tenure.rules.limits import MAX_ID, MAX_NAME_LENGTH, check_name

MAX_TEXT = 50_000
MAX_TERMS = 50
MAX_VALUES = 1000
MAX_PATH = 10
LARGEST = 2**63 - 1

_HEAD = re.compile(r'((?:[^\s=<>!~"]|"[^"]*")*)(!=|!~|<=|>=|=|<|>|~)?')
_SEGMENT = re.compile(r'"([^"\\]*)"|([^."\\]+)')
_NUMBER = re.compile(r"[+-]?\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_BAD = re.compile("[\0\ud800-\udfff]")
_LITERALS = {"true": True, "false": False, "null": None}
_SETTINGS = ("order", "zone")


class Value(NamedTuple):
    """A value of a word, where it stands, and whether it was in quotes."""

    text: str
    at: int
    quoted: bool

    @property
    def parts(self) -> tuple[str, ...]:
        """The text between wildcards."""
        return (self.text,) if self.quoted else tuple(self.text.split("*"))


class Word(NamedTuple):
    """One word: `name op values`. Without an operator the values are empty."""

    name: str
    op: str
    values: list[Value]
    at: int


def parse(text: str) -> Filter:
    """Read a filter. The empty text matches every job. Raises `InvalidFilter`."""
    if not isinstance(text, str):
        raise InvalidInput(f"a filter must be a string, not {type(text).__name__}")
    if len(text) > MAX_TEXT:
        raise InvalidFilter(f"the filter is longer than {MAX_TEXT} characters", position=MAX_TEXT)
    if bad := _BAD.search(text):
        raise _wrong(bad.start(), "this character cannot be in a filter; remove it")
    words = _scan(text)
    if len(words) == 1 and words[0].name == "all" and not words[0].op:
        return Filter()
    zone = _zone(words)
    order: Order | None = None
    terms: list[Term] = []
    ids: list[Span] = []
    for word in words:
        if not word.op and word.name.isascii() and word.name.isdigit():
            ids.append(_same(_whole(word.name, word.at, MAX_ID)))
        elif word.name == "order" and word.op == "=":
            order = _order(word)
        elif word.name != "zone" or word.op != "=":
            terms.append(_term(word, zone))
            _refuse_second(terms, word)
    if ids:
        terms.insert(0, Term("id", tuple(ids)))
    if len(terms) > MAX_TERMS:
        raise InvalidFilter(f"the filter has more than {MAX_TERMS} words", position=0)
    return Filter(tuple(terms), order)


def _wrong(at: int, message: str) -> InvalidFilter:
    return InvalidFilter(f"at character {at + 1}: {message}", position=at)


# --- words ----------------------------------------------------------------------------------------


def _scan(text: str) -> list[Word]:
    words: list[Word] = []
    at, end = 0, len(text)
    while at < end:
        if text[at].isspace():
            at += 1
            continue
        head = _HEAD.match(text, at)
        assert head is not None  # it matches the empty text
        name, op = head[1], head[2] or ""
        after = head.end()
        if not op and after < end and not text[after].isspace():
            raise _wrong(after, f"{text[after]!r} cannot stand here; write field=value")
        values: list[Value] = []
        if op:
            values, after = _values(text, after)
        words.append(Word(name, op, values, at))
        at = after
    return words


def _values(text: str, at: int) -> tuple[list[Value], int]:
    """The values after an operator, separated by commas, and where they end."""
    values: list[Value] = []
    while True:
        if at < len(text) and text[at] == '"':
            value, at = _quoted(text, at)
        else:
            start = at
            while at < len(text) and text[at] not in ',"' and not text[at].isspace():
                at += 1
            value = Value(text[start:at], start, quoted=False)
            if not value.text:
                raise _wrong(start, 'a value is missing; write "" for the empty text')
        values.append(value)
        if at < len(text) and text[at] == ",":
            at += 1
            continue
        if at < len(text) and not text[at].isspace():
            raise _wrong(at, "a quote must begin and end a value; put a space or a comma here")
        if len(values) > MAX_VALUES:
            raise _wrong(values[0].at, f"more than {MAX_VALUES} values")
        return values, at


def _quoted(text: str, start: int) -> tuple[Value, int]:
    found: list[str] = []
    at = start + 1
    while at < len(text):
        if text[at] == '"':
            return Value("".join(found), start, quoted=True), at + 1
        if text[at] == "\\" and at + 1 < len(text) and text[at + 1] in '"\\':
            at += 1
        found.append(text[at])
        at += 1
    raise _wrong(start, 'the closing " is missing')


# --- terms ----------------------------------------------------------------------------------------


def _term(word: Word, zone: str) -> Term:
    if not word.op:
        raise _wrong(
            word.at, f"{word.name!r:.60} is not a filter; write ids, `all`, or field=value, with "
            f"double quotes around a value with spaces. {_known()}",
        )  # fmt: skip
    field, path = _field(word)
    if word.op not in OPERATORS[field.kind]:
        allowed = " ".join(sorted(OPERATORS[field.kind]))
        raise _wrong(word.at, f"{field.name} cannot be compared by {word.op}; use {allowed}")
    if word.op not in ("=", "!=") and len(word.values) > 1:
        raise _wrong(word.values[1].at, f"{word.op} takes one value")
    choices = tuple(_choice(field, word.op.lstrip("!"), value, zone) for value in word.values)
    return Term(field.name, choices, word.op.startswith("!"), path)


def _field(word: Word) -> tuple[Field, tuple[str, ...]]:
    name, dot, rest = word.name.partition(".")
    field = FIELDS.get(name)
    if field is None:
        near = get_close_matches(name, [*FIELDS, *_SETTINGS], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise _wrong(word.at, f"there is no field {name!r:.60}; {hint}{_known()}")
    if field.kind is not Kind.JSON:
        if dot:
            raise _wrong(word.at, f"{name} has no parts; write {name}{word.op}...")
        return field, ()
    return field, _path(name, rest, word.at)


def _path(name: str, rest: str, at: int) -> tuple[str, ...]:
    segments: list[str] = []
    position = 0
    while True:
        found = _SEGMENT.match(rest, position)
        if found is None or not (found[1] or found[2]):
            raise _wrong(at, f'{name} needs a path, such as {name}.user or {name}."a key"')
        segments.append(found[1] or found[2])
        position = found.end()
        if position == len(rest):
            break
        if rest[position] != ".":
            raise _wrong(at, f'{name} needs a path, such as {name}.user or {name}."a key"')
        position += 1
    if len(segments) > MAX_PATH or any(len(each) > MAX_NAME_LENGTH for each in segments):
        raise _wrong(at, f"the path is too long: {MAX_PATH} parts of {MAX_NAME_LENGTH} characters")
    return tuple(segments)


def _choice(field: Field, op: str, value: Value, zone: str) -> Choice:
    """What a value of this field is compared with."""
    try:
        match field.kind:
            case Kind.STATE:
                return Text((_state(value),))
            case Kind.NUMBER:
                return _numbers(op, value)
            case Kind.TIME:
                return _times(op, value, zone)
            case Kind.JSON:
                return _in_document(op, value)
            case Kind.WORKFLOW if op == "=" and not value.quoted and _WHOLE.fullmatch(value.text):
                return _same(_whole(value.text, value.at, MAX_ID))
        if op == "~":
            return _has(value)
        if field.kind is Kind.NAME and value.text:
            check_name(field.name, "x".join(part for part in value.parts) or "x")
        return Text(value.parts)
    except InvalidFilter:
        raise
    except InvalidInput as error:
        raise _wrong(value.at, str(error)) from error


def _state(value: Value) -> str:
    if value.text not in set(State):
        near = get_close_matches(value.text, list(State), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidInput(f"unknown state {value.text!r:.60}; {hint}known: {', '.join(State)}")
    return value.text


def _has(value: Value) -> Has:
    if not value.text:
        raise InvalidInput("~ needs a text; every text has an empty part")
    return Has(value.text)


def _same(number: int) -> Span:
    return Span(number, number)


def _whole(text: str, at: int, most: int = LARGEST) -> int:
    if not _WHOLE.fullmatch(text) or abs(int(text)) > most:
        raise _wrong(at, f"{text[:30]!r} is not a whole number up to {most}")
    return int(text)


def _numbers(op: str, value: Value) -> Span:
    first, dots, last = value.text.partition("..")
    if op == "=" and dots and (first or last):
        return Span(
            _whole(first, value.at) if first else None, _whole(last, value.at) if last else None
        )
    return _side(op, _whole(value.text, value.at))


def _side(op: str, bound: int | float | str) -> Span:
    match op:
        case "=":
            return Span(bound, bound)
        case ">":
            return Span(bound, None, low_in=False)
        case ">=":
            return Span(bound, None)
        case "<":
            return Span(None, bound, high_in=False)
    return Span(None, bound)


def _times(op: str, value: Value, zone: str) -> Span:
    first, dots, last = value.text.partition("..")
    if op == "=" and dots and (first or last):
        return times.between(first, last, zone)
    return times.compared(op, value.text, zone)


def _in_document(op: str, value: Value) -> Choice:
    text = value.text
    if op == "~":
        return _has(value)
    if value.quoted:
        return Text((text,)) if op == "=" else _side(op, text)
    number = _number(text)
    if op != "=":
        return _side(op, text if number is None else number)
    first, dots, last = text.partition("..")
    if dots and (first or last) and all(_NUMBER.fullmatch(end) for end in (first, last) if end):
        return Span(_number(first), _number(last))
    if text in _LITERALS:
        return Exact(_LITERALS[text], None if text == "null" else text)
    if number is not None:
        return Exact(number, text)
    return Text(value.parts)


def _number(text: str) -> int | float | None:
    if not _NUMBER.fullmatch(text):
        return None
    if _WHOLE.fullmatch(text) and abs(int(text)) <= LARGEST:
        return int(text)
    return float(text)


# --- the whole filter -----------------------------------------------------------------------------


def _order(word: Word) -> Order:
    [value, *more] = word.values
    if more or value.text not in set(Order):
        raise _wrong(value.at, f"unknown order {value.text[:60]!r}; known: {orders()}")
    return Order(value.text)


def _zone(words: list[Word]) -> str:
    zone = "UTC"
    for word in words:
        if word.name == "zone" and word.op == "=":
            zone = word.values[0].text
            try:
                if len(zone) > MAX_NAME_LENGTH:
                    raise ValueError(zone)
                ZoneInfo(zone)
            except (KeyError, OSError, ValueError) as error:
                raise _wrong(
                    word.values[0].at,
                    f"there is no time zone {zone[:60]!r} on this machine; use a name such as "
                    "Europe/Berlin",
                ) from error
    return zone


def _refuse_second(terms: list[Term], word: Word) -> None:
    """`state=a state=b` is a mistake: a job has one state."""
    last = terms[-1]
    if word.op == "=" and last.field in ("state", "queue", "task") and any(
        term.field == last.field and not term.negated
        and not any(isinstance(choice, Has) for choice in term.choices)
        for term in terms[:-1]
    ):  # fmt: skip
        raise _wrong(
            word.at, f"{last.field}= is given twice; write {last.field}=a,b to match either value"
        )


def _known() -> str:
    return f"Fields: {', '.join(FIELDS)}"
