"""Steps: fenced like a settlement, kept for later attempts, bounded, gone with their job."""

from __future__ import annotations

import msgspec
import pytest

from tenure.errors import (
    InvalidInput,
    InvalidName,
    JobNotFound,
    PayloadInvalid,
    PayloadTooLarge,
    StepConflict,
    TooManySteps,
)
from tenure.rules.claim import Claimed
from tenure.rules.codec import MAX_BYTES, encode
from tenure.rules.job import Feature, Json, NewStep, Step
from tenure.rules.lifecycle import abort, fail, release, retry, skip, snooze, succeed
from tenure.rules.limits import MAX_STEP_BYTES, MAX_STEPS
from tenure.store import LANDED, STALE, Store
from tests.support.plain import Plain
from tests.support.rules import rule
from tests.support.stores import Clock
from tests.support.work import ERROR, add, run, settle, take_one


def step(name: str = "fetch", result: object = 1, function: str = "fetch") -> NewStep:
    return NewStep(name, function, encode(result))


def taken(store: Store, clock: Clock) -> Claimed:
    add(store, clock.now)
    return take_one(store, clock.now)


def names(store: Store, id: int) -> list[str]:
    return [found.name for found in store.steps(id)]


def test_a_job_without_steps_has_none(store: Store, clock: Clock) -> None:
    assert store.steps(add(store, clock.now)) == []
    with pytest.raises(JobNotFound):
        store.steps(999)


def test_steps_are_kept_in_the_order_in_which_they_were_taken(store: Store, clock: Clock) -> None:
    job = taken(store, clock)
    assert store.record_step("w1", job, step("zebra", {"a": [1]}), now=clock.advance(1)) == LANDED
    first = clock.now
    assert store.record_step("w1", job, step("ant", None, "f"), now=clock.advance(1)) == LANDED
    assert store.steps(job.id) == [
        Step("zebra", "fetch", 1, first, '{"a":[1]}'),
        Step("ant", "f", 1, clock.now, "null"),
    ]


def test_the_next_attempt_is_told_that_there_are_steps(store: Store, clock: Clock) -> None:
    """By the flag on the job's row: one that has none is never looked at."""
    job = taken(store, clock)
    assert not job.features & Feature.STEPS
    store.record_step("w1", job, step(), now=clock.now)
    settle(store, clock.now, retry(job, ERROR, 0))
    again = take_one(store, clock.now, worker="w2")
    assert again.features & Feature.STEPS
    assert names(store, job.id) == ["fetch"]


@pytest.mark.parametrize(
    "end", [lambda job: retry(job, ERROR, 0), release, lambda job: snooze(job, 0)],
    ids=["retry", "release", "snooze"],
)  # fmt: skip
def test_steps_of_all_attempts_stay(store: Store, clock: Clock, end: object) -> None:
    assert callable(end)
    job = taken(store, clock)
    store.record_step("w1", job, step("one"), now=clock.now)
    settle(store, clock.now, end(job))
    again = take_one(store, clock.advance(1))
    store.record_step("w1", again, step("two"), now=clock.now)
    assert [(found.name, found.token) for found in store.steps(job.id)] == [("one", 1), ("two", 2)]


def test_a_crash_keeps_them(store: Store, clock: Clock) -> None:
    job = taken(store, clock)
    store.record_step("w1", job, step(), now=clock.now)
    store.sweep(now=clock.advance(31))
    assert take_one(store, clock.now).features & Feature.STEPS
    assert names(store, job.id) == ["fetch"]


def test_after_the_deadline_a_step_lands_until_somebody_sweeps(store: Store, clock: Clock) -> None:
    job = taken(store, clock)
    assert store.record_step("w1", job, step("late"), now=clock.advance(31)) == LANDED
    store.sweep(now=clock.now)
    assert store.record_step("w1", job, step("too late"), now=clock.now) == STALE
    assert names(store, job.id) == ["late"]


def test_a_finished_job_takes_no_more_steps(store: Store, clock: Clock) -> None:
    job = taken(store, clock)
    store.settle("w1", [succeed(job)], now=clock.now)
    assert store.record_step("w1", job, step(), now=clock.now) == STALE
    assert store.steps(job.id) == []


def test_the_same_again_changes_nothing(store: Store, plain: Plain, clock: Clock) -> None:
    """So may a repeat after a COMMIT that got no answer."""
    job = taken(store, clock)
    store.record_step("w1", job, step(), now=clock.now)
    before = plain.everything()
    assert store.record_step("w1", job, step(), now=clock.advance(5)) == LANDED
    assert plain.everything() == before


