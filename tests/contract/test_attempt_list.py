"""Every attempt of a job in one call: where, when, how it ended, and what it told."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.errors import AttemptTimedOut, JobNotFound
from tenure.rules.attempts import Attempt, AttemptOutcome
from tenure.rules.codec import encode_error
from tenure.rules.lifecycle import abort, fail, release, retry, skip, snooze, succeed
from tenure.store import Store
from tests.support.stores import Clock
from tests.support.work import ERROR, add, add_many, expire, run, settle, take, take_one

TIMED_OUT = encode_error(AttemptTimedOut("stopped after 5 s"))


def told(attempts: list[Attempt]) -> list[tuple[Any, ...]]:
    return [(a.number, a.token, a.worker, str(a.outcome), a.charged) for a in attempts]


def test_a_job_that_was_never_claimed_has_no_attempts(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    assert store.attempts(id) == []
    store.cancel(id, now=clock.now)
    assert store.attempts(id) == []
    with pytest.raises(JobNotFound):
        store.attempts(999)


def test_a_running_attempt_is_listed(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.advance(1))
    store.annotate("w1", [(job, {"loss": 0.5})], now=clock.now)
    [attempt] = store.attempts(id, now=clock.now)
    assert told([attempt]) == [(1, 1, "w1", "running", None)]
    assert (attempt.started_at, attempt.ended_at) == (clock.now, None)
    assert (attempt.duration_seconds, attempt.error) == (None, None)
    assert attempt.notes == {"loss": 0.5}


def test_every_attempt_of_a_long_life_is_listed(store: Store, clock: Clock) -> None:
    """Crashed ones have their worker, their start, and the time at which the job was taken back."""
    id = add(store, clock.now, max_attempts=10)
    starts: list[Any] = []
    ends: list[Any] = []

    def begin(worker: str) -> Any:
        job = take_one(store, clock.advance(1), worker=worker)
        starts.append(clock.now)
        store.annotate(worker, [(job, {"by": worker})], now=clock.now)
        return job

    def end(settlement: Any, worker: str) -> None:
        settle(store, clock.advance(3), settlement, worker=worker)
        ends.append(clock.now)

    end(retry(begin("w1"), ERROR, 0, "boom", 2.5), "w1")
    end(snooze(begin("w2"), 0, "later", 1.5), "w2")
    end(release(begin("w3")), "w3")
    begin("w4")
    expire(store, clock)
    ends.append(clock.now)
    end(retry(begin("w5"), TIMED_OUT, 0, "timeout", 5.0), "w5")
    end(succeed(begin("w6"), None, 0.25), "w6")
    store.replay(id, now=clock.advance(1))
    end(fail(begin("w7"), ERROR, "no", 0.5), "w7")
    store.replay(id, now=clock.advance(1))
    end(skip(begin("w8"), "nothing"), "w8")
    store.replay_many([id], now=clock.advance(1))
    end(abort(begin("w9"), "stop"), "w9")
    attempts = store.attempts(id)
    assert told(attempts) == [
        (1, 1, "w1", "retried", True),
        (2, 2, "w2", "snoozed", False),
        (3, 3, "w3", "released", False),
        (4, 4, "w4", "crashed", True),
        (5, 5, "w5", "timed out", True),
        (6, 6, "w6", "succeeded", True),
        (7, 7, "w7", "failed", True),
        (8, 8, "w8", "skipped", True),
        (9, 9, "w9", "cancelled", False),
    ]
    assert [attempt.started_at for attempt in attempts] == starts
    assert [attempt.ended_at for attempt in attempts] == ends
    assert [a.duration_seconds for a in attempts] == [
        2.5, 1.5, None, None, 5.0, 0.25, 0.5, None, None
    ]  # fmt: skip
    assert [a.error.type if a.error else None for a in attempts] == [
        "ValueError", None, None, "LeaseLost", "tenure.errors.AttemptTimedOut", None, "ValueError",
        None, None,
    ]  # fmt: skip
    assert [a.reason for a in attempts] == [
        "boom", "later", "shutdown", "lease lost", "timeout", None, "no", "nothing", "stop"
    ]  # fmt: skip
    assert [a.notes for a in attempts] == [{"by": f"w{n}"} for n in range(1, 10)]
    assert [str(error) for a in attempts[:1] if (error := a.error)] == ["ValueError: no"]


def test_the_last_crash_is_one_attempt_not_two(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, max_attempts=1)
    take_one(store, clock.advance(1))
    expire(store, clock)
    [attempt] = store.attempts(id)
    assert told([attempt]) == [(1, 1, "w1", "crashed", True)]
    assert attempt.ended_at == clock.now
    store.replay(id, now=clock.advance(1))
    run(store, clock.advance(1), succeed)
    assert told(store.attempts(id)) == [
        (1, 1, "w1", "crashed", True), (2, 2, "w1", "succeeded", True)
    ]  # fmt: skip


def test_a_crash_that_is_not_charged_says_so(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 2)
    take(store, clock.now)
    expire(store, clock)
    for id in ids:
        assert told(store.attempts(id)) == [(1, 1, "w1", "crashed", False)]


def test_a_cancelled_attempt_is_charged_if_it_failed(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    store.cancel(id, now=clock.now)
    settle(store, clock.now, retry(job, ERROR, 0))
    assert told(store.attempts(id)) == [(1, 1, "w1", "cancelled", True)]


def test_the_error_of_an_earlier_attempt_is_not_that_of_a_later_one(
    store: Store, clock: Clock
) -> None:
    id = add(store, clock.now)
    run(store, clock.now, lambda job: retry(job, ERROR, 0))
    run(store, clock.now, skip)
    first, second = store.attempts(id)
    assert (first.error is None, second.error) == (False, None)
    assert second.outcome is AttemptOutcome.SKIPPED


def test_a_tenant_sees_the_attempts_of_its_own_jobs(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, tenant="acme")
    run(store, clock.now, succeed)
    assert len(store.for_tenant("acme").attempts(id)) == 1
    with pytest.raises(JobNotFound):
        store.for_tenant("other").attempts(id)


def test_an_attempt_is_plain_json(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    run(store, clock.now, lambda job: fail(job, ERROR))
    [attempt] = store.attempts(id)
    shown = attempt.as_dict()
    assert (shown["outcome"], shown["notes"], shown["error"]["type"]) == (
        "failed",
        {},
        "ValueError",
    )
