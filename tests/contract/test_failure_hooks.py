"""Failure hooks: each failure enqueues the jobs of its hooks, in its own transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tenure.errors import InvalidInput, TenantMismatch
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.ends import FailedJob, NewHook
from tenure.rules.gates import Limits
from tenure.rules.job import ErrorInfo, Job, NewJob, State, Unique
from tenure.rules.lifecycle import abort, fail, retry, skip, snooze, succeed
from tenure.store import Store
from tenure.store.jobs.settle import settle as settle_op
from tests.contract.conftest import Begin
from tests.support.flows import added, failing, run_all
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, TASK, add, add_many, expire, run, running, settle, take

HOOK = "app.alert"
HOOKS = "hooks"
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def hook(task: str | None = None, name: str = HOOK, **options: Any) -> NewHook:
    job = NewJob(task=name, queue=HOOKS, **options)
    return NewHook(task=task, parameter="failed", job=job)


def calls(store: Store, name: str = HOOK) -> list[Job]:
    jobs = store.list_jobs(task=name, states=[State.QUEUED]).jobs
    return sorted(jobs, key=lambda job: job.id)


def told(job: Job) -> FailedJob:
    """What the hook receives."""
    return msgspec.convert(job.args["failed"], FailedJob)


def failed_next(store: Store, clock: Clock) -> Job:
    return run(store, clock.now, lambda job: fail(job, ERROR, duration_seconds=1.0))


def test_a_failure_calls_the_hook_of_all_tasks(store: Store, clock: Clock) -> None:
    assert store.declare_hooks([hook(max_attempts=7, priority=3)]) is True
    id = add(
        store, clock.now, args=encode({"to": "é", "n": 10**20}), max_attempts=3,
        metadata=encode({"trace": "x", "more": [1]}),
    )  # fmt: skip
    run(store, clock.now, lambda job: retry(job, ERROR, 0))
    assert calls(store) == []
    job = failed_next(store, clock)
    [call] = calls(store)
    assert (call.queue, call.priority, call.max_attempts) == (HOOKS, 3, 7)
    assert call.metadata == {
        "failed_job": {"id": id, "token": job.token, "task": TASK}, "trace": "x"
    }  # fmt: skip
    assert told(call) == FailedJob(
        id=id, token=job.token, task=TASK, args={"to": "é", "n": 10**20}, queue="default",
        tenant="", attempts=2, max_attempts=3, crashes=0, finished_at=clock.now, reason="error",
        error=ErrorInfo("ValueError", "no"), worker="w1", metadata={"trace": "x", "more": [1]},
    )  # fmt: skip


@pytest.mark.parametrize("end", [succeed, skip, abort, lambda job: snooze(job, 1)])
def test_only_a_failure_calls_the_hook(store: Store, clock: Clock, end: Any) -> None:
    store.declare_hooks([hook()])
    add(store, clock.now)
    run(store, clock.now, end)
    store.cancel(add(store, clock.now), now=clock.now)
    assert calls(store) == []


@pytest.mark.parametrize("by_claim", [True, False])
def test_a_job_that_was_not_started_in_time_calls_no_hook(
    store: Store, clock: Clock, by_claim: bool
) -> None:
    """It is skipped: it has not failed."""
    store.declare_hooks([hook()])
    id = add(store, clock.now, start_within_seconds=1)
    clock.advance(2)
    assert take(store, clock.now) == [] if by_claim else store.expire(now=clock.now) == 1
    assert store.get(id).state is State.SKIPPED
    assert calls(store) == []


def test_a_hook_may_have_deadlines(store: Store, clock: Clock) -> None:
    """They count from the failure."""
    store.declare_hooks([hook(start_within_seconds=5, finish_within_seconds=9)])
    add(store, clock.now)
    clock.advance(100)
    failed_next(store, clock)
    [call] = calls(store)
    assert call.start_by == clock.now + timedelta(seconds=5)
    assert call.finish_by == clock.now + timedelta(seconds=9)


def test_a_job_whose_worker_was_killed_calls_the_hook(store: Store, clock: Clock) -> None:
    """The sweep ends it: as after the OOM killer."""
    store.declare_hooks([hook()])
    claimed = running(store, clock.now, max_attempts=1)
    expire(store, clock)
    [call] = calls(store)
    failed = told(call)
    assert (failed.id, failed.attempts, failed.crashes) == (claimed.id, 1, 1)
    assert failed.worker is None or failed.worker == "w1"
    assert failed.reason == store.get(claimed.id).reason


def test_a_job_that_is_not_kept_calls_the_hook(store: Store, clock: Clock) -> None:
    store.declare_hooks([hook()])
    id = add(store, clock.now, keep_other_seconds=0, args=encode({"a": [1]}))
    [claimed] = take(store, clock.now)
    settle(store, clock.now, fail(claimed, ERROR))
    [call] = calls(store)
    assert (told(call).id, told(call).args) == (id, {"a": [1]})


def test_a_node_that_fails_calls_the_hook_and_skipped_nodes_do_not(
    store: Store, clock: Clock
) -> None:
    store.declare_hooks([hook()])
    added(store, clock.now, {"a": [], "b": ["a"]})
    run_all(store, clock.now, {"a": failing})
    assert len(calls(store)) == 1


def test_the_hook_of_a_task_is_for_that_task_alone(store: Store, clock: Clock) -> None:
    store.declare_hooks([hook("app.pay", "app.refund"), hook(None), hook("app.pay")])
    ids = [add(store, clock.now, task=task) for task in ("app.pay", "app.work")]
    for _ in ids:
        failed_next(store, clock)
    assert [told(call).id for call in calls(store, "app.refund")] == ids[:1]
    assert [told(call).id for call in calls(store)] == ids  # once each, though declared twice


def test_every_failure_of_a_batch_has_its_call(store: Store, clock: Clock) -> None:
    store.declare_hooks([hook(), hook(TASK, "app.second")])
    ids = add_many(store, clock.now, 5)
    settle(store, clock.now, *(fail(job, ERROR) for job in take(store, clock.now)))
    for name in (HOOK, "app.second"):
        assert sorted(told(call).id for call in calls(store, name)) == ids


def test_the_failure_of_a_hook_calls_no_hook(store: Store, clock: Clock) -> None:
    store.declare_hooks([hook(), hook(HOOK, "app.second"), hook(None, "app.third")])
    add(store, clock.now)
    failed_next(store, clock)
    for _ in range(2):
        run(store, clock.now, lambda job: fail(job, ERROR), queue=HOOKS)
    assert [len(calls(store, name)) for name in (HOOK, "app.second", "app.third")] == [0, 0, 0]


def test_a_replayed_job_that_fails_again_calls_again(store: Store, clock: Clock) -> None:
    store.declare_hooks([hook()])
    id = add(store, clock.now)
    for _ in range(2):
        failed_next(store, clock)
        store.replay(id, now=clock.now)
    tokens = [told(call).token for call in calls(store)]
    assert len(set(tokens)) == 2


def test_a_failure_that_is_settled_twice_calls_once(store: Store, clock: Clock) -> None:
    store.declare_hooks([hook()])
    claimed = running(store, clock.now)
    for _ in range(3):
        settle(store, clock.now, fail(claimed, ERROR))
    assert len(calls(store)) == 1


def test_a_stale_failure_calls_no_hook(store: Store, clock: Clock) -> None:
    store.declare_hooks([hook()])
    claimed: Claimed = running(store, clock.now)
    expire(store, clock)
    settle(store, clock.now, fail(claimed, ERROR))
    assert calls(store) == []


def test_the_call_belongs_to_the_tenant_of_the_job(store: Store, clock: Clock) -> None:
    store.declare_hooks([hook()])
    add(store, clock.now, tenant="acme")
    failed_next(store, clock)
    [call] = calls(store)
    assert call.tenant == told(call).tenant == "acme"


def test_a_hook_may_have_a_gate(store: Store, clock: Clock) -> None:
    store.declare_gates({"one": Limits(max_running=1)}, now=clock.now)
    store.declare_hooks([hook(gate="one")])
    add_many(store, clock.now, 2)
    settle(store, clock.now, *(fail(job, ERROR) for job in take(store, clock.now)))
    assert len(take(store, clock.now, queue=HOOKS)) == 1


def test_declaring_again_changes_only_what_is_new(store: Store, plain: Plain, clock: Clock) -> None:
    mine = [hook(), hook(TASK, "app.second")]
    other = [hook(None, "elsewhere.alert")]
    assert store.declare_hooks(mine, tasks=["app.work", HOOK, "app.second"]) is True
    assert store.declare_hooks(other, tasks=["elsewhere.alert"]) is True
    assert store.declare_hooks(mine, tasks=["app.work", HOOK, "app.second"]) is False
    assert store.failure_hooks() == [
        (None, HOOK), (None, "elsewhere.alert"), (TASK, "app.second")
    ]  # fmt: skip
    # The code has no hook for all tasks any more, but the task is still there.
    assert store.declare_hooks(mine[1:], tasks=["app.work", HOOK, "app.second"]) is True
    assert store.failure_hooks() == [(None, "elsewhere.alert"), (TASK, "app.second")]
    assert store.remove_hook("elsewhere.alert") is True
    assert store.remove_hook("elsewhere.alert") is False
    assert store.declare_hooks([], tasks=["app.second"]) is True
    assert plain.one("select count(*) from tenure.failure_hook") == 0
    add(store, clock.now)
    failed_next(store, clock)
    assert calls(store) == []


def test_the_feed_has_the_failure_and_the_end_of_its_hook(store: Store, clock: Clock) -> None:
    store.declare_hooks([hook()])
    store.add_reader("r", now=clock.now)
    add(store, clock.now)
    failed_next(store, clock)
    run(store, clock.now, succeed, queue=HOOKS)
    ends = store.read_feed("r", now=clock.now).ends
    assert [(end.task, end.state) for end in ends] == [
        (TASK, State.FAILED), (HOOK, State.SUCCEEDED)
    ]  # fmt: skip


def test_what_is_no_hook_is_refused(store: Store) -> None:
    with pytest.raises(InvalidInput, match="NewHook"):
        store.declare_hooks(["app.alert"])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="no unique key"):
        hook(unique=Unique(key="a"))
    for when in (
        {"delay_seconds": 1}, {"due_at": NOW}, {"expires_at": NOW}, {"finish_by": NOW}
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match="due at once"):
            hook(**when)
    with pytest.raises(InvalidInput, match="parameter"):
        NewHook(task=None, parameter="a b", job=NewJob(task="a"))
    with pytest.raises(InvalidInput, match="NewJob"):
        NewHook(task=None, parameter="a", job="a")  # type: ignore[arg-type]
    with pytest.raises(TenantMismatch):
        store.for_tenant("acme").declare_hooks([hook()])
    with pytest.raises(TenantMismatch):
        store.for_tenant("acme").failure_hooks()
    with pytest.raises(TenantMismatch):
        store.for_tenant("acme").remove_hook(HOOK)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_call_is_real_when_the_failure_is(
    pg: Store, clock: Clock, begin: Begin, ends: str
) -> None:
    pg.declare_hooks([hook()])
    claimed = running(pg, clock.now)
    failing_now = begin()
    failing_now.do(settle_op, "w1", [fail(claimed, ERROR)], now=clock.now)
    assert calls(pg) == []
    getattr(failing_now, ends)()
    assert len(calls(pg)) == (1 if ends == "commit" else 0)
