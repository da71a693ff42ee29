"""`at_most_once`: handlers of every kind start once, also when their worker is killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tenure import Fixed, Retry, Running, Snooze, State, Tenure, testing
from tenure.errors import LeaseLost
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import AT_MOST_ONCE
from tenure.worker.leases import LeasedJob
from tenure.worker.running.context import RunningHere
from tests.worker import isolated
from tests.worker.support import Script, ended, eventually, file_numbers, listen, working

Run = Callable[..., Script]


@pytest.mark.parametrize("error", [ValueError("no"), Retry("again"), Snooze(1), MemoryError()])
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_handler_that_raises_is_not_run_again(app: Tenure, kind: str, error: Exception) -> None:
    tokens = []
    heard = listen(app)

    if kind == "thread":

        @app.task(at_most_once=True, retry=Fixed(0))
        def once(job: Running) -> None:
            tokens.append(job.token)
            raise error
    else:

        @app.task(at_most_once=True, retry=Fixed(0))
        async def once(job: Running) -> None:
            tokens.append(job.token)
            raise error

    with working(app):
        job = ended(app, once.enqueue().id)
    assert (job.state, job.attempts, tokens) == (State.FAILED, 1, [1])
    assert (job.reason or "").startswith(AT_MOST_ONCE)
    assert heard.kinds(job.id) == ["started", "failed"]


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_handler_that_returns_succeeds(app: Tenure, kind: str) -> None:
    if kind == "thread":

        @app.task(at_most_once=True)
        def once(job: Running) -> int:
            return job.crashes
    else:

        @app.task(at_most_once=True)
        async def once(job: Running) -> int:
            return job.crashes

    with working(app):
        handles = [once.enqueue() for _ in range(20)]
        assert [handle.wait(timeout_seconds=60) for handle in handles] == [0] * 20


@pytest.mark.slow
@pytest.mark.parametrize("task", ["charge", "charge_async"])
def test_a_killed_worker_leaves_a_failed_job_not_a_second_run(
    app: Tenure, run_script: Run, task: str
) -> None:
    """Four jobs on one lease, killed before the first heartbeat: none runs twice."""
    new = NewJob(task=f"station.{task}", at_most_once=True, max_attempts=5)
    ids = [added.id for added in app.whole_store.enqueue([new] * 4)]
    first = run_script("station")
    first.wait_for("charged ", times=4)
    first.signal(signal.SIGKILL)
    first.ends()
    second = run_script("station")
    eventually(lambda: all(app.get(id).state is State.FAILED for id in ids))
    assert "charged" not in second.output
    for id in ids:
        job = app.get(id)
        assert (job.reason, job.crashes) == (f"{AT_MOST_ONCE}: lease lost", 1)
        [attempt] = app.attempts(id)
        assert attempt.outcome == "crashed"


@pytest.mark.slow
def test_a_child_that_dies_is_not_replaced(children_app: Tenure, tmp_path: Path) -> None:
    with working(children_app, process_slots=1):
        job = ended(children_app, isolated.dies_once.enqueue().id)
    assert (job.state, job.attempts) == (State.FAILED, 1)
    assert (job.reason or "").startswith(AT_MOST_ONCE)
    assert file_numbers(tmp_path / "ran") == [1]


def test_a_handler_does_not_start_on_a_lease_that_is_lost(app: Tenure) -> None:
    ran = []

    @app.task(at_most_once=True)
    def once() -> None:
        ran.append(1)

    handle = once.enqueue()
    [lease] = app.whole_store.claim("w1", {"default": 1}, lease_seconds=0.001)
    eventually(lambda: app.whole_store.sweep().requeued)
    with pytest.raises(LeaseLost):
        RunningHere(LeasedJob(lease.jobs[0], once, 0.0), app, "w1").start_once()
    with working(app):
        assert ended(app, handle.id).state is State.SUCCEEDED
    assert ran == [1]


def test_a_handler_sees_how_often_earlier_attempts_died(app: Tenure) -> None:
    seen = []

    @app.task(retry=Fixed(0))
    def counts(job: Running) -> None:
        seen.append((job.crashes, job.attempt))

    handle = counts.enqueue()
    for _ in range(2):
        app.whole_store.claim("dead", {"default": 1}, lease_seconds=0.001)
        eventually(lambda: app.whole_store.sweep().requeued)
    [job] = testing.drain(app)
    assert (job.id, seen) == (handle.id, [(2, 3)])


def test_scheduled_and_grown_jobs_start_once_too(app: Tenure) -> None:
    @app.task(at_most_once=True, max_attempts=3, retry=Fixed(0))
    def once() -> None:
        raise ValueError

    app.schedules.add("nightly", once.call(), every_seconds=timedelta(hours=1))
    flow = app.workflow("w")
    flow.add(once.call(), name="a")
    flow.enqueue()
    app.schedules.trigger("nightly")
    jobs = testing.drain(app, raise_errors=False)
    assert [(job.state, job.attempts) for job in jobs] == [(State.FAILED, 1)] * 2


def test_a_job_by_name_needs_the_option_itself(app: Tenure) -> None:
    """What a job may do is stored with the job, not looked up in the code."""
    [added] = app.whole_store.enqueue([NewJob(task="tests.once", at_most_once=True)])

    @app.task(name="tests.once", retry=Fixed(0))
    def once() -> None:
        raise ValueError

    [job] = testing.drain(app, raise_errors=False)
    assert (job.id, job.state, job.attempts) == (added.id, State.FAILED, 1)
