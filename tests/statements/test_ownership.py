"""Ownership, lease, fencing: statements 13 to 28."""

from __future__ import annotations

import inspect
import subprocess
import sys
from datetime import timedelta
from functools import partial

import pytest

from tenure.errors import StoreError, TenureError
from tenure.rules.codec import encode
from tenure.rules.job import State
from tenure.rules.lifecycle import Outcome, abort, fail, retry, succeed
from tenure.store import LANDED, STALE, Store, open_store
from tenure.store.jobs.claim import claim
from tenure.store.jobs.sweep import extend
from tests.statements.conftest import Opener
from tests.statements.support import (
    ERROR,
    SETTLEMENTS,
    Database,
    add,
    at_once,
    claim_jobs,
    claim_one,
    defect,
    expire,
    new_jobs,
    running,
    statement,
    wait_until,
)
from tests.support.stores import Clock


@statement(13, 21)
@defect("B-2")
def test_a_worker_that_lost_its_lease_changes_nothing_and_is_told_so(
    store: Store, clock: Clock, database: Database
) -> None:
    """Heartbeat, progress, checkpoint and every end of the attempt: zero rows, and an answer that
    says so. (All combinations are in test_zombies.py; that the worker then stops is its part.)"""
    job = running(store, clock)
    expire(store, clock)
    claim_one(store, clock, "w2")
    before = database.snapshot()
    assert store.extend("w1", {job.lease_id: []}, now=clock.now).lost == (job.lease_id,)
    assert store.report_progress("w1", [(job, 0.9, None)], now=clock.now) == [STALE]
    assert store.save_checkpoint("w1", job, encode(1), now=clock.now) == STALE
    everything = [make(job) for make in SETTLEMENTS.values()]
    assert set(store.settle("w1", everything, now=clock.now)) == {STALE}
    assert database.snapshot() == before


@statement(14)
def test_success_and_failure_are_guarded_alike(
    store: Store, clock: Clock, database: Database
) -> None:
    """For each way in which what is presented can be wrong, both are refused; when it is right,
    both land."""
    add(store, clock, 2)
    one, other = claim_jobs(store, clock)
    before = database.snapshot()
    for end in (succeed, lambda job: fail(job, ERROR)):
        assert store.settle("w2", [end(one)], now=clock.now) == [STALE]
    assert database.snapshot() == before
    answers = store.settle("w1", [succeed(one), fail(other, ERROR)], now=clock.now)
    assert answers == [LANDED, LANDED]


@statement(15)
@defect("B-2")
def test_a_finished_job_is_immutable_for_workers(
    store: Store, clock: Clock, database: Database
) -> None:
    """After the end no second end, no late failure, no heartbeat's `started` and no progress
    changes the record. The worker that ended it hears `landed` again, which is the truth."""
    job = running(store, clock)
    store.settle("w1", [succeed(job, encode("first"))], now=clock.now)
    before = database.snapshot()
    late = [make(job) for make in SETTLEMENTS.values()]
    assert set(store.settle("w1", late, now=clock.advance(1))) == {LANDED}
    assert set(store.settle("w2", late, now=clock.now)) == {STALE}
    assert store.report_progress("w1", [(job, 0.5, None)], now=clock.now) == [STALE]
    assert store.save_checkpoint("w1", job, encode(1), now=clock.now) == STALE
    assert database.snapshot() == before
    assert store.get(job.id).result == '"first"'


@statement(16)
def test_a_heartbeat_for_what_is_not_held_is_refused(
    store: Store, clock: Clock, database: Database
) -> None:
    """Another worker's lease, a lease that never was, and one whose job has ended and that is gone:
    each is answered as lost and changes nothing."""
    job = running(store, clock)
    before = database.snapshot()
    assert store.extend("w2", {job.lease_id: [job.id]}, now=clock.now).lost == (job.lease_id,)
    assert store.extend("w1", {job.lease_id + 7: []}, now=clock.now).lost == (job.lease_id + 7,)
    assert database.snapshot() == before
    store.settle("w1", [succeed(job)], done_leases=[job.lease_id], now=clock.now)
    before = database.snapshot()
    assert store.extend("w1", {job.lease_id: [job.id]}, now=clock.now).lost == (job.lease_id,)
    assert database.snapshot() == before


