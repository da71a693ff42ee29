"""The floor rule, explored: all interleavings of three enqueuing transactions and one claimer.

The claimer runs the real `Floors`; only the database under it is a model. Between any two of its
reads anything may happen: a transaction takes its lock, draws a position, commits or rolls back, a
ticket is consumed. In every state, each committed ticket must lie in a range that a claim would
scan. Rules are then left out, one at a time, to show that the explorer sees what they prevent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest

from tenure.store.postgres.floors import Floors, Lane, _Candidate
from tenure.store.session import Reader

A, B = ("mail", 1, 0), ("mail", 1, 3)
LANES = (A, B)
NEVER_SECONDS = 1e12
LIMIT = 400_000

LOCK, COMMIT, ROLLBACK, UNLOCK = "lock", "commit", "rollback", "unlock"
Action = str | Lane
"""A lane stands for drawing a position in it."""
Program = tuple[Action, ...]
Kind = Callable[..., Floors]
Ticket = tuple[Lane, int]


def enqueues(*lanes: Lane) -> Program:
    """A transaction as PostgreSQL runs it: what it commits is seen before its locks are gone."""
    return (LOCK, *lanes, COMMIT, UNLOCK)


class Database(NamedTuple):
    """What a reader can see: the sequence, the committed tickets, and who holds the lock."""

    sequence: int = 0
    live: frozenset[Ticket] = frozenset()
    lockers: frozenset[str] = frozenset()


class Knowledge(NamedTuple):
    """What a `Floors` holds, as values."""

    floors: tuple[tuple[Lane, int], ...] = tuple(zip(LANES, (0, 0), strict=True))
    lowest: tuple[tuple[Lane, int], ...] | None = None
    drawers: frozenset[str] = frozenset()


Answer = tuple[tuple[Any, ...], ...]


class Reading(NamedTuple):
    """A claimer in the middle of `advance`: what it knew, what it has read since, what it wants."""

    began: Knowledge
    reads: tuple[Answer | None, ...]
    """`None` is the moment of a reset."""
    wants: str
    lanes: str | None
    knows: Knowledge
    rounds: int
    """How often it has taken a new candidate."""


class State(NamedTuple):
    """All there is."""

    steps: tuple[int, ...]
    drawn: tuple[tuple[Ticket, ...], ...]
    reading: Reading
    database: Database = Database()
    old: Database | None = None
    """After a failover: what a connection to the lost server still sees."""


class Pause:
    """Awaited where the claimer needs an answer that it does not have."""

    def __await__(self) -> Generator[None]:
        yield


class Questions(Reader):
    """Gives the answers of the past again, then stops the claimer at its next question."""

    def __init__(self, floors: Floors, past: tuple[Answer | None, ...]) -> None:
        self.floors = floors
        self.past = list(past)
        self.question: tuple[str, str | None] = ("", None)

    async def fetch(self, statement: str, **params: Any) -> list[tuple[Any, ...]]:
        self.apply_resets()
        while not self.past:
            self.question = statement, params.get("lanes")
            await Pause()
        return list(self.past.pop(0) or ())

    def apply_resets(self) -> None:
        while self.past and self.past[0] is None:
            self.past.pop(0)
            forget(self.floors)


def answer(database: Database, statement: str, lanes: str | None) -> Answer:
    """What the database says now."""
    if statement == "highest_position":
        return ((database.sequence,),)
    if statement == "position_drawers":
        return tuple((name,) for name in sorted(database.lockers))
    assert statement == "lowest_positions"
    found = []
    for row in json.loads(lanes or "[]"):
        lane = (row["queue"], row["needs"], row["priority"])
        positions = [position for where, position in database.live if where == lane]
        found.append((*lane, min((p for p in positions if p >= row["floor"]), default=None)))
    return tuple(found)


class WithoutWait(Floors):
    """Waits for nobody."""

    async def _drawers(self, reader: Any) -> set[str]:  # noqa: ARG002
        return set()


class WithoutSecondReading(Floors):
    """Trusts the first reading, once everybody has ended."""

    skipped = False

    async def _lowest(self, reader: Any) -> dict[Lane, int]:
        if self._candidate is not None and not self.skipped:
            self.skipped = True
            return {}
        return await super()._lowest(reader)


class WithoutReset(Floors):
    """Keeps what it knew of a server that is gone."""

    def reset(self) -> None:
        pass


def forget(floors: Floors) -> None:
    """A reconnect. The lanes are met again at once."""
    floors.reset()
    floors.note_taken(LANES, len(LANES))


def revive(kind: Kind, known: Knowledge) -> Floors:
    floors = kind(full_scan_seconds=NEVER_SECONDS, step_tickets=0)
    floors._floors = dict(known.floors)
    if known.lowest is not None:
        floors._candidate = _Candidate(dict(known.lowest), set(known.drawers))
    return floors


def note(floors: Floors) -> Knowledge:
    candidate = floors._candidate
    items = tuple(sorted(floors._floors.items()))
    if candidate is None:
        return Knowledge(items)
    lowest = tuple(sorted(candidate.lowest.items()))
    return Knowledge(items, lowest, frozenset(candidate.drawers))


class Explorer:
    """Walks all states that these transactions and one claimer can reach."""

    def __init__(
        self, kind: Kind, *programs: Program, rounds: int = 100, failover: bool = False
    ) -> None:
        self.kind = kind
        self.rounds = rounds
        self.programs = programs
        self.failover = failover
        self.came_from: dict[State, tuple[State | None, str]] = {}
        self.highest_floor = 0

    def find_lost_ticket(self) -> list[str] | None:
        """The story of a committed ticket that no claim would ever scan, if there is one."""
        reading = go_on(self.kind, Knowledge(), (), 0)
        first = State((0,) * len(self.programs), ((),) * len(self.programs), reading)
        self.came_from = {first: (None, "")}
        stack = [first]
        while stack:
            state = stack.pop()
            known = state.reading.knows.floors
            self.highest_floor = max(self.highest_floor, *(floor for _, floor in known))
            for ticket in state.database.live:
                if not is_scanned(self.kind, known, ticket):
                    return [*self._story(state), f"ticket {ticket} is below {known}"]
            for what, after in self._next(state):
                if after not in self.came_from:
                    self.came_from[after] = (state, what)
                    stack.append(after)
            assert len(self.came_from) < LIMIT, "too many states to see them all"
        return None

    def _story(self, state: State | None) -> list[str]:
        story: list[str] = []
        while state is not None:
            state, what = self.came_from[state]
            story.insert(0, what)
        return story

    def _next(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._writers_go_on(state)
        reading = state.reading
        if reading.wants == "lowest_positions" and reading.rounds < self.rounds:
            # Nothing else can tell whether a ticket is still there: sooner makes no difference.
            for ticket in state.database.live:
                database = state.database._replace(live=state.database.live - {ticket})
                yield f"{ticket} is claimed", state._replace(database=database)
        if reading.rounds < self.rounds:
            told = answer(state.old or state.database, reading.wants, reading.lanes)
            after = go_on(self.kind, reading.began, (*reading.reads, told), reading.rounds)
            old = state.old if after.reads else None
            yield f"{reading.wants}: {told}", state._replace(reading=after, old=old)
        if self.failover and state.database.sequence and self._nobody_writes(state):
            yield "failover: the sequence begins anew", self._failed_over(state)

    def _nobody_writes(self, state: State) -> bool:
        ends = zip(state.steps, self.programs, strict=True)
        return all(step in (0, len(program)) for step, program in ends)

    def _writers_go_on(self, state: State) -> Iterator[tuple[str, State]]:
        for writer, program in enumerate(self.programs):
            step = state.steps[writer]
            if step == len(program):
                continue
            alike = writer > 0 and self.programs[writer - 1] == program
            if alike and step == state.steps[writer - 1] == 0:
                continue  # of transactions that are alike, the first begins first
            name, action = f"t{writer + 1}", program[step]
            sequence, live, lockers = state.database
            mine = state.drawn[writer]
            if isinstance(action, tuple):
                sequence += 1
                mine = (*mine, (action, sequence))
            elif action == LOCK:
                lockers |= {name}
            elif action == UNLOCK:
                lockers -= {name}
            else:
                live |= set(mine) if action == COMMIT else set()
                mine = ()
            yield (
                f"{name}: {action}",
                state._replace(
                    steps=(*state.steps[:writer], step + 1, *state.steps[writer + 1 :]),
                    drawn=(*state.drawn[:writer], mine, *state.drawn[writer + 1 :]),
                    database=Database(sequence, live, lockers),
                ),
            )

    def _failed_over(self, state: State) -> State:
        """A new server with nothing on it. A reading under way still talks to the old one."""
        reading = state.reading
        if reading.reads:
            after = go_on(self.kind, reading.began, (*reading.reads, None), reading.rounds)
            return state._replace(database=Database(), reading=after, old=state.database)
        floors = revive(self.kind, reading.knows)
        forget(floors)
        after = go_on(self.kind, note(floors), (), reading.rounds)
        return state._replace(database=Database(), reading=after)


@cache
def go_on(kind: Kind, began: Knowledge, reads: tuple[Answer | None, ...], rounds: int) -> Reading:
    """Run `advance` with these answers up to its next question, or on into the next call."""
    floors = revive(kind, began)
    reader = Questions(floors, reads)
    call = floors.advance(reader)
    try:
        call.send(None)
    except StopIteration:
        known = note(floors)
        return go_on(kind, known, (), rounds + (known.lowest != began.lowest))
    call.close()
    return Reading(began, reads, *reader.question, note(floors), rounds)


@cache
def is_scanned(kind: Kind, floors: tuple[tuple[Lane, int], ...], ticket: Ticket) -> bool:
    """Does one of the ranges of a claim hold this ticket?"""
    (queue, needs, priority), position = ticket
    ranges = json.loads(revive(kind, Knowledge(floors)).ranges([(queue, needs)]))
    return any(
        (row["queue"], row["needs"]) == (queue, needs)
        and (row["low_priority"], row["low_position"]) <= (priority, position)
        and priority < row["below_priority"]
        for row in ranges
    )


THREE = (enqueues(A), enqueues(A), enqueues(A))


@pytest.mark.slow
@pytest.mark.parametrize(
    "programs",
    [
        pytest.param(THREE, id="three alike"),
        pytest.param((enqueues(A), enqueues(A, B)), id="two lanes"),
        pytest.param((enqueues(A), enqueues(A), (LOCK, A, ROLLBACK, UNLOCK)), id="a rollback"),
    ],
)
def test_the_rule_never_loses_a_ticket(programs: tuple[Program, ...]) -> None:
    explorer = Explorer(Floors, *programs, rounds=2 if len(programs) == 3 else 100)
    assert explorer.find_lost_ticket() is None
    draws = sum(isinstance(action, tuple) for program in programs for action in program)
    assert explorer.highest_floor == draws + 1, "the floor never passed the last position"


@pytest.mark.parametrize("kind", [WithoutWait, WithoutSecondReading])
def test_without_the_wait_or_the_second_reading_a_ticket_is_lost(kind: type[Floors]) -> None:
    assert Explorer(kind, *THREE).find_lost_ticket() is not None


def test_who_draws_before_it_locks_loses_a_ticket() -> None:
    drawn_first = (A, LOCK, COMMIT, UNLOCK)
    assert Explorer(Floors, drawn_first, enqueues(A)).find_lost_ticket() is not None


def test_a_lock_that_is_gone_before_the_commit_is_seen_loses_a_ticket() -> None:
    unlocked_first = (LOCK, A, UNLOCK, COMMIT)
    assert Explorer(Floors, unlocked_first, enqueues(A)).find_lost_ticket() is not None


@pytest.mark.slow
def test_floors_do_not_outlive_a_failover() -> None:
    """Not even when a reading was under way on the server that is gone."""
    programs = (enqueues(A), enqueues(A))
    explorer = Explorer(Floors, *programs, failover=True)
    assert explorer.find_lost_ticket() is None
    assert explorer.highest_floor == 3
    assert Explorer(WithoutReset, *programs, failover=True).find_lost_ticket() is not None


def test_a_full_scan_looks_below_the_floors() -> None:
    floors = revive(Floors, Knowledge(((A, 10), (B, 20))))
    assert '"low_position":10' in floors.ranges([("mail", 1)])
    floors.full_scan_seconds = 0.0
    [everything] = json.loads(floors.ranges([("mail", 1)]))
    assert (everything["low_priority"], everything["low_position"]) < (-100, 1)
    assert everything["below_priority"] > 100


def test_a_lane_that_was_never_seen_is_scanned_from_its_beginning() -> None:
    floors = ((A, 10), (B, 20))
    assert not is_scanned(Floors, floors, (A, 9))
    assert is_scanned(Floors, floors, (A, 10))
    assert all(
        is_scanned(Floors, floors, (("mail", 1, n), 1)) for n in range(-100, 101) if n not in (0, 3)
    )
    assert is_scanned(Floors, floors, (("video", 1, 0), 1))
    assert is_scanned(Floors, floors, (("mail", 2, 0), 1))


def test_lines_without_a_floor_are_looked_at_together() -> None:
    floors = revive(Floors, Knowledge(((("mail", 1, 0), 10), (("mail", 2, 0), 0))))
    lines = [("mail", needs) for needs in range(4)] + [("sms", 0), ("sms", 1)]
    assert floors.without_floor(lines) == [("mail", 0, 0), ("mail", 2, 3), ("sms", 0, 1)]
    assert floors.unseen(lines) == [("mail", 0, 0), ("mail", 3, 3), ("sms", 0, 1)]
