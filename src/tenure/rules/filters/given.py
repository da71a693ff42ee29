"""Keyword arguments to a filter: `queue="mail", state=["failed"], args={"user": 17}`.

A value is exact: there are no wildcards, so a value of a user's request is safe here. A list means
one of its values.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any, TypedDict

from tenure.errors import InvalidFilter, InvalidInput
from tenure.rules.filters.fields import FIELDS, Field, Kind
from tenure.rules.filters.parse import LARGEST, MAX_PATH, MAX_VALUES
from tenure.rules.filters.terms import Choice, Exact, Filter, Has, Span, Term, Text
from tenure.rules.job import State
from tenure.rules.limits import (
    MAX_NAME_LENGTH,
    check_int,
    check_name,
    check_time,
    not_this,
)

Texts = str | Collection[str]
Numbers = int | Collection[int]
Document = Mapping[str, Any]


class Fields(TypedDict, total=False):
    """The fields of a filter as keyword arguments. None: the field does not count."""

    id: Numbers | None
    state: Texts | None
    queue: Texts | None
    task: Texts | None
    tenant: Texts | None
    key: Texts | None
    worker: Texts | None
    priority: Numbers | None
    attempts: Numbers | None
    error: Texts | None
    text: str | None
    """A part of the message of the error."""
    reason: str | None
    """A part of the reason."""
    workflow: int | str | None
    schedule: Texts | None
    gate: Texts | None
    created_from: datetime | None
    created_until: datetime | None
    due_from: datetime | None
    due_until: datetime | None
    start_by_from: datetime | None
    start_by_until: datetime | None
    finish_by_from: datetime | None
    finish_by_until: datetime | None
    started_from: datetime | None
    started_until: datetime | None
    finished_from: datetime | None
    finished_until: datetime | None
    """From a time on; up to, but not including, a time."""
    args: Document | None
    metadata: Document | None
    notes: Document | None
    """Values by name; a dict within it goes deeper."""


def filter_of(fields: Mapping[str, Any]) -> Filter:
    """The filter that these keyword arguments mean."""
    terms: list[Term] = []
    for name, value in fields.items():
        if value is not None:
            terms += _terms(name, value)
        elif name not in Fields.__annotations__:
            raise _unknown(name)
    return Filter(tuple(terms))


def _terms(name: str, value: Any) -> list[Term]:
    stem, _, end = name.rpartition("_")
    field = FIELDS.get(name)
    if field is None and end in ("from", "until") and stem in FIELDS:
        check_time(name, value)
        span = Span(value, None) if end == "from" else Span(None, value, high_in=False)
        return [Term(stem, (span,))]
    if field is None or name not in Fields.__annotations__:
        raise _unknown(name)
    if field.kind is Kind.JSON:
        if not isinstance(value, Mapping):
            raise InvalidInput(f"{name} must be a dict of values by name, {not_this(value)}")
        return _document(name, value, ())
    many = isinstance(value, Collection) and not isinstance(value, str | bytes)
    values = list(value) if many else [value]
    if not values:
        raise InvalidInput(f"{name} is empty; leave it out for all jobs")
    if len(values) > MAX_VALUES:
        raise InvalidInput(f"{name} has {len(values)} values; the maximum is {MAX_VALUES}")
    return [Term(name, tuple(_choice(field, each) for each in values))]


def _unknown(name: str) -> InvalidFilter:
    known = list(Fields.__annotations__)
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return InvalidFilter(
        f"there is no field {name[:60]!r}; {hint}Fields: {', '.join(known)}", position=0
    )


def _choice(field: Field, value: Any) -> Choice:
    name = field.name
    if field.kind is Kind.NUMBER or (field.kind is Kind.WORKFLOW and isinstance(value, int)):
        check_int(name, value, -LARGEST, LARGEST)
        return Span(value, value)
    if field.kind is Kind.NAME:
        check_name(name, value)
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a string, {not_this(value)}")
    if field.kind is Kind.STATE and value not in set(State):
        raise InvalidInput(f"unknown state {value!r:.60}; known states: {', '.join(State)}")
    _check_text(name, value)
    if name in ("text", "reason"):
        if not value:
            raise InvalidInput(f"{name} is empty; leave it out for all jobs")
        return Has(value)
    return Text((str(value),))


def _check_text(name: str, value: str) -> None:
    try:
        good = "\0" not in value and value.encode() is not None
    except UnicodeEncodeError:
        good = False
    if not good:
        raise InvalidInput(f"{name} has a character that no job can have; remove it")


def _document(name: str, value: Mapping[Any, Any], path: tuple[str, ...]) -> list[Term]:
    terms: list[Term] = []
    for key, each in value.items():
        if (
            not isinstance(key, str)
            or not key
            or len(key) > MAX_NAME_LENGTH
            or {'"', "\\"} & {*key}
        ):
            raise InvalidInput(f"a key of {name} must be text without quotes, {not_this(key)}")
        _check_text(name, key)
        here = (*path, key)
        if len(here) > MAX_PATH:
            raise InvalidInput(f"{name} is deeper than {MAX_PATH} levels")
        if isinstance(each, Mapping):
            terms += _document(name, each, here)
            continue
        values = each if isinstance(each, list | tuple | set | frozenset) else [each]
        if not values:
            raise InvalidInput(f"{name} has an empty list; give one of the wanted values")
        choices = tuple(_exact(name, one) for one in values)
        terms.append(Term(name, choices, path=here))
    return terms


def _exact(name: str, value: Any) -> Choice:
    if isinstance(value, str):
        _check_text(name, value)
        return Text((str(value),))
    if value is None or isinstance(value, bool):
        return Exact(value)
    if isinstance(value, int):
        check_int(f"a number in {name}", value, -LARGEST, LARGEST)
        return Exact(value)
    if isinstance(value, float) and abs(value) < 1e100:
        return Exact(value)
    raise InvalidInput(
        f"{name} is compared with text, numbers, booleans and None, {not_this(value)}"
    )