@statement(17)
def test_claim_and_heartbeat_measure_a_lease_alike(store: Store, clock: Clock) -> None:
    """The same length by default, counted from the moment of the call; the sweep compares with the
    deadline that either of them wrote, and with nothing else."""
    default = "lease_seconds"
    assert (
        inspect.signature(claim).parameters[default].default
        == inspect.signature(extend).parameters[default].default
    )
    add(store, clock)
    [lease] = store.claim("w1", {"default": 1}, now=clock.now)
    length = lease.expires_at - clock.now
    clock.advance(17)
    store.extend("w1", {lease.id: []}, now=clock.now)
    seen = store.get(lease.jobs[0].id).expires_at
    assert seen == clock.now + length
    assert store.sweep(now=seen - timedelta(microseconds=1)).requeued == 0
    assert store.sweep(now=seen).requeued == 1


@statement(19)
def test_a_sweep_touches_expired_leases_only(store: Store, clock: Clock) -> None:
    """Of two workers one stopped renewing: its job goes back, the other's runs on undisturbed."""
    dead = running(store, clock, "dead")
    clock.advance(20)
    alive = running(store, clock, "alive")
    clock.advance(11)
    assert store.sweep(now=clock.now).requeued == 1
    assert store.get(dead.id).state is State.QUEUED
    seen = store.get(alive.id)
    assert (seen.state, seen.worker, seen.token) == (State.RUNNING, "alive", alive.token)
    assert store.settle("alive", [succeed(alive)], now=clock.now) == [LANDED]


@statement(20)
def test_a_swept_job_keeps_all_that_belongs_to_it(store: Store, clock: Clock) -> None:
    """Priority, queue, arguments, options, attempts, error and hold survive; the crash is added."""
    job = running(
        store, clock, args=encode({"n": 1}), priority=7, metadata=encode({"from": "test"}),
        timeout_seconds=9.0,
    )  # fmt: skip
    store.settle("w1", [retry(job, ERROR, 0.0)], now=clock.now)
    claim_one(store, clock)
    store.hold(job.id, now=clock.now)
    before = store.get(job.id)
    expire(store, clock)
    after = store.get(job.id)
    same = ("args", "priority", "queue", "metadata", "timeout_seconds", "max_attempts", "error",
            "created_at", "tenant")  # fmt: skip
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert (before.attempts, after.attempts, after.crashes) == (1, 2, 1)
    assert after.held
    assert claim_jobs(store, clock) == []
    store.unhold(job.id, now=clock.now)
    assert claim_one(store, clock).priority == 7


@statement(22)
def test_a_job_that_finishes_although_asked_to_stop_has_finished(
    store: Store, clock: Clock
) -> None:
    """The end that arrives at the same moment as the request to cancel is the truth: a success is
    recorded as one, with its result."""
    job = running(store, clock)
    assert store.cancel(job.id, now=clock.now) is State.RUNNING
    assert store.settle("w1", [succeed(job, encode(42))], now=clock.now) == [LANDED]
    seen = store.get(job.id)
    assert (seen.state, seen.result) == (State.SUCCEEDED, "42")
    assert store.cancel(job.id, now=clock.now) is State.SUCCEEDED


@statement(24)
@defect("C-1", "C-15")
def test_a_sweep_finds_every_job_that_has_an_owner_and_no_finished_one(
    store: Store, clock: Clock
) -> None:
    """Claimed and not started, started, asked to cancel, held while running: all come back. What
    has ended on the same lease stays as it ended."""
    add(store, clock, 5)
    waiting, started, flagged, held, finished = claim_jobs(store, clock)
    store.extend("w1", {started.lease_id: [started.id]}, now=clock.now)
    store.cancel(flagged.id, now=clock.now)
    store.hold(held.id, now=clock.now)
    store.settle("w1", [succeed(finished)], now=clock.now)
    expire(store, clock)
    states = [store.get(job.id).state for job in (waiting, started, flagged, held, finished)]
    assert states == [
        State.QUEUED,
        State.QUEUED,
        State.CANCELLED,
        State.QUEUED,
        State.SUCCEEDED,
    ]


@statement(25)
@defect("F-4", "C-1")
def test_a_sweeper_that_just_started_declares_nobody_dead(
    open_shared: Opener, shared_database: Database
) -> None:
    """There is no start-up reset: a new process that opens the store and sweeps at once judges by
    the deadlines in the tables, and leaves its neighbours' live jobs alone."""
    worker = open_shared()
    worker.enqueue(new_jobs(3))
    worker.claim("w1", {"default": 3}, lease_seconds=60)
    before = shared_database.snapshot()
    newcomer = open_shared()
    assert newcomer.sweep().requeued == newcomer.promote() == 0
    assert shared_database.snapshot() == before


