"""Gates without a database: what a gate may declare, rates, and whose turn it is."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import InvalidInput, TenureError
from tenure.rules.claim import Ask, Demand
from tenure.rules.gates import Gate, Limits, line_name, shown
from tenure.rules.permits import (
    TURNS_KEPT,
    Line,
    Next,
    Room,
    admit,
    next_turn,
    tickets_of,
    turns_of,
)

KEYED = Limits(max_running=1, keyed=True)


def line(
    *tickets: int,
    key: str = "",
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
    room: Room | None = None,
    more: bool = False,
    runs: bool = False,
) -> Line:
    """A line of tickets with these priorities."""
    waiting = tickets_of(
        (priority, position, False, 0, 0) for position, priority in enumerate(tickets)
    )
    turns = turns_of([(0, 1), (0, 2)])
    return Line("q", "g", key, limits, room or Room(), turns, waiting, more, runs)


# --- what a gate may say -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_running": 0},
        {"max_running": 1.5},
        {"rate": 0},
        {"rate": -1},
        {"rate": math.nan},
        {"rate": True},
        {"rate": 1, "per_seconds": 0},
        {"rate": 1, "burst": 0},
        {"burst": 3},
        {"max_running": 1, "burst": 3},
        {"max_running": 1, "per_seconds": 60},
        {},
        {"key": "tenant"},
        {"key": "doc_id"},
        {"fair_by": 7},
        {"key": "tenant", "fair_by": "tenant"},
        {"key": lambda *args: args},
        {"key": lambda **kwargs: kwargs},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(TenureError):
        Gate("g", **wrong)  # type: ignore[arg-type]


def test_a_gate_has_a_name() -> None:
    with pytest.raises(TenureError):
        Gate("no spaces")


def test_the_key_sees_the_arguments_that_it_names() -> None:
    gate = Gate("g", max_running=1, key=lambda doc, page: f"{doc}-{page}")
    assert gate.line_of({"doc": 7, "page": 2, "text": "..."}) == "7-2"
    with pytest.raises(InvalidInput, match="needs the argument 'page'"):
        gate.line_of({"doc": 7})


def test_without_a_key_there_is_one_line() -> None:
    assert Gate("g", rate=1).line_of({"a": 1}) is None
    assert Gate("g", fair_by="tenant").line_of({}) == ""
    assert Gate("g", fair_by=lambda user: user).line_of({"user": 3}) == "3"


def test_every_key_contains_the_tenant() -> None:
    assert line_name("", None) == line_name("acme", None) == ""
    keys = {line_name(tenant, key) for tenant in ("", "a", "ab") for key in ("", "b", "ab")}
    assert len(keys) == 9
    assert shown(line_name("acme", "7")) == "acme/7"
    assert shown(line_name("", "7")) == "7"


# --- rates -------------------------------------------------------------------------------------


def test_a_bucket_fills_up_to_its_burst() -> None:
    limits = Limits(rate=2, per_seconds=10, burst=3)
    assert limits.filled(None, 0) == 3
    assert limits.filled(0.0, 5) == 1
    assert limits.filled(0.5, 100) == 3
    assert limits.filled(0.5, -100) == 0.5
    assert limits.seconds_to_start(0.5) == 2.5
    assert Limits(rate=0.5).capacity == 1


@given(
    rate=st.floats(0.01, 1000), burst=st.integers(1, 50),
    steps=st.lists(st.floats(0, 20), min_size=1, max_size=50),
)  # fmt: skip
def test_no_more_start_than_rate_and_burst_allow(
    rate: float, burst: int, steps: list[float]
) -> None:
    limits = Limits(rate=rate, burst=burst)
    starts, started = limits.filled(None, 0), 0
    for step in steps:
        starts = limits.filled(starts, step)
        while starts >= 1:
            starts, started = starts - 1, started + 1
    assert started <= burst + rate * sum(steps) + 1e-6


# --- whose turn it is --------------------------------------------------------------------------


def test_lines_take_turns() -> None:
    lines = [line(*[0] * 10, key="a"), line(*[0] * 2, key="b"), line(*[0] * 10, key="c")]
    admit(lines, Demand({"q": Ask.any(8)}, 0), slots=100)
    assert [len(each.passed) for each in lines] == [3, 2, 3]


def test_the_lower_priority_goes_first() -> None:
    lines = [line(0, 0, 0, key="a"), line(-1, -1, 5, key="b")]
    admit(lines, Demand({"q": Ask.any(3)}, 0), slots=100)
    assert [len(each.passed) for each in lines] == [1, 2]


def test_lines_share_a_room() -> None:
    room = Room(free=3)
    lines = [line(0, 0, 0, key=key, room=room) for key in "ab"]
    admit(lines, Demand({"q": Ask.any(100)}, 0), slots=100)
    assert sum(len(each.passed) for each in lines) == 3
    assert (room.free, room.taken) == (0, 3)


def test_one_suspect_passes_and_nobody_overtakes_one() -> None:
    lines = [
        Line("q", "g", key, Limits(), Room(), turns_of([(0, 1)]),
             tickets_of([(0, 1, True, 0, 0), (0, 2, False, 0, 0)]), more=False, runs=False)
        for key in "ab"
    ]  # fmt: skip
    admit(lines, Demand({"q": Ask.any(10)}, 0), slots=10)
    assert [len(each.passed) for each in lines] == [2, 0]


def test_riders_come_in_addition_to_permits() -> None:
    room = Room(free=2, mine=1, live=1, riders=1.5)
    each = line(*[0] * 20, limits=Limits(max_running=3), room=room)
    admit([each], Demand({"q": Ask.any(100)}, 0), slots=1)
    assert (len(each.passed), room.mine, room.free) == (4, 2, 1)  # five jobs, two permits
    assert room.has_riders


def test_a_suspect_does_not_ride() -> None:
    room = Room(free=0, mine=1, live=1, riders=5)
    each = line(0, 0, limits=Limits(max_running=1), room=room)
    each.tickets = tickets_of([(0, 1, True, 0, 0), (0, 2, False, 0, 0)])
    admit([each], Demand({"q": Ask.any(100)}, 0), slots=5)
    assert each.passed == []


def test_a_line_stops_at_a_job_for_which_there_is_no_room() -> None:
    """Others go on. A line whose first job is not wanted counts as shut: claims walk past it."""
    lines = [line(*[0] * 3, key=key) for key in "abc"]
    for each, needs in zip(lines, [(1, 2, 1), (2, 1, 1), (1, 1, 1)], strict=True):
        each.tickets = tickets_of((0, n, False, need, 0) for n, need in enumerate(needs))
    admit(lines, Demand({"q": Ask(9, {1: 9})}, 0), slots=9)
    assert [len(each.passed) for each in lines] == [1, 0, 3]
    assert [each.is_shut for each in lines] == [False, True, False]


def test_jobs_pass_while_their_bytes_fit() -> None:
    lines = [line(*[0] * 3, key=key) for key in "ab"]
    for each in lines:
        each.tickets = tickets_of((0, n, False, 1, 40) for n in range(3))
    admit(lines, Demand({"q": Ask(9, {1: 9})}, 100), slots=9)
    assert [len(each.passed) for each in lines] == [1, 1]
    assert not any(each.is_shut for each in lines)


def test_a_turn_is_used_up_by_an_empty_line() -> None:
    each = line()
    assert next_turn(each, alone=False) == Next(each.turns)
    each = line(0)
    admit([each], Demand({"q": Ask.any(5)}, 0), slots=5)
    each.landed = [7]
    assert next_turn(each, alone=False) == Next(each.turns)


def test_a_turn_is_used_up_by_a_full_line_only_if_its_own_jobs_run() -> None:
    full = Room(free=0)
    own = line(0, limits=KEYED, room=full, runs=True)
    assert next_turn(own, alone=False) == Next(own.turns)
    others = line(0, limits=KEYED, room=full)
    assert next_turn(others, alone=False).gone != others.turns
    shared = line(0, limits=Limits(max_running=1), room=full, runs=True)
    assert next_turn(shared, alone=False).gone != shared.turns


def test_a_turn_stays_when_what_passed_was_not_there_any_more() -> None:
    each = line(0, limits=KEYED, room=Room(free=1))
    admit([each], Demand({"q": Ask.any(5)}, 0), slots=5)
    assert next_turn(each, alone=False).again


def test_a_turn_stays_when_somebody_may_stand_before_those_who_were_seen() -> None:
    each = line(0)
    each.ahead = True
    admit([each], Demand({"q": Ask.any(5)}, 0), slots=5)
    each.landed = [7]
    assert next_turn(each, alone=False).again
    assert next_turn(each, alone=True) == Next([])


def test_a_line_without_tokens_waits_for_one() -> None:
    each = line(0, limits=Limits(rate=2), room=Room(starts=0.5))
    assert next_turn(each, alone=True) == Next(each.turns, again=True, wait_seconds=0.25)


def test_a_line_is_shut_when_nobody_can_pass_whoever_asks() -> None:
    assert line().is_shut
    assert not line(0).is_shut
    assert not line(more=True).is_shut  # nobody was asked for
    assert line(0, limits=KEYED, room=Room(free=0)).is_shut
    assert line(0, limits=Limits(rate=1, keyed=True), room=Room(starts=0.5)).is_shut
    assert not line(0, limits=Limits(rate=1), room=Room(starts=0.5)).is_shut  # nor can the others


def test_few_spare_turns_stay_and_many_go() -> None:
    each = line(0, 0, more=True)
    assert next_turn(each, alone=True) == Next([])
    each.turns = [*each.turns] * TURNS_KEPT
    assert next_turn(each, alone=True) == Next(each.turns[1:])


def test_of_a_line_that_is_full_one_turn_stays() -> None:
    each = line(0, limits=KEYED, room=Room(free=0))
    each.turns = turns_of([(0, 1), (0, 7)])
    assert next_turn(each, alone=False) == Next(turns_of([(0, 7)]))


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=12), most=st.integers(1, 60),
    limit=st.integers(1, 40),
)  # fmt: skip
def test_nobody_gets_two_more_than_a_neighbour_who_waits(
    sizes: list[int], most: int, limit: int
) -> None:
    room = Room(free=limit)
    lines = [line(*[0] * size, key=str(n), room=room) for n, size in enumerate(sizes)]
    admit(lines, Demand({"q": Ask.any(most)}, 0), slots=most)
    got = Counter({n: len(each.passed) for n, each in enumerate(lines)})
    assert got.total() == min(sum(sizes), most, limit)
    waiting = [got[n] for n, size in enumerate(sizes) if got[n] < size]
    assert max(got.values()) - min(waiting, default=math.inf) <= 1
