"""The story of a job: every kind of event, in order, with worker, token and reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenure.rules.codec import encode
from tenure.rules.job import Event
from tenure.rules.lifecycle import abort, fail, release, retry, skip, snooze, succeed
from tenure.store import Store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, add, run, settle, take_one


def kinds(store: Store, id: int) -> list[str]:
    return [event.kind for event in store.timeline(id)]


def detail(event: Event) -> Any:
    assert event.detail is not None
    return json.loads(event.detail)


def test_the_happy_path_writes_no_event(store: Store, plain: Plain, clock: Clock) -> None:
    enqueued = clock.now
    id = add(store, clock.now)
    claimed = clock.advance(1)
    job = take_one(store, claimed)
    finished = clock.advance(1)
    settle(store, finished, succeed(job))
    assert store.timeline(id) == [
        Event(enqueued, "enqueued", 1),
        Event(claimed, "claimed", 1, "w1"),
        Event(finished, "succeeded", 1, "w1"),
    ]
    assert plain.table("event") == []


def test_a_running_job_has_been_claimed(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    take_one(store, clock.advance(1), worker="w7")
    assert store.timeline(id)[-1] == Event(clock.now, "claimed", 1, "w7")


def test_a_long_story_is_told_in_order(store: Store, clock: Clock) -> None:
    """Every attempt with its worker and its token, every reason, every operator's action."""
    id = add(store, clock.now)
    step = clock.advance
    run(store, step(1), lambda job: retry(job, ERROR, 5, "boom", 0.5), worker="w1")
    store.promote(now=step(5))
    run(store, step(1), lambda job: snooze(job, 5, "rate limit"), worker="w2")
    store.promote(now=step(5))
    run(store, step(1), lambda job: release(job, "shutdown"), worker="w3")
    store.hold(id, reason="look", now=step(1))
    store.unhold(id, now=step(1))
    store.move(id, queue="other", priority=2, now=step(1))
    take_one(store, step(1), worker="w4", queue="other")
    store.sweep(now=step(60))
    job = take_one(store, step(1), worker="w5", queue="other")
    store.cancel(id, reason="enough", now=step(1))
    settle(store, step(1), abort(job, "stopped"), worker="w5")
    store.replay(id, now=step(1))
    run(store, step(1), succeed, worker="w6", queue="other")
    story = store.timeline(id)
    assert [event.at for event in story] == sorted(event.at for event in story)
    assert [(event.kind, event.token, event.worker) for event in story] == [
        ("enqueued", 1, None),
        ("claimed", 1, "w1"),
        ("retried", 1, "w1"),
        ("claimed", 2, "w2"),
        ("snoozed", 2, "w2"),
        ("claimed", 3, "w3"),
        ("released", 3, "w3"),
        ("held", 4, None),
        ("unheld", 4, None),
        ("moved", 5, None),
        ("claimed", 6, "w4"),
        ("crashed", 6, "w4"),
        ("claimed", 7, "w5"),
        ("cancel requested", 7, None),
        ("cancelled", 7, "w5"),
        ("replayed", 8, None),
        ("claimed", 8, "w6"),
        ("succeeded", 8, "w6"),
    ]
    told = {event.kind: event for event in story if event.detail}
    assert detail(told["retried"])["reason"] == "boom"
    assert detail(told["retried"])["error"] == json.loads(ERROR)
    assert detail(told["retried"])["delay_seconds"] == 5
    assert detail(told["retried"])["duration_seconds"] == 0.5
    assert detail(told["snoozed"])["reason"] == "rate limit"
    assert detail(told["released"])["reason"] == "shutdown"
    assert detail(told["held"])["reason"] == "look"
    assert (detail(told["moved"])["queue"], detail(told["moved"])["priority"]) == ("other", 2)
    assert detail(told["crashed"])["charged"] is True
    assert detail(told["cancel requested"])["reason"] == "enough"
    assert detail(told["cancelled"])["reason"] == "stopped"


def test_progress_belongs_to_the_attempt_that_reported_it(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    first = take_one(store, clock.advance(1), worker="w1")
    store.report_progress("w1", [(first, 0.5, "half")], now=clock.advance(1))
    reported = clock.now
    settle(store, clock.advance(1), retry(first, ERROR, 0, "boom"), worker="w1")
    second = take_one(store, clock.advance(1), worker="w2")
    store.save_checkpoint("w2", second, encode(1), now=clock.advance(1))
    [told] = [event for event in store.timeline(id) if event.kind == "progressed"]
    assert told == Event(reported, "progressed", 1, "w1", "half")


@pytest.mark.parametrize(
    ("end", "last"),
    [
        (lambda job: fail(job, ERROR, "bad"), ("failed", "bad")),
        (lambda job: retry(job, ERROR, 0, "boom"), ("failed", "boom")),
        (lambda job: skip(job, "nothing"), ("skipped", "nothing")),
        (lambda job: abort(job, "stop"), ("cancelled", "stop")),
    ],
    ids=["fail", "last retry", "skip", "abort"],
)
def test_an_end_that_is_no_success_has_its_reason(
    store: Store, clock: Clock, end: Any, last: tuple[str, str]
) -> None:
    id = add(store, clock.now, max_attempts=1)
    run(store, clock.advance(1), end)
    assert kinds(store, id) == ["enqueued", "claimed", last[0]]
    event = store.timeline(id)[-1]
    assert (event.kind, event.detail, event.worker) == (*last, "w1")


def test_a_lost_job_that_fails_crashed_first(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, max_attempts=1)
    take_one(store, clock.advance(1))
    store.sweep(now=clock.advance(60))
    assert kinds(store, id) == ["enqueued", "claimed", "crashed", "failed"]
    assert store.timeline(id)[-1].detail == "lease lost"


def test_a_child_is_freed_or_skipped(store: Store, clock: Clock) -> None:
    parent = add(store, clock.now)
    freed = add(store, clock.now, parents=(parent,))
    run(store, clock.advance(1), succeed)
    assert kinds(store, freed) == ["enqueued", "freed"]
    skipped = add(store, clock.now, parents=(freed,))
    store.cancel(freed, now=clock.advance(1))
    assert kinds(store, freed) == ["enqueued", "freed", "cancelled"]
    assert kinds(store, skipped) == ["enqueued", "skipped"]


def test_the_last_progress_is_part_of_the_story(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.advance(1))
    store.report_progress("w1", [(job, 0.5, "half way")], now=clock.advance(1))
    assert kinds(store, id) == ["enqueued", "claimed", "progressed"]
    assert store.timeline(id)[-1].detail == "half way"


def test_an_event_is_written_with_what_it_tells_or_not_at_all(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """Same transaction: what is refused leaves no line."""
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    store.settle("w2", [retry(job, ERROR, 0), release(job)], now=clock.now)
    store.move(id, priority=3, now=clock.now)
    assert plain.table("event") == []
