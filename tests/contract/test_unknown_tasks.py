"""Jobs whose task no worker has: one entry in the timeline, and an end."""

from __future__ import annotations

import pytest

from tenure.errors import OutOfRange
from tenure.rules.job import State
from tenure.rules.lifecycle import release, retry, succeed, unknown_task
from tenure.store import Store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, add, running, settle, take_one

WEEK_SECONDS = 7 * 86_400.0


def put_back(store: Store, clock: Clock, give_up_seconds: float = WEEK_SECONDS) -> None:
    store.promote(now=clock.now)
    claimed = take_one(store, clock.now)
    [answer] = settle(store, clock.now, unknown_task(claimed, 60, give_up_seconds))
    assert answer.landed


def kinds(plain: Plain) -> list[str]:
    return [row[0] for row in plain.rows("select kind from tenure.event order by seq")]


def test_all_tries_are_one_event(store: Store, plain: Plain, clock: Clock) -> None:
    id = add(store, clock.now)
    began = clock.now
    for _ in range(5):
        put_back(store, clock)
        clock.advance(60)
    assert kinds(plain) == ["unknown_task"]
    [event] = [e for e in store.timeline(id, now=clock.now) if e.kind == "unknown_task"]
    assert (event.at, event.worker, event.token) == (began, "w1", 5)
    assert '"tries":5' in (event.detail or "").replace(" ", "")
    job = store.get(id)
    assert (job.state, job.attempts, job.reason) == (State.SCHEDULED, 0, "no handler")


def test_after_a_week_the_job_fails(store: Store, plain: Plain, clock: Clock) -> None:
    id = add(store, clock.now)
    put_back(store, clock)
    clock.advance(WEEK_SECONDS - 1)
    put_back(store, clock)
    assert store.get(id).state is State.SCHEDULED
    clock.advance(60)
    put_back(store, clock)
    job = store.get(id)
    assert (job.state, job.attempts, job.reason) == (State.FAILED, 0, "no worker has its task")
    assert job.error is not None
    assert job.error.type == "UnknownTask"
    assert kinds(plain) == ["unknown_task"]


def test_only_the_try_that_ends_the_job_is_an_attempt(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    for _ in range(2):
        put_back(store, clock)
        clock.advance(60)
    assert store.attempts(id) == []
    store.promote(now=clock.now)
    settle(store, clock.now, retry(take_one(store, clock.now), ERROR, 0))
    put_back(store, clock)
    clock.advance(WEEK_SECONDS)
    put_back(store, clock)
    first, last = store.attempts(id)
    assert (first.number, first.outcome, first.charged) == (1, "retried", True)
    assert (last.number, last.outcome, last.charged) == (2, "failed", False)
    assert last.error is not None
    assert last.error.type == "UnknownTask"
    store.replay(id, now=clock.now)
    assert [each.outcome for each in store.attempts(id)] == ["retried", "failed"]


def test_a_job_that_starts_at_most_once_is_put_back_before_its_start(
    store: Store, clock: Clock
) -> None:
    id = add(store, clock.now, at_most_once=True)
    put_back(store, clock)
    assert store.get(id).state is State.SCHEDULED
    store.promote(now=clock.advance(60))
    claimed = take_one(store, clock.now)
    assert store.start_once("w1", claimed, now=clock.now).landed
    settle(store, clock.now, unknown_task(claimed, 60, WEEK_SECONDS))
    job = store.get(id)
    assert (job.state, job.attempts) == (State.FAILED, 1)
    assert job.error is not None
    assert job.error.type == "NotRunAgain"


def test_a_job_that_a_worker_knew_meanwhile_waits_anew(
    store: Store, plain: Plain, clock: Clock
) -> None:
    id = add(store, clock.now)
    put_back(store, clock)
    store.promote(now=clock.advance(60))
    settle(store, clock.now, retry(take_one(store, clock.now), ERROR, 0))
    clock.advance(WEEK_SECONDS)
    put_back(store, clock)
    assert store.get(id).state is State.SCHEDULED
    assert kinds(plain) == ["unknown_task", "retried", "unknown_task"]


def test_a_job_that_was_enqueued_long_ago_is_not_old(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    clock.advance(10 * WEEK_SECONDS)
    put_back(store, clock)
    assert store.get(id).state is State.SCHEDULED


def test_a_cancelled_job_ends_at_once(store: Store, clock: Clock) -> None:
    claimed = running(store, clock.now)
    store.cancel(claimed.id, now=clock.now)
    settle(store, clock.now, unknown_task(claimed, 60, WEEK_SECONDS))
    assert store.get(claimed.id).state is State.CANCELLED


def test_many_go_back_together_and_others_with_them(
    store: Store, plain: Plain, clock: Clock
) -> None:
    ids = [add(store, clock.now) for _ in range(4)]
    for _ in range(3):
        store.promote(now=clock.now)
        claimed = [take_one(store, clock.now) for _ in ids]
        claimed.sort(key=lambda job: job.id)
        settlements = [unknown_task(each, 60, WEEK_SECONDS) for each in claimed[:3]]
        answers = settle(store, clock.now, *settlements, release(claimed[3]))
        assert all(answer.landed for answer in answers)
        clock.advance(60)
    assert sorted(kinds(plain)) == ["released"] * 3 + ["unknown_task"] * 3
    store.promote(now=clock.now)
    settle(store, clock.now, *(succeed(take_one(store, clock.now)) for _ in ids))
    assert {store.get(id).state for id in ids} == {State.SUCCEEDED}


def test_a_repeated_settlement_is_known_again(store: Store, clock: Clock) -> None:
    claimed = running(store, clock.now)
    settlement = unknown_task(claimed, 0, WEEK_SECONDS)
    for _ in range(2):
        assert store.settle("w1", [settlement], now=clock.now)[0].landed
    again = take_one(store, clock.now)
    assert store.settle("w1", [unknown_task(again, 0, 5)], now=clock.now)[0].landed
    assert store.settle("w1", [unknown_task(again, 0, 5)], now=clock.now)[0].landed
    assert store.get(claimed.id).token == 3


def test_a_late_repeat_does_not_hide_another_end(store: Store, plain: Plain, clock: Clock) -> None:
    """A worker sends an old try once more, together with the end of its next attempt."""
    first = running(store, clock.now)
    late = unknown_task(first, 0, WEEK_SECONDS)
    settle(store, clock.now, late)
    answers = settle(store, clock.now, late, retry(take_one(store, clock.now), ERROR, 0))
    assert [answer.landed for answer in answers] == [True, True]
    assert kinds(plain) == ["unknown_task", "retried"]
    assert [each.outcome for each in store.attempts(first.id)] == ["retried"]


def test_a_time_that_is_none_is_refused(store: Store, clock: Clock) -> None:
    claimed = running(store, clock.now)
    with pytest.raises(OutOfRange, match="give_up_seconds"):
        unknown_task(claimed, 0, -1)
    assert store.get(claimed.id).state is State.RUNNING
