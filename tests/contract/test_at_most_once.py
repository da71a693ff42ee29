"""`at_most_once`: the handler starts once, and the job never runs again, whatever happens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenure.errors import InvalidInput, TenantMismatch
from tenure.rules.gates import Limits
from tenure.rules.job import NewJob, State
from tenure.rules.lifecycle import AT_MOST_ONCE, fail, release, retry, skip, snooze, succeed
from tenure.store import LANDED, STALE, Store
from tests.support.plain import Plain
from tests.support.rules import rule
from tests.support.stores import Clock
from tests.support.work import ERROR, add, add_many, expire, settle, take, take_one

ENDS: dict[str, Any] = {
    "retry": lambda job: retry(job, ERROR, 5),
    "snooze": lambda job: snooze(job, 5),
    "release": release,
}


@rule("once")
def test_a_started_job_is_not_run_again_after_a_crash(store: Store, clock: Clock) -> None:
    """Seen failing with a sweep that treats it as any other job: it was claimed and run again."""
    id = add(store, clock.now, at_most_once=True, max_attempts=5)
    job = take_one(store, clock.now)
    assert store.start_once("w1", job, now=clock.now) == LANDED
    expire(store, clock)
    seen = store.get(id)
    assert (seen.state, seen.attempts, seen.crashes) == (State.FAILED, 1, 1)
    assert seen.reason == f"{AT_MOST_ONCE}: lease lost"
    assert seen.error is not None
    assert seen.error.type == "LeaseLost"
    assert take(store, clock.now) == []
    [attempt] = store.attempts(id)
    assert (attempt.outcome, attempt.worker, attempt.charged) == ("crashed", "w1", True)


def test_a_heartbeat_does_not_take_the_mark_away(store: Store, clock: Clock) -> None:
    """The heartbeat thread may have looked which jobs run before this one was started."""
    first, second = add_many(store, clock.now, 2, at_most_once=True)
    one, two = take(store, clock.now)
    store.start_once("w1", one, now=clock.now)
    store.extend("w1", {one.lease_id: []}, now=clock.now)
    store.start_once("w1", two, now=clock.now)
    store.extend("w1", {one.lease_id: [one.id]}, now=clock.now)
    expire(store, clock)
    assert {store.get(id).state for id in (first, second)} == {State.FAILED}


@pytest.mark.parametrize("neighbours", [0, 2])
def test_a_job_that_did_not_start_runs_later(store: Store, clock: Clock, neighbours: int) -> None:
    """Even alone on its lease, it is not charged: it says so before it starts."""
    id = add(store, clock.now, at_most_once=True, max_attempts=1)
    add_many(store, clock.now, neighbours)
    take(store, clock.now)
    expire(store, clock)
    seen = store.get(id)
    assert (seen.state, seen.attempts, seen.crashes) == (State.QUEUED, 0, 1)
    again = take_one(store, clock.now)
    assert (again.id, again.crashes) == (id, 1)
    store.start_once("w1", again, now=clock.now)
    settle(store, clock.now, succeed(again))
    assert store.get(id).state is State.SUCCEEDED


@rule("once")
@pytest.mark.parametrize("how", ENDS)
def test_a_started_job_fails_instead_of_running_again(store: Store, clock: Clock, how: str) -> None:
    """Seen failing with a settlement that does not look at the mark: the job was scheduled."""
    id = add(store, clock.now, at_most_once=True)
    job = take_one(store, clock.now)
    store.start_once("w1", job, now=clock.now)
    assert settle(store, clock.now, ENDS[how](job)) == [LANDED]
    seen = store.get(id)
    assert (seen.state, seen.attempts) == (State.FAILED, 1)
    assert (seen.reason or "").startswith(AT_MOST_ONCE)
    assert store.promote(now=clock.advance(60)) == 0


@pytest.mark.parametrize("how", ENDS)
def test_an_unstarted_job_is_put_back_as_any_other(store: Store, clock: Clock, how: str) -> None:
    id = add(store, clock.now, at_most_once=True)
    job = take_one(store, clock.now)
    settle(store, clock.now, ENDS[how](job))
    assert store.get(id).state in (State.QUEUED, State.SCHEDULED)


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (succeed, State.SUCCEEDED),
        (skip, State.SKIPPED),
        (lambda job: fail(job, ERROR), State.FAILED),
    ],
)
def test_other_ends_are_as_usual(store: Store, clock: Clock, end: Any, state: State) -> None:
    id = add(store, clock.now, at_most_once=True)
    job = take_one(store, clock.now)
    store.start_once("w1", job, now=clock.now)
    settle(store, clock.now, end(job))
    assert store.get(id).state is state
    assert AT_MOST_ONCE not in (store.get(id).reason or "")


@rule("once-fence")
def test_a_start_is_refused_when_the_lease_is_over(store: Store, clock: Clock) -> None:
    """Also before the sweep: then another worker starts it, and this one must not.

    Seen failing without the look at the deadline: both workers started it.
    """
    add(store, clock.now, at_most_once=True)
    job = take_one(store, clock.now)
    clock.advance(31)
    assert store.start_once("w1", job, now=clock.now) == STALE
    store.sweep(now=clock.now)
    again = take_one(store, clock.now, worker="w2")
    assert store.start_once("w1", job, now=clock.now) == STALE
    assert store.start_once("w1", again, now=clock.now) == STALE
    assert store.start_once("w2", msgspec.structs.replace(again, token=9), now=clock.now) == STALE
    assert store.start_once("w2", again, now=clock.now) == LANDED
    assert store.start_once("w2", again, now=clock.now) == LANDED, "a repetition"


def test_a_start_of_a_job_that_has_ended_is_refused(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 2, at_most_once=True)
    one, _ = take(store, clock.now)
    store.settle("w1", [succeed(one)], now=clock.now)
    assert store.start_once("w1", one, now=clock.now) == STALE


def test_a_cancelled_job_is_cancelled(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, at_most_once=True)
    job = take_one(store, clock.now)
    store.start_once("w1", job, now=clock.now)
    store.cancel(id, now=clock.now)
    expire(store, clock)
    assert store.get(id).state is State.CANCELLED


def test_a_replay_starts_it_once_more(store: Store, clock: Clock) -> None:
    """An operator has looked, and says so."""
    id = add(store, clock.now, at_most_once=True)
    for _ in range(2):
        job = take_one(store, clock.now)
        assert store.start_once("w1", job, now=clock.now) == LANDED
        expire(store, clock)
        assert store.get(id).state is State.FAILED
        store.replay(id, now=clock.now)
    assert store.get(id).state is State.QUEUED


def test_jobs_at_gates_and_suspects_start_once_too(store: Store, clock: Clock) -> None:
    store.declare_gates({"door": Limits(max_running=1)}, now=clock.now)
    id = add(store, clock.now, at_most_once=True, gate="door")
    take_one(store, clock.now)
    expire(store, clock)
    job = take_one(store, clock.now)
    assert (job.id, job.crashes) == (id, 1)
    store.start_once("w1", job, now=clock.now)
    expire(store, clock)
    assert (store.get(id).state, store.get(id).crashes) == (State.FAILED, 2)


def test_a_plain_job_leaves_no_mark(store: Store, plain: Plain, clock: Clock) -> None:
    add(store, clock.now)
    take_one(store, clock.now)
    assert plain.rows("select once from tenure.lease") == [(None,)]


def test_what_is_refused(store: Store, clock: Clock) -> None:
    with pytest.raises(InvalidInput, match="at_most_once must be a bool"):
        NewJob(task="x", at_most_once=1)  # type: ignore[arg-type]
    add(store, clock.now, at_most_once=True)
    job = take_one(store, clock.now)
    with pytest.raises(TenantMismatch):
        store.for_tenant("acme").start_once("w1", job)
