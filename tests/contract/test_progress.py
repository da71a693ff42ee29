"""Progress and checkpoints: fenced like a settlement, kept for the next attempt."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tenure.errors import TenureError
from tenure.rules.codec import encode
from tenure.rules.job import Progress, State
from tenure.rules.lifecycle import fail, release, retry, succeed
from tenure.store import LANDED, STALE, Store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, add, add_many, run, settle, take, take_one


def test_a_job_that_said_nothing_has_no_progress(store: Store, clock: Clock) -> None:
    assert store.progress(add(store, clock.now)) == Progress()


def test_the_last_report_is_shown(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    store.report_progress("w1", [(job, 0.25, "a quarter")], now=clock.advance(1))
    [answer] = store.report_progress("w1", [(job, 0.5, None)], now=clock.advance(1))
    assert answer == LANDED
    assert store.progress(id) == Progress(0.5, None, clock.now)


def test_reports_of_many_jobs_go_in_one_batch(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 3)
    first, second, third = take(store, clock.now)
    lost = msgspec.structs.replace(second, token=9)
    answers = store.report_progress(
        "w1", [(first, 0.1, "x"), (lost, 0.2, "y"), (third, None, "z")], now=clock.now
    )
    assert answers == [LANDED, STALE, LANDED]
    assert [store.progress(id).message for id in ids] == ["x", None, "z"]
    assert store.progress_many([*ids, 999]) == {
        ids[0]: Progress(0.1, "x", clock.now), ids[2]: Progress(None, "z", clock.now),
    }  # fmt: skip


def test_of_two_reports_of_one_job_in_a_batch_the_last_is_shown(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    reports = [(job, 0.1, "first"), (job, 0.2, "second")]
    assert store.report_progress("w1", reports, now=clock.now) == [LANDED, LANDED]
    assert store.progress(id).message == "second"


def test_a_long_message_is_cut(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    store.report_progress("w1", [(job, None, "é" * 5000)], now=clock.now)
    message = store.progress(id).message
    assert message is not None
    assert len(message) <= 1000
    assert message.startswith("é" * 100)


def test_a_checkpoint_waits_for_the_next_attempt(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    assert store.save_checkpoint("w1", job, encode({"page": 7}), now=clock.advance(1)) == LANDED
    saved = store.progress(id)
    assert (saved.checkpoint_json, saved.saved_at) == ('{"page":7}', clock.now)
    settle(store, clock.now, retry(job, ERROR, 0))
    again = take_one(store, clock.advance(1), worker="w2")
    assert store.progress(id).checkpoint_json == '{"page":7}'
    store.save_checkpoint("w2", again, encode({"page": 9}), now=clock.now)
    assert store.progress(id).checkpoint_json == '{"page":9}'


def test_progress_and_checkpoint_do_not_overwrite_each_other(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    store.report_progress("w1", [(job, 0.5, "half")], now=clock.now)
    store.save_checkpoint("w1", job, encode([1]), now=clock.now)
    store.report_progress("w1", [(job, 0.75, "more")], now=clock.now)
    assert store.progress(id) == Progress(0.75, "more", clock.now, "[1]", clock.now)


def test_a_crash_keeps_the_checkpoint(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    store.save_checkpoint("w1", job, encode([1]), now=clock.now)
    store.sweep(now=clock.advance(31))
    assert store.progress(id).checkpoint_json == "[1]"


def test_a_job_that_succeeded_keeps_its_progress_until_it_is_pruned(
    store: Store, plain: Plain, clock: Clock
) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    store.report_progress("w1", [(job, 0.5, "half")], now=clock.now)
    store.save_checkpoint("w1", job, encode([1]), now=clock.now)
    settle(store, clock.now, succeed(job))
    assert store.progress(id) == Progress(0.5, "half", clock.now, "[1]", clock.now)
    store.prune(now=clock.advance(8 * 86_400))
    assert plain.table("note") == []


def test_progress_that_no_heartbeat_has_sent_comes_with_the_settlement(
    store: Store, clock: Clock
) -> None:
    ids = add_many(store, clock.now, 2)
    first, second = take(store, clock.now)
    ends = [succeed(first), fail(second, ERROR)]
    ends = [msgspec.structs.replace(end, progress=(1.0, "done")) for end in ends]
    assert settle(store, clock.now, *ends) == [LANDED, LANDED]
    assert [store.progress(id).message for id in ids] == ["done", "done"]


def test_a_stale_settlement_tells_nothing(store: Store, plain: Plain, clock: Clock) -> None:
    job = take_one(store, clock.now) if add(store, clock.now) else None
    assert job is not None
    end = msgspec.structs.replace(
        succeed(job), token=9, progress=(1.0, "done"), notes={"loss": 0.5}
    )
    assert store.settle("w1", [end], now=clock.now) == [STALE]
    assert plain.table("note") == []


def test_a_failed_job_keeps_its_checkpoint_for_its_replay(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    store.save_checkpoint("w1", job, encode([1]), now=clock.now)
    settle(store, clock.now, fail(job, ERROR))
    store.replay(id, now=clock.now)
    assert store.progress(id).checkpoint_json == "[1]"
    assert run(store, clock.now, succeed).state is State.SUCCEEDED
    assert store.progress(id).checkpoint_json == "[1]"
    store.replay(id, now=clock.now)  # a job that succeeded starts from the beginning
    assert store.progress(id) == Progress()


def test_a_replay_after_success_starts_afresh_and_may_report(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    store.report_progress("w1", [(job, 1.0, "done")], now=clock.now)
    settle(store, clock.now, succeed(job))
    store.replay(id, now=clock.now)
    job = take_one(store, clock.now)
    assert store.report_progress("w1", [(job, 0.1, "again")], now=clock.now) == [LANDED]
    settle(store, clock.now, release(job))
    assert store.progress(id).message == "again"


def test_a_failed_job_keeps_its_last_progress(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    store.report_progress("w1", [(job, 0.25, "loading")], now=clock.now)
    settle(store, clock.advance(1), fail(job, ERROR))
    assert (store.progress(id).fraction, store.progress(id).message) == (0.25, "loading")


@pytest.mark.parametrize("what", ["progress", "checkpoint"])
def test_a_job_succeeds_though_its_progress_or_checkpoint_cannot_be_stored(
    store: Store, plain: Plain, clock: Clock, what: str
) -> None:
    add(store, clock.now)
    job = take_one(store, clock.now)
    plain.refuse_inserts("note")
    write: dict[str, Callable[[], object]] = {
        "progress": lambda: store.report_progress("w1", [(job, 0.5, None)], now=clock.now),
        "checkpoint": lambda: store.save_checkpoint("w1", job, encode(1), now=clock.now),
    }
    with pytest.raises(TenureError, match="refused by the test"):
        write[what]()
    assert store.get(job.id).state is State.RUNNING
    assert settle(store, clock.now, succeed(job)) == [LANDED]