@statement(26)
@defect("C-15")
def test_a_claim_whose_lease_was_not_written_claimed_nothing(
    store: Store, clock: Clock, database: Database
) -> None:
    """If the write of the lease fails, the caller gets an error, not a job, and the ticket stands
    in line as before: the next claim gets the same attempt."""
    add(store, clock)
    before = database.snapshot()
    database.break_inserts("lease")
    with pytest.raises(TenureError, match="refused by the test"):
        claim_jobs(store, clock)
    assert database.snapshot() == before
    database.mend_inserts("lease")
    assert claim_one(store, clock).token == 1


CLAIM_AND_HANG = """
import sys, time
from tenure.store import open_store
[lease] = open_store(sys.argv[1]).claim("victim", {"default": 1}, lease_seconds=0.2)
print(lease.jobs[0].id, flush=True)
time.sleep(600)
"""


@statement(27, 39)
def test_a_job_whose_worker_was_killed_is_finished_by_another(
    open_shared: Opener, shared_url: str, shared_database: Database
) -> None:
    """SIGKILL in the middle of a run: after the lease another worker gets the job as a further
    attempt, and there is one result under the job's own id, not a second record."""
    store = open_shared()
    [added] = store.enqueue(new_jobs(1))
    with subprocess.Popen(
        [sys.executable, "-c", CLAIM_AND_HANG, shared_url], stdout=subprocess.PIPE, text=True
    ) as victim:
        assert victim.stdout is not None
        assert int(victim.stdout.readline()) == added.id
        victim.kill()
    wait_until(lambda: store.sweep().requeued)
    [lease] = store.claim("rescuer", {"default": 1})
    [job] = lease.jobs
    assert (job.id, job.token, job.attempts, job.crashes) == (added.id, 2, 1, 1)
    assert store.settle("rescuer", [succeed(job, encode("done"))]) == [LANDED]
    assert shared_database.rows("select id, worker, attempts from tenure.history") == [
        (added.id, "rescuer", 2)
    ]


@statement(28)
def test_concurrent_sweeps_charge_a_lost_attempt_once(open_shared: Opener) -> None:
    """Several sweepers at the same moment: each lost attempt is requeued by exactly one of them."""
    stores = [open_shared() for _ in range(4)]
    ids = [answer.id for answer in stores[0].enqueue(new_jobs(20))]
    for id in ids:
        [lease] = stores[0].claim("w1", {"default": 1}, lease_seconds=0.001)
        assert [job.id for job in lease.jobs] == [id]
    wait_until(lambda: stores[0].get(ids[-1]).expires_at)

    def sweep_all(store: Store) -> int:
        done = 0
        while swept := store.sweep(most=3).requeued:
            done += swept
        return done

    total = 0
    while total < len(ids):
        total += sum(at_once([partial(sweep_all, store) for store in stores]))
    assert total == len(ids)
    jobs = [stores[0].get(id) for id in ids]
    assert {(job.token, job.attempts, job.crashes) for job in jobs} == {(2, 1, 1)}


@statement(35)
def test_losing_the_lease_is_no_error_that_the_loser_may_retry(
    store: Store, clock: Clock, database: Database
) -> None:
    """The sweep has put the job in line already; the loser's own retry would be a second ticket."""
    job = running(store, clock)
    expire(store, clock)
    for outcome in (Outcome.RETRY, Outcome.RELEASE, Outcome.SNOOZE):
        assert store.settle("w1", [SETTLEMENTS[outcome](job)], now=clock.now) == [STALE]
    assert database.count("ready", f"job_id = {job.id}") == 1
    assert database.count("due") == 0
    assert store.get(job.id).attempts == 1


def test_a_store_error_while_settling_is_raised_and_changes_nothing(
    store: Store, clock: Clock, database: Database
) -> None:
    """What the database refuses for reasons of its own is neither `landed` nor `stale`."""
    job = running(store, clock)
    database.break_inserts("history")
    before = database.snapshot()
    try:
        [answer] = store.settle("w1", [abort(job)], now=clock.now)
    except StoreError:
        pass
    else:
        assert (answer.landed, answer.stale) == (False, False)
    assert database.snapshot() == before


def test_a_store_can_be_opened_again_and_still_knows_the_lease(store_url: str) -> None:
    """Leases live in the database, not in the process that claimed."""
    with open_store(store_url) as store:
        store.enqueue(new_jobs(1))
        [lease] = store.claim("w1", {"default": 1})
    with open_store(store_url) as store:
        assert store.settle("w1", [succeed(lease.jobs[0])]) == [LANDED]
