"""The terms of a filter as SQL. One subclass per database says how it reads text, JSON and times.

Only names of columns that stand in this file reach the SQL. Every value is a parameter. Each term
is wrapped in `coalesce`, so that it is true or false and never null, and so that no index serves
it: the walk that found the rows has chosen the index.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal

from tenure.rules.filters.fields import FIELDS, Kind
from tenure.rules.filters.terms import Choice, Exact, Has, Span, Term, Text

Side = Literal["live", "finished"]

_COLUMNS = {
    "id": "t.id", "queue": "t.queue", "task": "t.task", "tenant": "t.tenant",
    "key": "t.unique_key", "priority": "t.priority", "attempts": "t.attempts",
    "reason": "t.reason", "gate": "t.gate", "created": "t.created_at",
    "finished": "t.finished_at", "worker": "t.worker", "started": "t.claimed_at",
    "due": "t.due_at", "start_by": "t.start_by", "finish_by": "t.finish_by",
}  # fmt: skip
_DOCUMENTS = {
    "args": "t.args",
    "metadata": "t.metadata",
    "notes": "(select n.notes from tenure.note n where n.job_id = t.id)",
}
_WITHIN = {
    "error": ("t.error", ("type",)),
    "text": ("t.error", ("message",)),
    "schedule": ("t.metadata", ("schedule", "name")),
}
"""Text fields that stand in a document."""
_HELD = {"worker": "d.worker", "started": "d.claimed_at"}
"""What the lease of a running job tells."""
_HOLDING = "(t.id, t.token) in (select d.job_id, d.token from tenure.holding d"


class Conditions(ABC):
    """The SQL of some terms, on live or on finished jobs, and its parameters."""

    def __init__(self, terms: Sequence[Term], side: Side) -> None:
        self._side = side
        self.params: dict[str, object] = {}
        self.sql = " and ".join([self._term(term) for term in terms]) or "true"

    def _term(self, term: Term) -> str:
        if term.field == "due" and self._side == "finished":
            sql = "false"
        elif term.field in _HELD and self._side == "live":
            sql = self._of_lease(term)
        elif term.field == "workflow":
            sql = self._of_workflow(term)
        else:
            sql = self._any(term, self._operand(term))
        return f"{'not ' if term.negated else ''}coalesce(({sql}), false)"

    def _operand(self, term: Term) -> str:
        if term.field in _DOCUMENTS:
            return self._value(_DOCUMENTS[term.field], term.path)
        if term.field in _WITHIN:
            return self._text_of(self._value(*_WITHIN[term.field]))
        return _COLUMNS[term.field]

    def _any(self, term: Term, operand: str) -> str:
        """One of the choices is true of the operand."""
        kind = FIELDS[term.field].kind
        choices: list[Choice] = list(term.choices)
        if term.field == "error":  # with or without its module
            choices += [_with_module(each) for each in term.choices if isinstance(each, Text)]
        if kind is Kind.JSON:
            return " or ".join([self._document(each, operand) for each in choices])
        return " or ".join([self._choice(each, operand) for each in choices])

    def _choice(self, choice: Choice, operand: str) -> str:
        match choice:
            case Text():
                return self._is_text(choice, f"coalesce({operand}, '')")
            case Has(text):
                return self._has(f"coalesce({operand}, '')", self._bind(text))
            case Span():
                return self._within(choice, operand)
        raise AssertionError(choice)

    def _is_text(self, choice: Text, operand: str) -> str:
        if choice.exact is not None:
            return f"{operand} = {self._bind(choice.exact)}"
        return self._like(operand, choice.parts)

    def _within(self, span: Span, operand: str) -> str:
        return self._ends(span, operand, self._bound)

    def _ends(self, span: Span, operand: str, bind: Callable[[object], str]) -> str:
        ends = []
        if span.low is not None:
            ends.append(f"{operand} {'>=' if span.low_in else '>'} {bind(span.low)}")
        if span.high is not None:
            ends.append(f"{operand} {'<=' if span.high_in else '<'} {bind(span.high)}")
        return f"({' and '.join(ends) or 'true'})"

    def _bound(self, value: object) -> str:
        return self._time(value) if isinstance(value, datetime) else self._integer(value)

    def _of_lease(self, term: Term) -> str:
        """The worker and the start of a live job stand in its lease, if it has one."""
        sql = f"{_HOLDING} where {self._any(term, _HELD[term.field])})"
        if term.field == "worker" and term.takes_absence is not term.negated:
            sql += f" or not {_HOLDING})"
        return sql

    def _of_workflow(self, term: Term) -> str:
        node = "select 1 from tenure.node n"
        parts = []
        for choice in term.choices:
            if isinstance(choice, Span):
                of_id = self._within(choice, "n.workflow_id")
                parts.append(f"exists ({node} where n.job_id = t.id and {of_id})")
            elif isinstance(choice, Text) and not any(choice.parts):
                parts.append(f"not exists ({node} where n.job_id = t.id)")
            if not isinstance(choice, Span) and choice != Text(("",)):
                named = self._choice(choice, "w.name")
                parts.append(
                    f"exists ({node} join tenure.workflow w on w.id = n.workflow_id"
                    f" where n.job_id = t.id and {named})"
                )
        return " or ".join(parts)

    def _document(self, choice: Choice, value: str) -> str:
        """The same for a value of a document, whatever its type is."""
        match choice:
            case Text() | Has():
                text = self._text_of(value)
                if isinstance(choice, Has):
                    return self._has(text, self._bind(choice.text))
                return self._is_text(choice, text)
            case Exact(None):
                return f"coalesce({self._is_null(value)}, true)"
            case Exact(bool() as flag, text):
                return self._or_text(self._is_flag(value, flag), value, text)
            case Exact(number, text):
                same = self._ends(Span(number, number), self._number_of(value), self._number)
                return self._or_text(same, value, text)
            case Span(low, high) if isinstance(high if low is None else low, str):
                return self._ends(choice, self._sortable(self._text_of(value)), self._bind)
            case Span():
                return self._ends(choice, self._number_of(value), self._number)
        raise AssertionError(choice)

    def _or_text(self, sql: str, value: str, text: str | None) -> str:
        if text is None:
            return sql
        return f"(coalesce({sql}, false) or {self._text_of(value)} = {self._bind(text)})"

    def _name(self, value: object) -> str:
        name = f"f_{len(self.params)}"
        self.params[name] = value
        return name

    # What differs between the databases.

    @abstractmethod
    def _bind(self, value: object) -> str:
        """A parameter that is text."""

    @abstractmethod
    def _integer(self, value: object) -> str:
        """A parameter that is a whole number."""

    @abstractmethod
    def _number(self, value: object) -> str:
        """A parameter that is any number."""

    @abstractmethod
    def _time(self, at: datetime) -> str:
        """A parameter that is a time."""

    @abstractmethod
    def _like(self, operand: str, parts: Sequence[str]) -> str:
        """The operand is these parts with anything between them."""

    @abstractmethod
    def _has(self, operand: str, part: str) -> str:
        """The operand has this part; ASCII letters in any case."""

    @abstractmethod
    def _sortable(self, operand: str) -> str:
        """Text to be compared by its bytes."""

    @abstractmethod
    def _value(self, column: str, path: Sequence[str]) -> str:
        """The JSON value at this path; null if there is none, or if the text is no JSON."""

    @abstractmethod
    def _text_of(self, value: str) -> str:
        """The text of a JSON string; null for every other value."""

    @abstractmethod
    def _number_of(self, value: str) -> str:
        """The number of a JSON number; null for every other value."""

    @abstractmethod
    def _is_flag(self, value: str, flag: bool) -> str:
        """The JSON value is this boolean."""

    @abstractmethod
    def _is_null(self, value: str) -> str:
        """The JSON value is null."""


def _with_module(choice: Text) -> Text:
    first, *rest = choice.parts
    return Text(("", f".{first}", *rest)) if any(choice.parts) else choice
