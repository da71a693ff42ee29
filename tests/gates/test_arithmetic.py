"""How many tickets of each line a claim reads: both stores against `tenure.rules.permits`.

The rows are written directly, so that states occur which few histories reach: a limit below the
number of running jobs, shares that are larger than it, several queues at one gate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tenure.rules.claim import Ask, Demand
from tenure.rules.gates import Limits
from tenure.rules.permits import (
    Line,
    Room,
    Turn,
    Use,
    WaitingTicket,
    admit,
    is_enough,
    limited_by,
    room,
    tickets_to_read,
)
from tenure.store import Store, open_store
from tenure.store.gate_records import GateQuestion, LineFound
from tenure.store.gates.passing import _question
from tenure.store.session import Mode, Scope, Tx, Wanted, to_json
from tests.support.plain import Plain
from tests.support.stores import START
from tests.support.work import add_many

ME = "me"
WORKERS = (ME, "other", "third")
QUEUES = ("a", "b")
GATES = ("g", "h")
KEYS = ("x", "y")
MOST_LIVE = 8
"""Of one worker in one line."""


@dataclass(frozen=True)
class Hold:
    """Jobs of one line that have passed on one lease. Some of them have finished."""

    queue: str
    gate: str
    key: str
    worker: str
    live: int
    finished: int


@dataclass(frozen=True)
class Situation:
    """The rows of all gates, and a claim."""

    limits: dict[str, Limits]
    holds: list[Hold]
    shares: dict[tuple[str, str, str], int]
    """By gate, key and worker."""
    buckets: dict[tuple[str, str], tuple[float, float]]
    """By gate and key: starts left, and how many seconds ago."""
    tickets: dict[tuple[str, str, str], list[WaitingTicket]]
    """By queue, gate and key."""
    turns: dict[tuple[str, str, str], list[tuple[Turn, bool]]]
    """By queue, gate and key: turns, and whether they count now."""
    wanted: Wanted


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Any of them."""
    limits = {gate: draw(limits_of_a_gate) for gate in GATES}
    lines = [(q, g, k) for q in QUEUES for g in GATES for k in KEYS]
    some_lines = st.lists(st.sampled_from(lines), max_size=6, unique=True)
    holds = [
        Hold(*line, worker, draw(st.integers(0, MOST_LIVE)), draw(st.integers(0, 8)))
        for line, worker in draw(
            st.lists(st.tuples(st.sampled_from(lines), st.sampled_from(WORKERS)), max_size=6)
        )
    ]
    counted = [(gate, key if limits[gate].keyed else "") for _, gate, key in lines]
    shares = draw(
        st.dictionaries(
            st.tuples(st.sampled_from(counted), st.sampled_from(WORKERS)).map(
                lambda found: (*found[0], found[1])
            ),
            st.integers(1, 6), max_size=6,
        )
    )  # fmt: skip
    buckets = draw(
        st.dictionaries(
            st.sampled_from(counted), st.tuples(st.floats(0, 5), st.integers(-2, 5).map(float)),
            max_size=3,
        )
    )  # fmt: skip
    priorities = st.integers(-1, 1)
    tickets = {}
    for line in draw(some_lines):
        found = draw(
            st.lists(
                st.tuples(
                    priorities, st.sampled_from([False] * 9 + [True]), st.integers(0, 3),
                    st.sampled_from([0] * 9 + [300]),
                ),
                max_size=40,
            )
        )  # fmt: skip
        tickets[line] = sorted(
            WaitingTicket(priority, n, suspect, needs, kb)
            for n, (priority, suspect, needs, kb) in enumerate(found, 1)
        )
    turns: dict[tuple[str, str, str], list[tuple[Turn, bool]]] = {}
    for n, line in enumerate(draw(st.lists(st.sampled_from([*tickets] or lines), max_size=12)), 1):
        is_first = all(counts for _, counts in turns.get(line, []))  # at most one waits
        counts = draw(st.sampled_from([True, True, True, False])) or not is_first
        turns.setdefault(line, []).append((Turn(draw(priorities), n), counts))
    wanted = Wanted(
        ME, draw(st.dictionaries(st.sampled_from(QUEUES), asks, min_size=1)), 30.0,
        ahead=False, new_permits=draw(st.integers(0, 8)),
        riders=draw(st.sampled_from([0.0, 0.0, 0.25, 1.0, 2.5, 20.0])),
        max_kb=draw(st.sampled_from([400, 10_000])),
    )  # fmt: skip
    return Situation(limits, holds, shares, buckets, tickets, turns, wanted)


