"""Permits belong to workers, which may have claimed more jobs than they may run at once."""

from __future__ import annotations

from datetime import datetime

import pytest

from tenure.rules.claim import Claim, Claimed, Lease
from tenure.rules.gates import Limits
from tenure.rules.lifecycle import release, succeed
from tenure.store import Store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import add_many, ids_of, settle

TEN = Limits(max_running=10)


@pytest.fixture(autouse=True)
def gates(store: Store, clock: Clock) -> None:
    """The gates of these tests."""
    declared = {
        "one": Limits(max_running=1),
        "ten": TEN,
        "each": Limits(max_running=2, keyed=True),
        "rate": Limits(max_running=10, rate=5, burst=5),
        "fair": Limits(),
    }
    store.declare_gates(declared, now=clock.now)


def claim(
    store: Store, now: datetime, worker: str = "w1", *, permits: int = 100, riders: float = 0.0,
    most: int = 100,
) -> Claim:  # fmt: skip
    """What a worker with so many free slots gets."""
    return store.claim(worker, {"default": most}, new_permits=permits, riders=riders, now=now)


def jobs_of(leases: list[Lease]) -> list[Claimed]:
    return [job for lease in leases for job in lease.jobs]


def most_of(claim: Claim) -> dict[tuple[str, str], int]:
    """How many may run at once."""
    return {(each.gate, each.key): each.most for each in claim.permits}


def end(store: Store, now: datetime, jobs: list[Claimed], worker: str = "w1") -> None:
    answers = settle(store, now, *(succeed(job, None, 0.1) for job in jobs), worker=worker)
    assert all(answer.landed for answer in answers)


def test_a_worker_gets_no_more_permits_than_it_has_slots_for(store: Store, clock: Clock) -> None:
    gated = add_many(store, clock.now, 20, gate="ten")
    leases = claim(store, clock.now, permits=4)
    assert ids_of(jobs_of(leases)) == gated[:4]
    assert most_of(leases) == {("ten", ""): 4}
    assert claim(store, clock.now, permits=0) == []
    assert most_of(claim(store, clock.now, "w2")) == {("ten", ""): 6}


def test_without_a_limit_there_are_no_permits(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 5, gate="fair")
    leases = claim(store, clock.now, permits=0)
    assert ids_of(jobs_of(leases)) == ids
    assert most_of(leases) == {}


def test_riders_come_along_with_permits(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 50, gate="ten")
    leases = claim(store, clock.now, permits=4, riders=2.0)
    assert ids_of(jobs_of(leases)) == ids[:12]
    assert most_of(leases) == {("ten", ""): 4}
    assert store.gates(name="ten", now=clock.now)[0].running == 4
    leases = claim(store, clock.now, "w2", riders=2.0)
    assert (len(jobs_of(leases)), most_of(leases)) == (18, {("ten", ""): 6})
    assert claim(store, clock.now, "w3", riders=2.0) == []
    assert store.gates(name="ten", now=clock.now)[0].running == 10


def test_a_permit_stays_with_the_worker_that_has_more_jobs(store: Store, clock: Clock) -> None:
    """Nobody else gets in before it has fewer jobs than permits."""
    add_many(store, clock.now, 50, gate="ten")
    first = jobs_of(claim(store, clock.now, riders=2.0))
    assert len(first) == 30
    end(store, clock.now, first[:20])
    assert claim(store, clock.now, "w2") == []
    end(store, clock.now, first[20:23])
    assert most_of(claim(store, clock.now, "w2")) == {("ten", ""): 3}
    end(store, clock.now, first[23:])
    leases = claim(store, clock.now, riders=1.0)
    assert (len(jobs_of(leases)), most_of(leases)) == (14, {("ten", ""): 7})


def test_what_was_given_to_others_is_not_taken_back(store: Store, clock: Clock) -> None:
    """The first worker had ten permits, and others have seven of these by now."""
    add_many(store, clock.now, 80, gate="ten")
    first = jobs_of(claim(store, clock.now, riders=2.0))
    end(store, clock.now, first[:27])
    assert most_of(claim(store, clock.now, "w2", riders=1.0)) == {("ten", ""): 7}
    leases = claim(store, clock.now, riders=2.0)
    assert (len(jobs_of(leases)), most_of(leases)) == (6, {("ten", ""): 3})
    assert store.gates(name="ten", now=clock.now)[0].running == 10


def test_a_share_ends_when_each_job_has_a_permit(store: Store, plain: Plain, clock: Clock) -> None:
    add_many(store, clock.now, 60, gate="ten")
    first = jobs_of(claim(store, clock.now, permits=5, riders=1.0))
    assert plain.rows("select permits from tenure.gate_share") == [(5,)]
    end(store, clock.now, first)
    leases = claim(store, clock.now)  # no riders: the old share must not count any more
    assert (len(jobs_of(leases)), most_of(leases)) == (10, {("ten", ""): 10})
    assert plain.rows("select permits from tenure.gate_share") == []
    assert claim(store, clock.now, "w2") == []


def test_shares_of_who_has_gone_are_forgotten(store: Store, plain: Plain, clock: Clock) -> None:
    add_many(store, clock.now, 12, gate="ten")
    end(store, clock.now, jobs_of(claim(store, clock.now, permits=6, riders=1.0)))
    assert plain.rows("select permits from tenure.gate_share") == [(6,)]
    store.heal_gates(now=clock.now)
    assert plain.rows("select permits from tenure.gate_share") == []


def test_where_one_runs_at_a_time_nobody_rides(store: Store, clock: Clock) -> None:
    """Order is promised there: with a job in hand that waits, a release would break it."""
    add_many(store, clock.now, 5, gate="one")
    leases = claim(store, clock.now, riders=5.0)
    assert (len(jobs_of(leases)), most_of(leases)) == (1, {("one", ""): 1})


