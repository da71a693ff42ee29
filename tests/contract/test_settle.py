"""settle: attempts end, once per token, by the worker that holds them; all else is stale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tenure.errors import InvalidInput
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.job import Json, State, Unique
from tenure.rules.lifecycle import Settlement, abort, fail, release, retry, skip, snooze, succeed
from tenure.store import LANDED, STALE, Answer, Store
from tests.support.plain import Plain
from tests.support.rules import rule
from tests.support.stores import Clock
from tests.support.work import ERROR, add, add_many, expire, run, settle, take, take_one
from tests.support.zombies import SETTLEMENTS

End = Callable[[Claimed], Settlement]


def test_success_moves_the_job_to_history_with_all_that_is_known(
    store: Store, plain: Plain, clock: Clock
) -> None:
    id = add(store, clock.now, queue="q", priority=3, metadata=encode([1]), timeout_seconds=5)
    claimed_at = clock.advance(1)
    claimed = take_one(store, claimed_at, queue="q")
    finished_at = clock.advance(2)
    [answer] = settle(store, finished_at, succeed(claimed, encode({"n": 1}), 1.75))
    assert answer == LANDED
    done = store.get(id)
    assert (done.state, done.result_json, done.duration_seconds) == (
        State.SUCCEEDED,
        '{"n":1}',
        1.75,
    )
    assert (done.claimed_at, done.finished_at, done.worker) == (claimed_at, finished_at, "w1")
    assert (done.attempts, done.token, done.error, done.reason) == (1, 1, None, None)
    assert (done.queue, done.priority, done.metadata_json, done.timeout_seconds) == (
        "q",
        3,
        "[1]",
        5,
    )
    for table in ("job", "ready", "due", "lease", "event"):
        assert plain.table(table) == []


def test_no_result_is_stored_as_no_result(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 2)
    for result in (None, encode(None)):
        assert run(store, clock.now, lambda job, r=result: succeed(job, r)).result is None


def test_a_retry_comes_back_after_its_delay_charged(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, priority=2, retry=encode({"first": 1}))
    waiting = run(store, clock.now, lambda job: retry(job, ERROR, 10, "boom", 0.5))
    assert (waiting.state, waiting.attempts, waiting.token) == (State.SCHEDULED, 1, 2)
    assert (waiting.reason, waiting.error_json) == ("boom", ERROR.decode())
    store.promote(now=clock.advance(10))
    claimed = take_one(store, clock.now)
    assert (claimed.id, claimed.attempts, claimed.priority) == (id, 1, 2)
    assert claimed.retry == '{"first":1}'


def test_the_last_retry_fails(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, max_attempts=2)
    assert run(store, clock.now, lambda job: retry(job, ERROR, 0)).state is State.QUEUED
    failed = run(store, clock.now, lambda job: retry(job, encode("second"), 0, "again"))
    assert (failed.id, failed.state, failed.attempts) == (id, State.FAILED, 2)
    assert (failed.error_json, failed.reason, failed.worker) == ('"second"', "again", "w1")


def test_a_failure_is_final_whatever_attempts_are_left(store: Store, clock: Clock) -> None:
    add(store, clock.now, max_attempts=9)
    failed = run(store, clock.now, lambda job: fail(job, ERROR, "bad arguments", 0.25))
    assert (failed.state, failed.attempts) == (State.FAILED, 1)
    assert (failed.error_json, failed.reason) == (ERROR.decode(), "bad arguments")
    assert failed.duration_seconds == 0.25


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (lambda job: snooze(job, 60), State.SCHEDULED),
        (lambda job: snooze(job, 0), State.QUEUED),
        (release, State.QUEUED),
        (lambda job: release(job, "no handler", 5), State.SCHEDULED),
    ],
)
def test_snooze_and_release_are_not_charged(
    store: Store, clock: Clock, end: End, state: State
) -> None:
    add(store, clock.now, max_attempts=1)
    back = run(store, clock.now, end)
    assert (back.state, back.attempts, back.crashes, back.token) == (state, 0, 0, 2)
    assert back.reason in ("snoozed", "shutdown", "no handler")


def test_skip_and_abort_are_final(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 2)
    skipped = run(store, clock.now, lambda job: skip(job, "nothing to do"))
    assert (skipped.state, skipped.reason) == (State.SKIPPED, "nothing to do")
    aborted = run(store, clock.now, lambda job: abort(job, "asked to stop"))
    assert (aborted.state, aborted.reason) == (State.CANCELLED, "asked to stop")
    assert aborted.attempts == 0


@rule("flagged-retry", "flagged-release")
@pytest.mark.parametrize(
    "end",
    [lambda job: retry(job, ERROR, 0), lambda job: snooze(job, 5), release],
    ids=["retry", "snooze", "release"],
)
def test_a_job_whose_cancellation_is_requested_does_not_come_back(
    store: Store, clock: Clock, end: End
) -> None:
    """Seen failing with the request ignored: the job was queued or scheduled again after its
    cancellation."""
    id = add(store, clock.now)
    claimed = take_one(store, clock.now)
    assert store.cancel(id, now=clock.now) is State.RUNNING
    answers = settle(store, clock.now, end(claimed))
    assert answers == [Answer(True, became=State.CANCELLED)]
    assert (store.get(id).state, store.get(id).reason) == (State.CANCELLED, "cancelled")


def test_a_job_whose_cancellation_is_requested_may_still_succeed(
    store: Store, clock: Clock
) -> None:
    id = add(store, clock.now)
    claimed = take_one(store, clock.now)
    store.cancel(id, now=clock.now)
    assert settle(store, clock.now, succeed(claimed)) == [LANDED]
    assert store.get(id).state is State.SUCCEEDED


# Who may settle. How zombies are refused is shown in test_zombies.


def test_a_job_that_does_not_exist_is_stale(store: Store, clock: Clock) -> None:
    claimed = _lone_claim(store, clock)
    stranger = msgspec.structs.replace(claimed, id=claimed.id + 1000)
    assert store.settle("w1", [succeed(stranger), skip(stranger)], now=clock.now) == [STALE] * 2


def _lone_claim(store: Store, clock: Clock) -> Claimed:
    add(store, clock.now)
    return take_one(store, clock.now)


def _lone_claim_of(store: Store, clock: Clock, **options: Any) -> Claimed:
    add(store, clock.now, **options)
    return take_one(store, clock.now)


@rule("read-back", "read-back-own")
@pytest.mark.parametrize(
    "end",
    [
        succeed,
        skip,
        abort,
        release,
        lambda job: fail(job, ERROR),
        lambda job: retry(job, ERROR, 5),
        lambda job: snooze(job, 5),
    ],
    ids=["succeed", "skip", "abort", "release", "fail", "retry", "snooze"],
)
def test_a_repeat_after_an_unanswered_commit_has_landed_already(
    store: Store, plain: Plain, clock: Clock, end: End
) -> None:
    """The worker cannot know whether its COMMIT was done; the store can, and says so.

    Seen failing without the look at what is there: each repeat was stale, and the worker would
    have reported a lost lease for work that is recorded as its own; and with the worker taken out
    of the look: the repeat of another worker landed.
    """
    claimed = _lone_claim(store, clock)
    assert settle(store, clock.now, end(claimed)) == [LANDED]
    before = plain.everything()
    assert settle(store, clock.advance(1), end(claimed)) == [LANDED]
    assert settle(store, clock.now, end(claimed), worker="w2") == [STALE]
    assert plain.everything() == before


ENDS: dict[str, End] = {
    "succeed": lambda job: succeed(job, encode({"n": 1}), 0.5),
    "succeed with another result": lambda job: succeed(job, encode({"n": 1.0}), 0.5),
    "retry": lambda job: retry(job, ERROR, 5),
    "retry after another delay": lambda job: retry(job, ERROR, 6),
    "retry with another error": lambda job: retry(job, encode("other"), 5),
    "fail": lambda job: fail(job, ERROR),
    "fail with another error": lambda job: fail(job, encode("other")),
    "fail with another reason": lambda job: fail(job, ERROR, "timeout"),
    "snooze": lambda job: snooze(job, 5),
    "snooze for another reason": lambda job: snooze(job, 5, "not yet"),
    "release": release,
    "abort": abort,
    "skip": skip,
    "skip for another reason": lambda job: skip(job, "nothing there"),
}


@rule("read-back-same")
@pytest.mark.parametrize("first", ENDS)
def test_a_second_settlement_has_landed_only_if_it_says_the_same(
    store: Store, plain: Plain, clock: Clock, first: str
) -> None:
    """All pairs, later and in the same batch.

    Seen failing when it was enough that this worker had settled the attempt at all: a success was
    reported as landed for a job that had failed.
    """
    claimed = _lone_claim(store, clock)
    ends = {name: end(claimed) for name, end in ENDS.items()}
    batch = [ends[first], *ends.values()]
    expected = [LANDED, *(LANDED if name == first else STALE for name in ends)]
    assert settle(store, clock.now, *batch) == expected
    before = plain.everything()
    assert settle(store, clock.advance(1), *batch) == expected
    assert [settle(store, clock.now, end) for end in ends.values()] == [[x] for x in expected[1:]]
    assert plain.everything() == before


@rule("read-back-same")
def test_a_repeat_is_known_by_what_became_of_the_job(store: Store, clock: Clock) -> None:
    """The last retry fails; a job that was asked to stop does not go on.

    Seen failing with the outcomes compared by their names: the repeat of a last retry was stale.
    """
    last = _lone_claim_of(store, clock, max_attempts=1)
    for _ in range(2):
        assert settle(store, clock.now, retry(last, ERROR, 5)) == [LANDED]
    assert settle(store, clock.now, retry(last, encode("other"), 5), snooze(last, 5)) == [STALE] * 2
    for end in (lambda job: retry(job, ERROR, 5), lambda job: snooze(job, 5), release):
        asked = _lone_claim(store, clock)
        store.cancel(asked.id, now=clock.now)
        for became in (State.CANCELLED, None):
            assert settle(store, clock.now, end(asked)) == [Answer(True, became=became)]
        assert settle(store, clock.now, succeed(asked), skip(asked)) == [STALE] * 2


def test_blanks_in_a_result_make_no_difference(store: Store, clock: Clock) -> None:
    claimed = _lone_claim(store, clock)
    for text in (b'{ "a" : [ 1 , "x y" ] }', b'{"a":[1,"x y"]}'):
        assert settle(store, clock.now, succeed(claimed, Json(text))) == [LANDED]
    assert settle(store, clock.now, succeed(claimed, Json(b"{}"))) == [STALE]


def test_a_finished_job_does_not_change_whatever_a_worker_says_later(
    store: Store, plain: Plain, clock: Clock
) -> None:
    claimed = _lone_claim(store, clock)
    settle(store, clock.now, succeed(claimed, encode("first")))
    before = plain.everything()
    late = [make(claimed) for make in SETTLEMENTS.values()]
    assert set(store.settle("w1", late, now=clock.advance(1))) == {STALE}
    assert set(store.settle("w2", late, now=clock.now)) == {STALE}
    assert store.report_progress("w1", [(claimed, 0.5, None)], now=clock.now) == [STALE]
    assert store.save_checkpoint("w1", claimed, encode(1), now=clock.now) == STALE
    assert plain.everything() == before


def test_a_repeat_is_known_even_after_a_replay(store: Store, clock: Clock) -> None:
    claimed = _lone_claim(store, clock)
    settle(store, clock.now, succeed(claimed))
    store.replay(claimed.id, now=clock.now)
    assert settle(store, clock.now, succeed(claimed)) == [LANDED]
    assert store.get(claimed.id).state is State.QUEUED


@rule("read-back-own")
def test_what_a_sweep_ended_was_not_settled_by_its_worker(store: Store, clock: Clock) -> None:
    """History shows the lost worker's name; that must not read as its own settlement.

    Seen failing with the mark of the sweep taken out of the look: a zombie heard that its job was
    cancelled by itself, when a sweep had done that for it.
    """
    add(store, clock.now, max_attempts=1)
    claimed = take_one(store, clock.now)
    store.sweep(now=clock.advance(31))
    assert store.get(claimed.id).state is State.FAILED
    assert store.settle("w1", [succeed(claimed)], now=clock.now) == [STALE]
    store.replay(claimed.id, now=clock.now)
    assert store.settle("w1", [succeed(claimed)], now=clock.now) == [STALE]
    asked = take_one(store, clock.now)
    store.cancel(asked.id, now=clock.now)
    store.sweep(now=clock.advance(31))
    assert store.get(asked.id).state is State.CANCELLED
    late = [abort(asked), release(asked), snooze(asked, 5)]
    assert [store.settle("w1", [end], now=clock.now) for end in late] == [[STALE]] * 3
    store.replay(asked.id, now=clock.now)
    assert [store.settle("w1", [end], now=clock.now) for end in late] == [[STALE]] * 3


# Batches.


def test_a_batch_mixes_outcomes_and_is_answered_in_order(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 8, max_attempts=2)
    jobs = take(store, clock.now)
    gone = msgspec.structs.replace(jobs[7], token=99)
    answers = settle(
        store,
        clock.now,
        retry(jobs[0], ERROR, 0),
        succeed(jobs[1], encode(1)),
        succeed(gone),
        fail(jobs[2], ERROR),
        snooze(jobs[3], 5),
        skip(gone),
        release(jobs[4]),
        abort(jobs[5]),
        skip(jobs[6]),
    )
    assert answers == [LANDED, LANDED, STALE, LANDED, LANDED, STALE, LANDED, LANDED, LANDED]
    assert [store.get(job.id, now=clock.now).state for job in jobs] == [
        State.QUEUED,
        State.SUCCEEDED,
        State.FAILED,
        State.SCHEDULED,
        State.QUEUED,
        State.CANCELLED,
        State.SKIPPED,
        State.RUNNING,
    ]


def test_of_two_settlements_of_one_token_the_first_counts(store: Store, clock: Clock) -> None:
    first, second = (_lone_claim(store, clock) for _ in range(2))
    answers = settle(
        store, clock.now, succeed(first), succeed(first), skip(second), succeed(second)
    )
    assert answers == [LANDED, LANDED, LANDED, STALE]
    assert store.get(first.id).state is State.SUCCEEDED
    assert store.get(second.id).state is State.SKIPPED


def test_two_tokens_of_one_job_are_told_apart_in_one_batch(store: Store, clock: Clock) -> None:
    """A worker that lost a job and claimed it again may settle both attempts at once."""
    for end in (succeed, skip):
        old = _lone_claim(store, clock)
        store.sweep(now=clock.advance(31))
        new = take_one(store, clock.now)
        assert store.settle("w1", [end(new), end(old)], now=clock.now) == [LANDED, STALE]


def test_an_empty_batch_is_no_work(store: Store, clock: Clock) -> None:
    assert store.settle("w1", [], now=clock.now) == []


def test_a_large_batch_lands_as_one(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 3000)
    jobs = take(store, clock.now, 3000)
    assert settle(store, clock.now, *(succeed(job) for job in jobs)) == [LANDED] * 3000
    assert store.count_live(now=clock.now) == []
    assert store.get(ids[2999]).state is State.SUCCEEDED


def test_one_bad_row_never_blocks_the_others(store: Store, clock: Clock) -> None:
    """The batch is halved until what the database refuses stands alone."""
    add_many(store, clock.now, 7)
    jobs = take(store, clock.now)
    ends = [succeed(job, encode(n)) for n, job in enumerate(jobs)]
    ends[3] = succeed(jobs[3], Json(b'{"not": json'))
    ends[5] = fail(jobs[5], Json(b"nor this"))
    answers = settle(store, clock.now, *ends)
    assert [answer.landed for answer in answers] == [True, True, True, False, True, False, True]
    assert not answers[3].stale
    assert "refused" in (answers[3].error or "")
    assert store.get(jobs[3].id, now=clock.now).state is State.RUNNING
    assert settle(store, clock.now, fail(jobs[3], ERROR), skip(jobs[5])) == [LANDED, LANDED]


def test_what_the_caller_got_wrong_is_raised_and_not_answered(store: Store, clock: Clock) -> None:
    claimed = _lone_claim(store, clock)
    with pytest.raises(InvalidInput):
        store.settle("not a name", [succeed(claimed)], now=clock.now)
    with pytest.raises(InvalidInput):
        store.extend(" ", {claimed.lease_id: []}, now=clock.now)
    with pytest.raises(InvalidInput, match="time zone"):
        store.settle("w1", [succeed(claimed)], now=clock.now.replace(tzinfo=None))
    assert settle(store, clock.now, succeed(claimed)) == [LANDED]


# Lease rows.


@rule("lease-kept-while-live")
def test_a_lease_goes_only_when_nothing_on_it_is_live(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """Seen failing with the condition taken out of `drop_leases`: the lease was gone and the
    second job stayed running, where no sweep would find it."""
    add_many(store, clock.now, 2)
    first, second = take(store, clock.now)
    settle(store, clock.now, succeed(first))
    assert plain.one("select count(*) from tenure.lease") == 1
    settle(store, clock.now, release(second))
    assert plain.one("select count(*) from tenure.lease") == 0


@rule("lease-goes-with-its-last-job")
def test_a_lease_goes_with_its_last_job_unless_the_worker_keeps_count(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """Seen failing when only leases that the worker named were looked at: a loop that settles its
    jobs one by one left a lease for each of them."""
    add_many(store, clock.now, 5)
    for job in take(store, clock.now, 2):
        assert plain.one("select count(*) from tenure.lease") == 1
        store.settle("w1", [succeed(job)], now=clock.now)
    assert plain.one("select count(*) from tenure.lease") == 0
    first, second, third = take(store, clock.now, 3)
    store.settle("w1", [release(first), fail(second, ERROR)], now=clock.now)
    assert plain.one("select count(*) from tenure.lease") == 1
    store.settle("w1", [skip(third)], patient=False, now=clock.now)
    assert plain.one("select count(*) from tenure.lease") == 0
    kept = take_one(store, clock.now)
    store.settle("w1", [succeed(kept)], done_leases=(), now=clock.now)
    assert plain.one("select count(*) from tenure.lease") == 1


def test_a_lease_is_not_dropped_for_another_worker(
    store: Store, plain: Plain, clock: Clock
) -> None:
    claimed = _lone_claim(store, clock)
    store.settle("w1", [succeed(claimed)], done_leases=(), now=clock.now)
    store.settle("w2", [], done_leases=[claimed.lease_id], now=clock.now)
    assert plain.one("select count(*) from tenure.lease") == 1
    store.settle("w1", [], done_leases=[claimed.lease_id, 12345], now=clock.now)
    assert plain.one("select count(*) from tenure.lease") == 0


def test_a_worker_that_merely_believes_to_be_done_keeps_its_lease(
    store: Store, plain: Plain, clock: Clock
) -> None:
    claimed = _lone_claim(store, clock)
    store.settle("w1", [], done_leases=[claimed.lease_id], now=clock.now)
    assert plain.one("select count(*) from tenure.lease") == 1
    assert store.get(claimed.id).state is State.RUNNING


def test_nothing_is_left_when_all_jobs_have_finished(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """After retries, crashes, cancellations and keys the tables of live jobs are empty: no row
    stays that is never read again."""
    add_many(store, clock.now, 3)
    add(store, clock.now, unique=Unique(key="k"))
    add(store, clock.now, delay_seconds=5)
    store.cancel(add(store, clock.now), now=clock.now)
    first, *_ = take(store, clock.now)
    settle(store, clock.now, retry(first, ERROR, 5))
    expire(store, clock)
    for _ in range(10):
        store.promote(now=clock.advance(5))
        settle(store, clock.now, *(succeed(job) for job in take(store, clock.now)))
    for table in ("job", "ready", "due", "lease", "unique_key"):
        assert plain.table(table) == []
    assert plain.count("history") == 6