asks = st.integers(1, 40).map(Ask.any) | st.builds(
    Ask,
    st.integers(1, 40),
    st.dictionaries(st.integers(0, 3), st.integers(1, 40), min_size=1),
)
limits_of_a_gate = st.builds(
    Limits, max_running=st.none() | st.integers(1, 8), keyed=st.booleans(),
    rate=st.none() | st.integers(1, 4).map(float),
)  # fmt: skip


LOWERED = Situation(
    limits={"g": Limits(max_running=2), "h": Limits()},
    holds=[Hold("a", "g", "x", ME, live=3, finished=0)],
    shares={}, buckets={},
    tickets={("a", "g", "x"): [WaitingTicket(0, n, False, 0, 0) for n in range(1, 9)]},
    turns={("a", "g", "x"): [(Turn(0, 1), True)]},
    wanted=Wanted(ME, {"a": Ask.any(5)}, 30.0, ahead=False, new_permits=1, riders=1.0, max_kb=9),
)  # fmt: skip
"""A worker has more jobs than the limit, which was lowered, and may claim one rider."""


# --- the rows ------------------------------------------------------------------------------------


def write(plain: Plain, one: Situation, live: Sequence[tuple[int, int]]) -> None:
    """Replace all rows of gates. `live`: ids and tokens of jobs that count as running."""
    for table in ("gate", "gated", "turn", "gate_hold", "gate_share", "bucket"):
        plain.rows(f"delete from tenure.{table}")
    for name, limits in one.limits.items():
        plain.rows(
            "insert into tenure.gate (name, max_running, rate, keyed) values (?, ?, ?, ?)",
            name, limits.max_running, limits.rate, limits.keyed,
        )  # fmt: skip
    spare = iter(live)
    for n, hold in enumerate(one.holds, 1):
        _write_hold(plain, n, hold, spare)
    for (gate, key, worker), permits in one.shares.items():
        plain.rows(
            "insert into tenure.gate_share (gate, key, worker, permits) values (?, ?, ?, ?)",
            gate, key, worker, permits,
        )  # fmt: skip
    for (gate, key), (starts, age) in one.buckets.items():
        plain.rows(
            "insert into tenure.bucket (gate, key, starts_left, filled_at) values (?, ?, ?, ?)",
            gate, key, starts, _time(plain, -age),
        )  # fmt: skip
    for line, tickets in one.tickets.items():
        for ticket in tickets:
            plain.rows(
                "insert into tenure.gated (queue, gate, key, priority, position, suspect, needs,"
                " size_kb, job_id, token) values (?, ?, ?, ?, ?, ?, ?, ?, 1, 1)",
                *line, *ticket,
            )  # fmt: skip
    mine = "overriding system value " if plain.is_postgres else ""
    for line, turns in one.turns.items():
        for turn, counts in turns:
            plain.rows(
                "insert into tenure.turn (queue, gate, key, priority, n, not_before)"
                f" {mine}values (?, ?, ?, ?, ?, ?)",
                *line, *turn, None if counts else _time(plain, 60),
            )  # fmt: skip


