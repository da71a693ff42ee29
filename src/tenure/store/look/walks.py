"""Which indexes a search walks along, and how far each walk has come.

A walk reads ids in the order of the list, a bounded number at a time. Jobs lie in several tables,
so a search has several walks; `find.py` merges them. A walk along a narrow index (one final state,
one key, one workflow, the jobs on leases) looks at few jobs. Every other search walks along all
live and all finished jobs: it is slow if matches are rare, but each of its steps is bounded.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tenure.errors import InvalidFilter
from tenure.rules.claim import ALL_NEEDS
from tenure.rules.filters import FIELDS, Filter, Kind, Order, Span, Term, Text
from tenure.rules.job import FINAL_STATES, LIVE_STATES, State
from tenure.rules.limits import FAR_FUTURE, LONG_AGO, MAX_ID
from tenure.store.conditions import Side
from tenure.store.look.records import AtGate, ByFinish, ById, InLane
from tenure.store.session import Searching, Tx, as_records, to_json

Position = tuple[Any, ...]
"""Where a job stands in the order of the list."""
BOTH: tuple[Side, ...] = ("live", "finished")
FIRST_WINDOW_SECONDS = 1.0


class Step(NamedTuple):
    """A job that a walk has come to, and where it stands."""

    id: int
    position: Position
    token: int | None = None
    """Of its ticket: a job that has another token has another place in the line, or none."""


class Walk:
    """One walk. Its next steps begin behind the position `ahead`; None: it has reached its end."""

    ranges = False
    """Do its ids follow each other in one table?"""

    def __init__(self, statement: str, sides: Sequence[Side], **given: object) -> None:
        self.statement = statement
        self.sides = sides
        self.given = given
        self.ahead: Position | None = None

    async def step(self, tx: Tx, scan: int) -> list[Step]:
        """The next ids and their positions; then `ahead` is behind the last of them."""
        raise NotImplementedError


class IdWalk(Walk):
    """A walk down the ids, or up."""

    def __init__(
        self, statement: str, sides: Sequence[Side], *, oldest: bool = False, **given: object
    ) -> None:
        super().__init__(statement, sides, **given)
        self.ranges = statement in ("walk_live", "walk_finished")
        self._search = Searching(oldest=oldest)
        self._until = 0

    def begin(self, after: Position | None, lowest: int, highest: int) -> None:
        """Start behind a position, within these ids."""
        first, self._until = (lowest - 1, highest) if self._search.oldest else (highest + 1, lowest)
        if after is not None:
            (past,) = after
            first = max(first, past) if self._search.oldest else min(first, past)
        self.ahead = (first,)

    async def step(self, tx: Tx, scan: int) -> list[Step]:
        assert self.ahead is not None
        (past,) = self.ahead
        rows = await tx.search(self.statement, self._search, past=past, scan=scan, **self.given)
        found = [row.id for row in as_records(ById, rows)]
        within = [id for id in found if self._is_within(id)]
        self.ahead = (found[-1],) if len(within) == scan else None
        return [Step(id, (id,)) for id in within]

    def _is_within(self, id: int) -> bool:
        return id <= self._until if self._search.oldest else id >= self._until


class FinishWalk(Walk):
    """A walk back along the ends of jobs.

    Where no index has this order it goes from window to window, each short enough to be sorted.
    """

    def __init__(self, statement: str, *, windows: bool) -> None:
        super().__init__(statement, ("finished",))
        self._windows = windows
        self._seconds = FIRST_WINDOW_SECONDS
        self._since = LONG_AGO

    def begin(
        self, after: Position | None, since: datetime, until: datetime, now: datetime
    ) -> None:
        """Start behind a position, within these times."""
        self._since = since
        first = (until, MAX_ID + 1)
        self.ahead = first if after is None else min(first, after)
        self._now = now

    async def step(self, tx: Tx, scan: int) -> list[Step]:
        assert self.ahead is not None
        at, past = self.ahead
        since = self._since
        if self._windows:
            start = min(at, self._now)
            back = timedelta(seconds=self._seconds)
            since = since if start - since < back else start - back
        rows = as_records(
            ByFinish,
            await tx.search(
                self.statement, Searching(), at=tx.time(at), past=past, since=tx.time(since),
                scan=scan,
            ),
        )  # fmt: skip
        found = [Step(row.id, (tx.when(row.at), row.id)) for row in rows]
        if len(found) == scan:
            self.ahead = found[-1].position
            self._seconds /= 2
        else:
            self.ahead = (since, 0) if since > self._since else None
            self._seconds *= 4
        return found


class TicketWalk(Walk):
    """A walk along the tickets of one line. Its positions begin with `prefix`."""

    def __init__(self, statement: str, prefix: Position, key: dict[str, object], **given: object):
        super().__init__(statement, ("live",), **given)
        self._prefix = prefix
        self._key = key

    def begin(self, after: Position | None) -> None:
        """Start behind a position, which may be one of another line."""
        first = (*self._prefix, *self._key.values())
        if after is None or after[: len(self._prefix)] < self._prefix:
            self.ahead = first
        elif after[: len(self._prefix)] == self._prefix:
            self.ahead = after

    async def step(self, tx: Tx, scan: int) -> list[Step]:
        assert self.ahead is not None
        key = dict(zip(self._key, self.ahead[len(self._prefix) :], strict=True))
        rows = await tx.search(self.statement, Searching(), scan=scan, **self.given, **key)
        tickets = as_records(AtGate, rows) if "gate" in key else as_records(InLane, rows)
        found: dict[int, Step] = {}
        for ticket in tickets:
            *place, id, token = ticket
            self.ahead = (*self._prefix, *place)
            known = found.get(id)
            if known is None or known.token is None or known.token < token:
                found.pop(id, None)
                found[id] = Step(id, self.ahead, token)
        if len(tickets) < scan:
            self.ahead = None
        return list(found.values())


# --- which walks a filter needs -------------------------------------------------------------------


class Plan:
    """How a filter is searched for: which states a job may have, which walks, in which order.

    `terms` are the conditions that are left to be looked at.
    """

    def __init__(self, wanted: Filter) -> None:
        self.order = wanted.order or _natural_order(wanted)
        self.states = _states(wanted)
        self.terms = tuple(term for term in wanted.terms if term.field != "state")
        self._filter = wanted
        for term in self.terms:
            self.states &= _states_with(term)
        if self.order is Order.FINISHED:
            self.states &= FINAL_STATES
        if self.order is Order.NEXT:
            self.states &= {State.QUEUED}

    @property
    def descends(self) -> bool:
        """Do positions get smaller along the list?"""
        return self.order in (Order.NEWEST, Order.FINISHED)

    def walks(self, after: Position | None, now: datetime, *, sorts_by_finish: bool) -> list[Walk]:
        """The walks, each at its start or behind a position."""
        if not self.states:
            return []
        if self.order is Order.NEXT:
            return self._ticket_walks(after)
        if self.order is Order.FINISHED:
            return [self._finish_walk(after, now, sorts_by_finish=sorts_by_finish)]
        low, high = _range(self._filter.of("id"))
        walks = self._id_walks()
        for walk in walks:
            walk.begin(after, max(int(low or 1), 1), min(int(high or MAX_ID), MAX_ID))
        return list(walks)

    def _id_walks(self) -> list[IdWalk]:
        oldest = self.order is Order.OLDEST
        live, finished = self.states & LIVE_STATES, self.states & FINAL_STATES
        sides: tuple[Side, ...] = tuple(
            side for side, states in zip(BOTH, (live, finished), strict=True) if states
        )
        if (ids := _exact_ids(self._filter)) is not None:
            return [IdWalk("walk_ids", sides, oldest=oldest, ids=to_json(ids))]
        if keys := _exact_texts(self._filter, "key"):
            return [
                IdWalk(f"walk_keyed_{side}", (side,), oldest=oldest, key=key)
                for side in sides for key in keys
            ]  # fmt: skip
        if walks := self._node_walks(sides, oldest=oldest):
            return walks
        found: list[IdWalk] = []
        if live:
            name = "walk_with_error" if any(map(_needs_error, self.terms)) else "walk_live"
            name = "walk_running" if live == {State.RUNNING} else name
            found.append(IdWalk(name, ("live",), oldest=oldest))
        if State.SUCCEEDED in finished:
            return [*found, IdWalk("walk_finished", ("finished",), oldest=oldest)]
        return found + [
            IdWalk("walk_unsuccessful", ("finished",), oldest=oldest, state=str(state))
            for state in sorted(finished)
        ]

    def _node_walks(self, sides: Sequence[Side], *, oldest: bool) -> list[IdWalk]:
        """Jobs of workflows are found by their nodes."""
        terms = [term for term in self._filter.of("workflow") if not term.takes_absence]
        for term in terms:
            spans = [choice for choice in term.choices if isinstance(choice, Span)]
            if not term.negated and len(spans) == len(term.choices):
                return [
                    IdWalk("walk_nodes", sides, oldest=oldest, workflow=span.low)
                    for span in dict.fromkeys(spans)
                ]
        return [IdWalk("walk_all_nodes", sides, oldest=oldest)] if terms else []

    def _finish_walk(
        self, after: Position | None, now: datetime, *, sorts_by_finish: bool
    ) -> FinishWalk:
        if State.SUCCEEDED in self.states:
            walk = FinishWalk("walk_by_finish", windows=not sorts_by_finish)
        else:
            walk = FinishWalk("walk_unsuccessful_by_finish", windows=False)
        low, high = _range(self._filter.of("finished"))
        walk.begin(after, low or LONG_AGO, high or FAR_FUTURE, now)
        return walk

    def _ticket_walks(self, after: Position | None) -> list[Walk]:
        queues = _exact_texts(self._filter, "queue")
        if not queues:
            raise InvalidFilter(
                "order=next needs the name of a queue: write queue=mail order=next", position=0
            )
        walks: list[TicketWalk] = []
        for queue in sorted(queues):
            line: dict[str, object] = {"priority": -1000, "position": -1}
            walks += [
                TicketWalk("walk_ready", (queue, 0), line, queue=queue, needs=needs)
                for needs in ALL_NEEDS
            ]
            gated = {"gate": "", "key": "", **line}
            walks.append(TicketWalk("walk_gated", (queue, 1), gated, queue=queue))
        for walk in walks:
            walk.begin(after)
        return list(walks)


def _natural_order(wanted: Filter) -> Order:
    """A search by finish time begins at the end of that time."""
    by_finish = any(not term.takes_absence for term in wanted.of("finished"))
    return Order.FINISHED if by_finish else Order.NEWEST


def _states(wanted: Filter) -> frozenset[State]:
    states = frozenset(State)
    for term in wanted.of("state"):
        named = {State(str(choice.exact)) for choice in term.choices if isinstance(choice, Text)}
        states = states - named if term.negated else states & named
    return states


def _states_with(term: Term) -> frozenset[State]:
    """The states that a job can have for which this term is true."""
    if term.takes_absence:
        return frozenset(State)
    match term.field:
        case "finished":
            return FINAL_STATES
        case "due":
            return LIVE_STATES
        case "worker" | "started":
            return FINAL_STATES | {State.RUNNING}
        case "error" | "text":
            return frozenset(State) - {State.SUCCEEDED}
    return frozenset(State)


def _needs_error(term: Term) -> bool:
    """Is it true only of jobs of which an attempt has failed?"""
    return term.field in ("error", "text") and not term.takes_absence


def _range(terms: Sequence[Term]) -> tuple[Any, Any]:
    """The bounds that all of these terms together have; None: there is none."""
    lows, highs = [], []
    for term in terms:
        spans = [choice for choice in term.choices if isinstance(choice, Span)]
        if term.negated:
            continue
        if all(span.low is not None for span in spans):
            lows.append(min(_comparable(span.low) for span in spans))
        if all(span.high is not None for span in spans):
            highs.append(max(_comparable(span.high) for span in spans))
    return max(lows, default=None), min(highs, default=None)


def _comparable(bound: object) -> Any:
    return bound


def _exact_ids(wanted: Filter) -> list[int] | None:
    for term in wanted.of("id"):
        spans = [choice for choice in term.choices if isinstance(choice, Span)]
        ids = {span.low for span in spans if span.low == span.high and span.low is not None}
        if not term.negated and all(span.low == span.high for span in spans):
            return sorted(id for id in ids if isinstance(id, int) and 1 <= id <= MAX_ID)
    return None


def _exact_texts(wanted: Filter, field: str) -> list[str]:
    """The texts that a job must have one of; none: it may have others."""
    assert FIELDS[field].kind in (Kind.TEXT, Kind.NAME)
    for term in wanted.of(field):
        texts = [choice.exact for choice in term.choices if isinstance(choice, Text)]
        named = [text for text in texts if text]
        if not term.negated and len(named) == len(term.choices):
            return list(dict.fromkeys(named))
    return []
