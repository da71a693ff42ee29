"""A filter as a tree. A job matches if every term is true of it.

A term is true if one of its choices is. A negated term is true exactly when the same term without
the negation is not, also for a job that has no such value. Absent text counts as the empty text,
and an absent value in a document as null.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

import msgspec

from tenure.rules.limits import FAR_FUTURE, LONG_AGO


class Order(StrEnum):
    """The order of a list of jobs."""

    NEWEST = "newest"
    """The last enqueued job first, by id."""
    OLDEST = "oldest"
    """The first enqueued job first, by id."""
    FINISHED = "finished"
    """Finished jobs only, the last finished first."""
    NEXT = "next"
    """The jobs that workers will claim next from a queue: by priority and position."""


class Moment(msgspec.Struct, frozen=True):
    """A time that depends on now: an offset, or the start of a day in a zone."""

    seconds: float = 0.0
    days: int | None = None
    """Days from today's start, in place of an offset from now."""
    zone: str = "UTC"

    def at(self, now: datetime) -> datetime:
        """The time that it means, within the times that a store can hold."""
        if self.days is None:
            return bounded(now, self.seconds)
        zone = ZoneInfo(self.zone)
        day = now.astimezone(zone).date() + timedelta(days=self.days)
        return datetime(day.year, day.month, day.day, tzinfo=zone)


def bounded(at: datetime, seconds: float) -> datetime:
    """This time plus an offset, between the years 1970 and 9000."""
    ahead, behind = (FAR_FUTURE - at).total_seconds(), (LONG_AGO - at).total_seconds()
    return at + timedelta(seconds=min(max(seconds, behind), ahead))


Bound = int | float | str | datetime | Moment


class Text(msgspec.Struct, frozen=True):
    """The whole text: these parts, with anything between them. One part: exactly this text."""

    parts: tuple[str, ...]

    @property
    def exact(self) -> str | None:
        """The text, if there is no wildcard in it."""
        return self.parts[0] if len(self.parts) == 1 else None


class Has(msgspec.Struct, frozen=True):
    """A part of the text. ASCII letters are compared without their case."""

    text: str


class Span(msgspec.Struct, frozen=True):
    """From `low` to `high`; None: without an end."""

    low: Bound | None = None
    high: Bound | None = None
    low_in: bool = True
    high_in: bool = True


class Exact(msgspec.Struct, frozen=True):
    """A value in a document, or a string with this text."""

    value: bool | int | float | None
    text: str | None = None


Choice = Text | Has | Span | Exact


class Term(msgspec.Struct, frozen=True):
    """One condition: a field, and for a document the path in it, is one of these choices."""

    field: str
    choices: tuple[Choice, ...]
    negated: bool = False
    path: tuple[str, ...] = ()

    @property
    def takes_absence(self) -> bool:
        """Is it true of a job that has no such value?"""
        return self.negated is not any(_takes_nothing(choice) for choice in self.choices)


def _takes_nothing(choice: Choice) -> bool:
    match choice:
        case Text(parts):
            return not any(parts)
        case Exact(value):
            return value is None
    return False


class Filter(msgspec.Struct, frozen=True):
    """Terms that must all be true, and the order in which the jobs come."""

    terms: tuple[Term, ...] = ()
    order: Order | None = None

    def of(self, field: str) -> list[Term]:
        """The terms about this field."""
        return [term for term in self.terms if term.field == field]

    @property
    def ids(self) -> tuple[int, ...] | None:
        """The ids, if it names jobs by their ids and has no other condition."""
        if len(self.terms) != 1 or self.terms[0].field != "id" or self.terms[0].negated:
            return None
        spans = [choice for choice in self.terms[0].choices if isinstance(choice, Span)]
        ids = [span.low for span in spans if span.low == span.high and isinstance(span.low, int)]
        return tuple(dict.fromkeys(ids)) if len(ids) == len(spans) else None

    def at(self, now: datetime) -> "Filter":
        """The same filter with times in place of moments."""
        return Filter(tuple(_at(term, now) for term in self.terms), self.order)

    def joined(self, other: "Filter") -> "Filter":
        """Both: every term of each."""
        return Filter(self.terms + other.terms, self.order or other.order)


def _at(term: Term, now: datetime) -> Term:
    def fixed(bound: Bound | None) -> Bound | None:
        return bound.at(now) if isinstance(bound, Moment) else bound

    choices = [
        msgspec.structs.replace(choice, low=fixed(choice.low), high=fixed(choice.high))
        if isinstance(choice, Span) else choice
        for choice in term.choices
    ]  # fmt: skip
    return msgspec.structs.replace(term, choices=tuple(choices))
