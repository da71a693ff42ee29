"""The rules without which a gate would let too many pass, nobody, or the wrong one.

Each docstring says what was taken out and how the test failed then; `make bugs` repeats that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tenure.rules.gates import Limits
from tenure.rules.job import Claimed
from tenure.rules.lifecycle import succeed
from tenure.store import Store
from tenure.store.jobs.claim import claim
from tests.statements.support import Held, rule
from tests.support.stores import Clock
from tests.support.work import add, add_many, ids_of, settle, take, take_one

Hold = Callable[[], Held]
GATES = {
    "two": Limits(max_running=2),
    "each": Limits(max_running=1, keyed=True),
    "rate": Limits(rate=2, per_seconds=1.0, burst=2),
    "fair": Limits(),
}


@pytest.fixture
def gated(store: Store, clock: Clock) -> Store:
    """A store that knows the gates."""
    store.declare_gates(GATES, now=clock.now)
    return store


def finish(store: Store, clock: Clock, *jobs: Claimed) -> None:
    assert all(answer.landed for answer in settle(store, clock.now, *map(succeed, jobs)))


@rule("gate-counts-others")
def test_places_of_other_workers_count(gated: Store, clock: Clock) -> None:
    """Seen failing with the worker's own places counted alone: four ran where two may."""
    ids = add_many(gated, clock.now, 5, gate="two")
    assert ids_of(take(gated, clock.now, worker="w1")) == ids[:2]
    assert take(gated, clock.now, worker="w2") == []


@rule("gate-counts-live")
def test_a_place_is_free_when_its_job_has_ended(gated: Store, clock: Clock) -> None:
    """Though another job of the same lease still runs.

    Seen failing with all counted that have passed: the place was lost until the lease went.
    """
    ids = add_many(gated, clock.now, 3, gate="two")
    first, _ = take(gated, clock.now, worker="w1")
    gated.settle("w1", [succeed(first)], now=clock.now)
    assert ids_of(take(gated, clock.now, worker="w2")) == ids[2:]


@rule("gate-one-claim")
def test_two_claims_at_once_keep_the_limit(pg: Store, clock: Clock, hold: Hold) -> None:
    """What the other one takes is not to be seen yet: so there is no other one.

    Seen failing with the gate not locked: each of the two took all places.
    """
    pg.declare_gates(GATES, now=clock.now)
    ids = add_many(pg, clock.now, 4, gate="two")
    assert take(pg, clock.now, queue="other") == []  # it knows that there are gates
    first = hold()
    [lease] = first.do(claim, "w1", {"default": 4}, now=clock.now)
    assert ids_of(lease.jobs) == ids[:2]
    assert take(pg, clock.now, worker="w2") == []
    first.commit()
    assert take(pg, clock.now, worker="w2") == []


@rule("gate-turn-at-end")
def test_the_end_of_a_job_gives_the_next_one_its_turn(gated: Store, clock: Clock) -> None:
    """Seen failing without the turn: the line was full when it was looked at last, and stood."""
    first, second = add_many(gated, clock.now, 2, gate="each", gate_key="k")
    job = take_one(gated, clock.now)
    assert (job.id, take(gated, clock.now)) == (first, [])
    finish(gated, clock, job)
    assert ids_of(take(gated, clock.now)) == [second]


@rule("gate-order")
def test_one_at_a_time_means_in_order(gated: Store, clock: Clock) -> None:
    """Seen failing with the last ticket taken first, in place of the head of the line."""
    ids = add_many(gated, clock.now, 4, gate="each", gate_key="k")
    ran = []
    while jobs := take(gated, clock.now):
        ran += ids_of(jobs)
        finish(gated, clock, *jobs)
    assert ran == ids


@rule("gate-tokens-used")
def test_what_has_started_has_used_a_token(gated: Store, clock: Clock) -> None:
    """Seen failing with the bucket not written: as many started at each claim."""
    add_many(gated, clock.now, 5, gate="rate")
    assert len(take(gated, clock.now)) == 2
    assert take(gated, clock.now) == []
    assert len(take(gated, clock.advance(0.5))) == 1


@rule("gate-clock-back")
def test_a_clock_that_goes_back_brings_no_tokens(gated: Store, clock: Clock) -> None:
    """Seen failing with the difference of times taken as it was, without its sign."""
    add_many(gated, clock.now, 5, gate="rate")
    assert len(take(gated, clock.now)) == 2
    add(gated, clock.advance(-60), gate="rate")  # which gives a turn
    assert take(gated, clock.now) == []


@rule("gate-turns")
def test_lines_take_turns(gated: Store, clock: Clock) -> None:
    """Seen failing with a line that was served at the head of the turns again: the second key got
    nothing."""
    for key in ("a", "b"):
        for _ in range(6):
            add(gated, clock.now, gate="fair", gate_key=key)
    got = Counter(gated.get(job.id).gate_key for job in take(gated, clock.now, 4))
    assert sorted(got.values()) == [2, 2]


@rule("gate-tenant")
def test_keys_of_two_tenants_are_two_keys(gated: Store, clock: Clock) -> None:
    """Seen failing with the tenant left out of the name of a line: one kept the other waiting."""
    for tenant in ("ann", "bob"):
        add(gated, clock.now, gate="each", gate_key="k", tenant=tenant)
    assert len(take(gated, clock.now)) == 2