def _write_hold(plain: Plain, lease: int, hold: Hold, live: Iterator[tuple[int, int]]) -> None:
    jobs = [next(live) for _ in range(hold.live)]
    jobs += [(1_000_000 + n, 1) for n in range(hold.finished)]
    line = (lease, hold.queue, hold.gate, hold.key, hold.worker)
    if plain.is_postgres:
        plain.rows(
            "insert into tenure.gate_hold (lease, queue, gate, key, worker, ids, tokens)"
            " values (?, ?, ?, ?, ?, ?, ?)",
            *line, [id for id, _ in jobs], [token for _, token in jobs],
        )  # fmt: skip
    else:
        plain.rows(
            "insert into tenure.gate_hold (lease, queue, gate, key, worker, passed, jobs)"
            " values (?, ?, ?, ?, ?, ?, ?)",
            *line, len(jobs), to_json(jobs),
        )  # fmt: skip


def _time(plain: Plain, seconds: float) -> object:
    at = START + timedelta(seconds=seconds)
    return at if plain.is_postgres else int(at.timestamp() * 1_000_000)


async def look(scope: Scope, wanted: Wanted) -> tuple[list[GateQuestion], list[LineFound]]:
    """What a claim asks, and the lines that the store finds."""
    return await scope.transact(partial(_look, wanted=wanted), Mode.GATE)


async def _look(tx: Tx, wanted: Wanted) -> tuple[list[GateQuestion], list[LineFound]]:
    tx.at(START)
    opened = await tx.open_gates(wanted.queues)
    questions = [_question(tx, wanted, gate.name, gate.limits) for gate in opened]
    return questions, list(await tx.look_at_gates(wanted, questions))


# --- the rule ------------------------------------------------------------------------------------


def use_of(one: Situation, gate: str, key: str, *, finished: bool) -> Use:
    """How permits are used; with `finished`, as if no job had finished."""
    limits = one.limits[gate]
    if limits.max_running is None:
        return Use()
    jobs: Counter[str] = Counter()
    for hold in one.holds:
        if hold.gate == gate and (hold.key == key or not limits.keyed):
            jobs[hold.worker] += hold.live + (hold.finished if finished else 0)
    where = (gate, key if limits.keyed else "")
    used = {worker: min(n, one.shares.get((*where, worker), n)) for worker, n in jobs.items()}
    mine = used.pop(ME, 0)
    return Use(sum(used.values()), mine, jobs[ME], one.shares.get((*where, ME)))


def uses(one: Situation, question: GateQuestion, key: str) -> list[Use]:
    """The exact use, and, if the rule says that it is enough, the one without looking at jobs."""
    exact = use_of(one, question.gate, key, finished=False)
    workers = {hold.worker for hold in one.holds if hold.gate == question.gate}
    if question.max_running is None or question.keyed or workers != {ME}:
        return [exact]
    passed = use_of(one, question.gate, key, finished=True)
    enough = is_enough(question.max_running, passed.live, question.riders, question.most)
    return [exact, passed] if enough else [exact]


def allowed(one: Situation, question: GateQuestion, use: Use) -> int:
    """How many jobs may pass, as far as permits go."""
    there = room(use, question.max_running, question.riders)
    jobs, _ = there.allows(question.most, one.wanted.new_permits)
    return jobs


def lines_with_turns(one: Situation, question: GateQuestion) -> dict[str, list[Turn]]:
    """By key, the turns that the claim reads."""
    found = sorted(
        (turn, key)
        for (queue, gate, key), turns in one.turns.items()
        for turn, counts in turns
        if (queue, gate) == question.name and counts
    )
    by_key: dict[str, list[Turn]] = {}
    for turn, key in found[: question.turns]:
        by_key.setdefault(key, []).append(turn)
    return by_key


def check(one: Situation, questions: list[GateQuestion], found: list[LineFound]) -> None:
    """Each line is what the rule says. No line is missing from which a job might pass."""
    by_line = {(line.queue, line.gate, line.key): line for line in found}
    assert len(by_line) == len(found)
    assert [line.turns[0] for line in found] == sorted(line.turns[0] for line in found)
    per_queue = Counter(line.queue for line in found)
    for question in questions:
        for key, turns in lines_with_turns(one, question).items():
            line = by_line.pop((*question.name, key), None)
            possible = uses(one, question, key)
            if line is None:
                assert not question.keyed
                assert [allowed(one, question, use) for use in possible] == [0]
                continue
            assert line.turns == turns
            if question.max_running is not None:
                assert line.use in possible
            lines = per_queue[line.queue] if len(found) > 1 else 0
            _check_tickets(one, question, line, lines)
            _check_starts(one, question, line)
    assert not by_line, "lines without turns"