def test_each_key_has_permits_of_its_own(store: Store, clock: Clock) -> None:
    for key in ("a", "b"):
        add_many(store, clock.now, 20, gate="each", gate_key=key)
    leases = claim(store, clock.now, permits=3, riders=3.0)
    assert most_of(leases) == {("each", "\x1fa"): 2, ("each", "\x1fb"): 1}
    assert len(jobs_of(leases)) == 12
    assert most_of(claim(store, clock.now, "w2", riders=3.0)) == {("each", "\x1fb"): 1}


def test_each_rider_takes_a_token(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 50, gate="rate")
    assert len(jobs_of(claim(store, clock.now, permits=1, riders=20.0))) == 5
    clock.advance(1.01)
    assert len(jobs_of(claim(store, clock.now, permits=1, riders=20.0))) == 5


def test_a_suspect_has_a_permit_of_its_own(store: Store, clock: Clock) -> None:
    """It comes alone on its lease: were it to wait there, a death would charge it without a run."""
    add_many(store, clock.now, 2, gate="ten", priority=-1)
    add_many(store, clock.now, 20, gate="ten")
    claim(store, clock.now, permits=2)
    clock.advance(60)
    store.sweep(now=clock.now)
    leases = claim(store, clock.now, "w2", permits=1, riders=2.0)
    assert [job.crashes for job in jobs_of(leases)] == [1]
    assert claim(store, clock.now, "w2", permits=0, riders=2.0) == []


def test_riders_that_did_not_start_are_not_charged(store: Store, clock: Clock) -> None:
    [_, rider] = add_many(store, clock.now, 2, gate="each", gate_key="k", max_attempts=1)
    [first] = jobs_of(claim(store, clock.now, permits=1, riders=1.0, most=1))
    [second] = jobs_of(claim(store, clock.now, permits=0, riders=1.0, most=1))
    assert second.id == rider
    end(store, clock.now, [first])
    clock.advance(60)
    swept = store.sweep(now=clock.now)
    assert (swept.requeued, swept.finished) == (1, 0)


def test_a_dead_worker_gives_permits_and_riders_back(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 30, gate="ten")
    assert len(jobs_of(claim(store, clock.now, riders=2.0))) == 30
    clock.advance(60)
    assert claim(store, clock.now, "w2") == []
    assert store.sweep(now=clock.now).requeued == 30
    seen = [jobs_of(claim(store, clock.now, "w2")) for _ in range(11)]
    assert [len(some) for some in seen] == [1] * 10 + [0]  # suspects come one at a time
    assert [some[0].id for some in seen[:10]] == ids[:10]


def test_a_stale_settlement_frees_no_permit_of_a_share(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 40, gate="ten")
    late = jobs_of(claim(store, clock.now, riders=1.0))
    clock.advance(60)
    store.sweep(now=clock.now)
    mine = jobs_of(claim(store, clock.now, "w2", riders=1.0))
    before = store.gates(name="ten", now=clock.now)[0].running
    answers = settle(store, clock.now, *(succeed(job, None, 0.1) for job in late))
    assert not any(answer.landed for answer in answers)
    assert store.gates(name="ten", now=clock.now)[0].running == before > 0
    end(store, clock.now, mine, "w2")


def test_riders_that_go_back_stand_in_line_again(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 30, gate="ten")
    jobs = jobs_of(claim(store, clock.now, riders=2.0))
    settle(store, clock.now, *map(release, jobs[10:]))
    assert claim(store, clock.now, "w2") == []
    end(store, clock.now, jobs[:10])
    assert len(jobs_of(claim(store, clock.now, "w2"))) == 10


def test_a_limit_that_was_lowered_counts_for_the_next_claim(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 90, gate="ten")
    mine = jobs_of(claim(store, clock.now, permits=5, riders=2.0))
    theirs = jobs_of(claim(store, clock.now, "w2", permits=5, riders=2.0))
    store.set_gate("ten", max_running=4, now=clock.now)
    assert claim(store, clock.now, "w3") == claim(store, clock.now, riders=2.0) == []
    end(store, clock.now, mine)
    assert claim(store, clock.now, riders=2.0) == []  # the others use all
    end(store, clock.now, theirs, "w2")
    leases = claim(store, clock.now, riders=2.0)
    assert (len(jobs_of(leases)), most_of(leases)) == (12, {("ten", ""): 4})


def test_a_limit_that_was_lowered_shrinks_what_a_worker_has(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 60, gate="ten")
    jobs = jobs_of(claim(store, clock.now, riders=2.0))
    store.set_gate("ten", max_running=4, now=clock.now)
    end(store, clock.now, jobs[:25])
    leases = claim(store, clock.now, riders=2.0)
    assert (len(jobs_of(leases)), most_of(leases)) == (7, {("ten", ""): 4})


def test_a_limit_can_be_set_where_there_was_none(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 30, gate="fair")
    jobs = jobs_of(claim(store, clock.now, most=20))
    store.set_gate("fair", max_running=5, now=clock.now)
    assert claim(store, clock.now, "w2") == claim(store, clock.now, riders=3.0) == []
    end(store, clock.now, jobs[:17])
    assert most_of(claim(store, clock.now, "w2")) == {("fair", ""): 2}


def test_what_is_seen_of_permits(store: Store, clock: Clock) -> None:
    """`running` is what counts for the limit, not what is in hand."""
    add_many(store, clock.now, 9, gate="each", gate_key="k")
    claim(store, clock.now, riders=2.0)
    [seen] = store.gates(name="each", now=clock.now)
    assert (seen.running, seen.waiting) == (2, 3)
    assert [line.running for line in store.gate_lines("each", now=clock.now)] == [2]