@rule("step-once")
@pytest.mark.parametrize("other", [step(result=2), step(function="other")], ids=["result", "fn"])
def test_a_name_stands_for_one_step(
    store: Store, plain: Plain, clock: Clock, other: NewStep
) -> None:
    """Seen failing with the row overwritten: two attempts went on with two results."""
    job = taken(store, clock)
    store.record_step("w1", job, step(), now=clock.now)
    before = plain.everything()
    with pytest.raises(StepConflict, match=r"another step 'fetch' already; give each step"):
        store.record_step("w1", job, other, now=clock.now)
    assert plain.everything() == before


def test_a_later_attempt_does_not_record_a_step_twice(store: Store, clock: Clock) -> None:
    job = taken(store, clock)
    store.record_step("w1", job, step(), now=clock.now)
    settle(store, clock.now, retry(job, ERROR, 0))
    again = take_one(store, clock.now)
    with pytest.raises(StepConflict):
        store.record_step("w1", again, step(), now=clock.now)


def test_other_jobs_have_steps_of_the_same_name(store: Store, clock: Clock) -> None:
    one, two = taken(store, clock), taken(store, clock)
    for job in (one, two):
        assert store.record_step("w1", job, step(result=job.id), now=clock.now) == LANDED
    assert [store.steps(job.id)[0].result_json for job in (one, two)] == [str(one.id), str(two.id)]