def _check_tickets(one: Situation, question: GateQuestion, line: LineFound, lines: int) -> None:
    """`lines`: how many lines of its queue the store has found; 0: it is the only line."""
    tickets = one.tickets.get((*question.name, line.key), [])
    most = tickets_to_read(question.most, lines)
    if question.max_running is not None:
        most = min(most, allowed(one, question, line.use))
    assert list(line.tickets) == tickets[:most]
    assert line.more == (len(tickets) > most)
    if question.keyed and question.max_running is not None:
        here = [h.live for h in one.holds if (h.queue, h.gate, h.key) == (*question.name, line.key)]
        assert line.running == sum(here)


def _check_starts(one: Situation, question: GateQuestion, line: LineFound) -> None:
    limits = one.limits[question.gate]
    starts, age = one.buckets.get(limited_by(question.gate, line.key, limits), (None, 0.0))
    found = limits.filled(line.starts, line.age_seconds or 0.0)
    assert found == pytest.approx(limits.filled(starts, age))


def passed(one: Situation, lines: list[LineFound]) -> list[int]:
    """How many tickets of each line `admit` lets pass."""
    rooms: dict[tuple[str, str], Room] = {}
    seen = []
    for line in lines:
        limits = one.limits[line.gate]
        where = limited_by(line.gate, line.key, limits)
        if where not in rooms:
            rooms[where] = room(line.use, limits.max_running, one.wanted.riders)
            rooms[where].starts = limits.filled(line.starts, line.age_seconds or 0.0)
        seen.append(
            Line(
                line.queue, line.gate, line.key, limits, rooms[where], line.turns, line.tickets,
                more=line.more, runs=line.running > 0,
            )
        )  # fmt: skip
    admit(seen, Demand(one.wanted.queues, one.wanted.max_kb), slots=one.wanted.new_permits)
    return [len(line.passed) for line in seen]


def with_more_tickets(one: Situation, lines: list[LineFound]) -> list[LineFound]:
    """The same lines, read without regard to permits."""
    per_queue = Counter(line.queue for line in lines)
    longer = []
    for line in lines:
        tickets = one.tickets.get((line.queue, line.gate, line.key), [])
        most = one.wanted.queues[line.queue].most
        most = tickets_to_read(most, per_queue[line.queue] if len(lines) > 1 else 0)
        longer.append(line._replace(tickets=tickets[:most], more=len(tickets) > most))
    return longer


# --- the test ------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind. No audit: the rows are not those of jobs."""
    if request.param == "postgres":
        return str(request.getfixturevalue("pg_migrated_url"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store there."""
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def plain(store: Store, url: str) -> Iterator[Plain]:  # noqa: ARG001 - the store opens first
    """Plain SQL on the same database."""
    with Plain(url) as opened:
        yield opened


@pytest.mark.slow
def test_a_claim_reads_as_many_tickets_as_the_rule_says(store: Store, plain: Plain) -> None:
    add_many(store, START, 6 * MOST_LIVE)
    live = [(id, token) for id, token in plain.rows("select id, token from tenure.job")]
    seen: Counter[str] = Counter()

    @settings(max_examples=200, suppress_health_check=list(HealthCheck))
    @given(situations())
    @example(LOWERED)
    def compare(one: Situation) -> None:
        write(plain, one, live)
        questions, found = store.run(look, one.wanted)
        check(one, questions, found)
        assert passed(one, found) == passed(one, with_more_tickets(one, found))
        seen.update(line.gate for line in found)
        seen["passed"] += sum(passed(one, found))

    compare()
    assert min(seen[what] for what in (*GATES, "passed")) > 0, "no situation had a line"
