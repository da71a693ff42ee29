"""Retry limits: statements 29 to 36."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.rules.job import State
from tenure.rules.lifecycle import fail, is_last_attempt, retry
from tenure.rules.limits import MAX_ATTEMPTS_LIMIT
from tenure.rules.retry import Delays, Exponential, Fixed, delay_seconds
from tenure.store import Store
from tests.statements.conftest import Opener
from tests.statements.support import (
    ERROR,
    Database,
    add,
    claim_jobs,
    claim_one,
    defect,
    expire,
    new_jobs,
    rule,
    running,
    statement,
)
from tests.support.stores import Clock


def executions_until_failed(store: Store, clock: Clock, id: int, how: str) -> int:
    """Run the job until it is final, each attempt ending in the same way."""
    executions = 0
    while store.get(id).state is not State.FAILED:
        job = claim_one(store, clock)
        executions += 1
        assert executions <= 20, "it never ends"
        if how == "error" or (how == "mixed" and executions % 2):
            store.settle("w1", [retry(job, ERROR, 0.0)], now=clock.now)
        else:
            store.extend("w1", {job.lease_id: [job.id]}, now=clock.now)
            expire(store, clock)
    return executions


@statement(29)
@defect("B-3", "J-5")
@pytest.mark.parametrize("how", ["error", "crash", "mixed"])
def test_a_job_runs_as_often_whether_it_errs_or_kills_its_worker(
    store: Store, clock: Clock, how: str
) -> None:
    """Three attempts are three executions, by errors, by crashes, or by turns."""
    [id] = add(store, clock, max_attempts=3)
    assert executions_until_failed(store, clock, id, how) == 3
    seen = store.get(id)
    assert (seen.attempts, seen.max_attempts) == (3, 3)


@statement(30)
@rule("one-comparison")
@pytest.mark.parametrize("max_attempts", [1, 2, 5])
def test_the_last_attempt_is_the_same_one_on_both_paths(
    store: Store, clock: Clock, max_attempts: int
) -> None:
    """One short of the limit both paths try again; at the limit both end the job. The comparison
    is one function.

    Seen failing with a comparison of its own on the crash path: the job that errs had failed while
    the one that kills its worker stood in line once more.
    """
    ids = {how: add(store, clock, max_attempts=max_attempts)[0] for how in ("error", "crash")}
    for attempt in range(max_attempts):
        by_id = {job.id: job for job in claim_jobs(store, clock, most=1) + claim_jobs(store, clock)}
        erring, crashing = by_id[ids["error"]], by_id[ids["crash"]]
        store.extend("w1", {crashing.lease_id: [crashing.id]}, now=clock.now)
        store.settle("w1", [retry(erring, ERROR, 0.0)], now=clock.now)
        expire(store, clock)
        states = {store.get(id).state for id in ids.values()}
        last = is_last_attempt(attempt, max_attempts)
        assert (attempt, states) == (attempt, {State.FAILED if last else State.QUEUED})
    assert {store.get(id).attempts for id in ids.values()} == {max_attempts}


@statement(31)
@defect("B-3", "C-15")
def test_crashes_are_counted_on_the_job_and_survive_restarts(open_shared: Opener) -> None:
    """Each crash is met by a process that knows nothing of the ones before; the bound holds."""
    store = open_shared()
    clock = Clock()
    [id] = add(store, clock, max_attempts=4)
    for crash in range(1, 5):
        store = open_shared()
        claim_one(store, clock)
        expire(store, clock)
        assert store.get(id).crashes == crash
    assert open_shared().get(id).state is State.FAILED


@statement(32)
def test_a_job_out_of_attempts_is_parked_with_its_reason_and_the_time_it_failed(
    store: Store, clock: Clock
) -> None:
    """Whether the last attempt erred or was lost, the record says when, why and with what error."""
    created = clock.now
    erred, lost = add(store, clock, 2, max_attempts=1)
    [first] = claim_jobs(store, clock, most=1)
    claim_jobs(store, clock)
    clock.advance(5)
    store.settle("w1", [retry(first, ERROR, 9.0, reason="timeout")], now=clock.now)
    expire(store, clock)
    seen = store.get(erred)
    assert (seen.state, seen.reason, seen.error) == (State.FAILED, "timeout", ERROR.decode())
    assert (seen.created_at, seen.finished_at) == (created, created + timedelta(seconds=5))
    seen = store.get(lost)
    assert (seen.state, seen.reason) == (State.FAILED, "lease lost")
    assert seen.error is not None
    assert "LeaseLost" in seen.error
    assert seen.finished_at == clock.now


@statement(34)
@defect("C-17")
@pytest.mark.parametrize("attempts", [0, 1, 31, 63, 64, 1_000, MAX_ATTEMPTS_LIMIT, 10**400])
def test_the_wait_before_a_retry_is_bounded_at_any_number_of_attempts(attempts: int) -> None:
    """No overflow and no jitter beyond the cap, for numbers that no job will ever reach."""
    for policy, most in (
        (Exponential(), 3600.0),
        (Exponential(base_seconds=1e6, factor=1e300, cap_seconds=7.0), 7.0),
        (Fixed(2.0), 2.0),
        (Delays((1.0, 3.0)), 3.0),
    ):
        for luck in (0.0, 0.5, 1.0):
            assert 0.0 <= delay_seconds(policy, attempts, lambda luck=luck: luck) <= most  # type: ignore[misc]


@statement(36)
def test_a_retry_changes_state_due_time_and_ticket_together(
    store: Store, clock: Clock, database: Database
) -> None:
    """At any time the job has one ticket: in `due` while it waits, in `ready` once it is due. Only
    promotion moves it, and the token says that it is a new attempt."""
    job = running(store, clock)

    def tickets() -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
        return (
            database.rows("select job_id, token from tenure.ready"),
            database.rows("select job_id, token from tenure.due"),
        )

    assert tickets() == ([], [])
    store.settle("w1", [retry(job, ERROR, 10.0)], now=clock.now)
    seen = store.get(job.id)
    assert (seen.state, seen.due_at) == (State.SCHEDULED, clock.now + timedelta(seconds=10))
    assert tickets() == ([], [(job.id, 2)])
    clock.advance(10)
    assert claim_jobs(store, clock) == []
    assert store.promote(now=clock.now) == 1
    assert tickets() == ([(job.id, 2)], [])
    assert store.get(job.id).state is State.QUEUED
    assert claim_one(store, clock).token == 2
    assert tickets() == ([], [])


def test_an_error_marked_final_uses_no_further_attempt(store: Store, clock: Clock) -> None:
    """`fail` ends the job though four attempts are left, and charges the one that it ended."""
    job = running(store, clock)
    store.settle("w1", [fail(job, ERROR)], now=clock.now)
    seen = store.get(job.id)
    assert (seen.state, seen.attempts, seen.max_attempts) == (State.FAILED, 1, 5)


def test_a_retry_stands_at_the_end_of_its_line(store: Store, clock: Clock) -> None:
    """A failing job does not keep its place, so it cannot be tried in a tight loop ahead of all."""
    store.enqueue(new_jobs(3), now=clock.now)
    [first] = claim_jobs(store, clock, most=1)
    store.settle("w1", [retry(first, ERROR, 0.0)], now=clock.now)
    [lease] = store.claim("w1", {"default": 10}, now=clock.now)
    assert [job.id for job in lease.jobs][-1] == first.id