def test_a_job_has_so_many_steps_and_not_one_more(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.store.jobs.steps.MAX_STEPS", 3)
    job = taken(store, clock)
    for n in range(3):
        assert store.record_step("w1", job, step(f"page {n}"), now=clock.now) == LANDED
    with pytest.raises(TooManySteps, match=r"'page 3' is one too many .* Use larger steps"):
        store.record_step("w1", job, step("page 3"), now=clock.now)
    assert store.record_step("w1", job, step("page 2"), now=clock.now) == LANDED, "a repeat"
    assert len(store.steps(job.id)) == 3


def test_the_schema_knows_the_limit_too(store: Store, plain: Plain, clock: Clock) -> None:
    job = taken(store, clock)
    store.record_step("w1", job, step(), now=clock.now)
    plain.rows(f"update tenure.step set n = {MAX_STEPS}")
    with pytest.raises(Exception, match=r"(?i)check"):
        plain.rows(f"update tenure.step set n = {MAX_STEPS + 1}")


def test_one_result_has_a_size(store: Store, clock: Clock) -> None:
    job = taken(store, clock)
    fits = step("fits", "x" * (MAX_BYTES - 2))
    assert store.record_step("w1", job, fits, now=clock.now) == LANDED
    large = NewStep("large", "f", encode("x" * (MAX_BYTES - 1), max_bytes=2 * MAX_BYTES))
    with pytest.raises(PayloadTooLarge, match=r"1,048,577 bytes .* return a reference"):
        store.record_step("w1", job, large, now=clock.now)
    assert names(store, job.id) == ["fits"]


def test_all_results_together_have_a_size(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.store.jobs.steps.MAX_STEP_BYTES", 1000)
    job = taken(store, clock)
    store.record_step("w1", job, step("one", "é" * 299), now=clock.now)  # of 600 bytes
    with pytest.raises(TooManySteps, match="return references to large data"):
        store.record_step("w1", job, step("two", "x" * 399), now=clock.now)
    assert store.record_step("w1", job, step("two", "x" * 398), now=clock.now) == LANDED
    assert MAX_STEP_BYTES >= 16 * MAX_BYTES


@pytest.mark.parametrize(
    ("name", "function", "result", "error"),
    [
        ("", "f", b"1", InvalidName),
        ("a\nb", "f", b"1", InvalidName),
        ("x" * 201, "f", b"1", InvalidName),
        ("a", "f\0", b"1", InvalidName),
        ("a", "f", b"{", PayloadInvalid),
        ("a", "f", "1", InvalidInput),
    ],
)
def test_what_cannot_be_a_step_is_refused(
    name: str, function: str, result: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        NewStep(name, function, Json(result))


def test_names_are_told_apart_to_the_letter(store: Store, clock: Clock) -> None:
    job = taken(store, clock)
    for name in ("a", "A", "a ", "ä", "步"):
        assert store.record_step("w1", job, step(name), now=clock.now) == LANDED
    assert names(store, job.id) == ["a", "A", "a ", "ä", "步"]


def test_a_job_that_succeeded_keeps_its_steps_to_look_at(store: Store, clock: Clock) -> None:
    job = taken(store, clock)
    store.record_step("w1", job, step(), now=clock.now)
    settle(store, clock.now, succeed(job))
    assert names(store, job.id) == ["fetch"]


@pytest.mark.parametrize(
    "end", [lambda job: fail(job, ERROR), abort, skip], ids=["failed", "cancelled", "skipped"]
)
def test_a_replay_goes_on_where_the_job_stopped(store: Store, clock: Clock, end: object) -> None:
    assert callable(end)
    job = taken(store, clock)
    store.record_step("w1", job, step(), now=clock.now)
    store.save_checkpoint("w1", job, encode(7), now=clock.now)
    settle(store, clock.now, end(job))
    assert store.replay(job.id, now=clock.now)
    again = take_one(store, clock.now)
    assert again.features & Feature.STEPS
    assert names(store, job.id) == ["fetch"]
    assert store.progress(job.id).checkpoint_json == "7"


def test_a_replay_afresh_forgets_steps_and_checkpoint(store: Store, clock: Clock) -> None:
    job = taken(store, clock)
    store.record_step("w1", job, step(), now=clock.now)
    store.save_checkpoint("w1", job, encode(7), now=clock.now)
    settle(store, clock.now, fail(job, ERROR))
    assert store.replay(job.id, afresh=True, now=clock.now)
    again = take_one(store, clock.now)
    assert store.steps(job.id) == []
    assert store.progress(job.id).checkpoint is None
    assert store.record_step("w1", again, step(), now=clock.now) == LANDED


def test_a_replay_after_success_begins_anew(store: Store, clock: Clock) -> None:
    """Else it would find everything done, and do nothing."""
    job = taken(store, clock)
    store.record_step("w1", job, step(), now=clock.now)
    settle(store, clock.now, succeed(job))
    store.replay(job.id, now=clock.now)
    assert store.steps(job.id) == []


def test_a_refused_replay_forgets_nothing(store: Store, clock: Clock) -> None:
    job = taken(store, clock)
    store.record_step("w1", job, step(), now=clock.now)
    assert not store.replay(job.id, afresh=True, now=clock.now), "it is live"
    assert names(store, job.id) == ["fetch"]


def test_they_go_when_the_job_is_deleted(store: Store, plain: Plain, clock: Clock) -> None:
    job, other = taken(store, clock), taken(store, clock)
    for each in (job, other):
        store.record_step("w1", each, step(), now=clock.now)
    settle(store, clock.now, succeed(job))
    store.delete(job.id, now=clock.now)
    assert plain.table("step", ["job_id"]) == [(other.id,)]


def test_they_go_when_the_job_is_pruned(store: Store, plain: Plain, clock: Clock) -> None:
    job, other = taken(store, clock), taken(store, clock)
    for each in (job, other):
        store.record_step("w1", each, step(), now=clock.now)
    settle(store, clock.now, fail(job, ERROR))
    store.prune(now=clock.advance(31 * 86_400))
    assert plain.table("step", ["job_id"]) == [(other.id,)]


def test_the_timeline_tells_of_them(store: Store, clock: Clock) -> None:
    job = taken(store, clock)
    store.record_step("w1", job, step("one"), now=clock.advance(1))
    settle(store, clock.advance(1), retry(job, ERROR, 0))
    again = take_one(store, clock.advance(1))
    store.record_step("w1", again, step("two"), now=clock.advance(1))
    settle(store, clock.advance(1), succeed(again))
    told = [(event.kind, event.token, event.detail) for event in store.timeline(job.id)]
    assert [kind for kind, _, _ in told] == [
        "enqueued", "claimed", "step", "retried", "claimed", "step", "succeeded",
    ]  # fmt: skip
    assert [(token, name) for kind, token, name in told if kind == "step"] == [
        (1, "one"), (2, "two"),
    ]  # fmt: skip


def test_a_tenant_sees_the_steps_of_its_own_jobs(store: Store, clock: Clock) -> None:
    add(store, clock.now, tenant="acme")
    job = take_one(store, clock.now)
    store.record_step("w1", job, step(), now=clock.now)
    assert names(store.for_tenant("acme"), job.id) == ["fetch"]
    with pytest.raises(JobNotFound):
        store.for_tenant("umbrella").steps(job.id)


def test_a_job_without_steps_writes_none_of_this(store: Store, plain: Plain, clock: Clock) -> None:
    add(store, clock.now)
    assert run(store, clock.now, succeed).result is None
    assert plain.table("step") == []
    assert plain.one("select features from tenure.history") == 0


def test_a_step_that_was_taken_apart_is_the_same(store: Store, clock: Clock) -> None:
    """JSON is kept to the letter: what was recorded is compared by its text."""
    job = taken(store, clock)
    odd = NewStep("odd", "f", Json(b'{"b": 1.0,  "a": [1e2, "\\u00e9"]}'))
    assert store.record_step("w1", job, odd, now=clock.now) == LANDED
    assert store.record_step("w1", job, odd, now=clock.now) == LANDED
    assert store.steps(job.id)[0].result_json == odd.result.decode()
    assert msgspec.json.decode(store.steps(job.id)[0].result_json) == {"b": 1.0, "a": [100.0, "é"]}
