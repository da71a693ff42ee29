"""Failures are reported to hooks: of handlers, of killed processes, of killed workers."""

from __future__ import annotations

import signal
from collections.abc import Callable

import msgspec
import pytest

from tenure import Batch, FailedJob, Fixed, Item, Job, State, TaskSet, Tenure, testing
from tenure.errors import InvalidInput
from tenure.rules.ends import NewHook
from tenure.rules.job import NewJob
from tests.worker import isolated
from tests.worker.support import Script, ended, eventually, working

Run = Callable[..., Script]
ALERT = "elsewhere.alert"
ELSEWHERE = NewHook(task=None, parameter="failed", job=NewJob(task=ALERT, queue="elsewhere"))
"""A hook that no worker here runs: its jobs can be looked at."""


def calls(app: Tenure) -> list[tuple[Job, FailedJob]]:
    jobs = app.list_jobs(task=ALERT).jobs
    return [(job, msgspec.convert(job.args["failed"], FailedJob)) for job in jobs]


def test_a_function_becomes_a_task_and_hears_of_every_failure(app: Tenure) -> None:
    heard: list[FailedJob] = []

    @app.on_failed
    def alert(failed: FailedJob) -> None:
        heard.append(failed)

    @app.task(max_attempts=2, retry=Fixed(0))
    def pay(amount: int) -> None:
        raise ValueError(f"no {amount}")

    @app.task()
    async def fine() -> None: ...

    with working(app):
        fine.enqueue()
        id = pay.enqueue(3).id
        eventually(lambda: heard)
    [failed] = heard
    assert (failed.id, failed.task, failed.args) == (id, pay.name, {"amount": 3})
    assert (failed.attempts, failed.max_attempts, failed.crashes) == (2, 2, 0)
    assert failed.error is not None
    assert str(failed.error) == "ValueError: no 3"
    assert "Traceback" in failed.error.traceback


def test_the_hook_of_a_task_hears_of_that_task(app: Tenure) -> None:
    heard: list[tuple[str, int]] = []

    @app.task(queue="alerts", max_attempts=3)
    async def refund(failed: FailedJob) -> None:
        heard.append((failed.task, failed.args["n"]))

    @app.task(max_attempts=1, on_failed=refund)
    def pay(n: int) -> None:  # noqa: ARG001
        raise ValueError

    @app.task(max_attempts=1)
    def other(n: int) -> None:  # noqa: ARG001
        raise ValueError

    with working(app, {"default": 4, "alerts": 1}):
        failed = other.enqueue(1)
        pay.enqueue(2)
        ended(app, failed.id)
        eventually(lambda: heard)
    assert heard == [(pay.name, 2)]
    [job] = app.list_jobs(task=refund.name).jobs
    assert (job.queue, job.max_attempts) == ("alerts", 3)


def test_a_hook_is_retried_like_any_job_and_its_failure_calls_nothing(app: Tenure) -> None:
    tries: list[int] = []

    @app.on_failed
    @app.task(max_attempts=3, retry=Fixed(0))
    def alert(failed: FailedJob) -> None:
        tries.append(failed.id)
        raise ConnectionError

    @app.task(max_attempts=1)
    def bad() -> None:
        raise ValueError

    with working(app):
        bad.enqueue()
        eventually(lambda: app.list_jobs(task=alert.name, states=[State.FAILED]).jobs)
    assert len(tries) == 3
    assert len(app.list_jobs(task=alert.name).jobs) == 1


def test_hooks_of_an_included_set_belong_to_the_application(app: Tenure) -> None:
    tasks = TaskSet()
    heard: list[int] = []

    @tasks.task()
    def alert(failed: FailedJob) -> None:
        heard.append(failed.id)

    def note(failed: dict[str, object]) -> None:
        heard.append(-int(str(failed["id"])))

    @tasks.task(max_attempts=1, on_failed=note)
    def bad() -> None:
        raise ValueError

    tasks.on_failed(alert)
    app.include(tasks)
    with working(app):
        id = bad.enqueue().id
        eventually(lambda: len(heard) == 2)
    assert sorted(heard) == [-id, id]


def test_a_hook_that_is_no_longer_declared_is_not_called(app: Tenure) -> None:
    @app.on_failed
    @app.task()
    def alert(failed: FailedJob) -> None: ...

    with working(app):
        eventually(app.failure_hooks)
    app._on_failed.clear()

    @app.task(max_attempts=1)
    def bad() -> None:
        raise ValueError

    with working(app):
        ended(app, bad.enqueue().id)
    assert app.failure_hooks() == []
    assert app.list_jobs(task=alert.name).jobs == ()


@pytest.mark.slow
def test_a_child_that_the_system_has_killed_is_reported(children_app: Tenure) -> None:
    """As after the OOM killer: SIGKILL, twice, and no attempt is left."""
    children_app.whole_store.declare_hooks([ELSEWHERE])
    with working(children_app, process_slots=1):
        id = isolated.killed.enqueue().id
        ended(children_app, id)
    [(_, failed)] = calls(children_app)
    assert (failed.id, failed.attempts) == (id, 2)
    assert failed.error is not None
    assert "SIGKILL; perhaps the system ran out of memory" in failed.error.message


@pytest.mark.slow
def test_a_job_whose_whole_worker_was_killed_is_reported(app: Tenure, run_script: Run) -> None:
    app.whole_store.declare_hooks([ELSEWHERE])
    new = NewJob(task="station.charge", at_most_once=True)
    [added] = app.whole_store.enqueue([new])
    app.add_reader("r")
    first = run_script("station")
    first.wait_for("charged ")
    first.signal(signal.SIGKILL)
    first.ends()
    run_script("station")
    eventually(lambda: app.get(added.id).state is State.FAILED)
    [(_, failed)] = calls(app)
    assert (failed.id, failed.crashes) == (added.id, 1)
    [end] = app.read_feed("r").ends
    assert (end.id, end.state) == (added.id, State.FAILED)


def test_a_function_that_cannot_receive_a_failed_job_is_refused(app: Tenure) -> None:
    with pytest.raises(InvalidInput, match="takes a task or a function, not 5"):
        app.on_failed(5)  # type: ignore[type-var]

    @app.task()
    def nothing() -> None: ...

    app.on_failed(nothing)
    with pytest.raises(InvalidInput, match="must take one argument, the failed job"):
        app.declared_hooks()
    app._on_failed.clear()

    @app.on_failed
    def wrong(failed: int) -> None: ...

    with pytest.raises(InvalidInput, match="do not fit"):
        app.declared_hooks()
    app._on_failed.clear()


def test_the_tools_for_tests_call_hooks(app: Tenure) -> None:
    heard: list[str] = []

    @app.on_failed
    def alert(failed: FailedJob) -> None:
        heard.append(failed.task)

    @app.task(max_attempts=1)
    def bad() -> None:
        raise ValueError

    bad.enqueue()
    testing.drain(app, raise_errors=False)
    assert heard == [bad.name]


def test_items_of_a_batch_that_fail_are_reported_each_for_itself(app: Tenure) -> None:
    app.store.declare_hooks([ELSEWHERE])
    app.add_reader("r")

    @app.task(batch=Batch(max_size=4, wait_seconds=0.05), max_attempts=1)
    def pay(items: list[Item[int]]) -> list[int | Exception]:
        return [ValueError("odd") if item.value % 2 else item.value for item in items]

    ids = [pay.enqueue(n).id for n in range(4)]
    with working(app):
        for id in ids:
            ended(app, id)
    assert sorted(failed.id for _, failed in calls(app)) == ids[1::2]
    ends = [(end.id, str(end.state)) for end in app.feed("r", follow=False)]
    assert sorted(ends) == list(
        zip(ids, ("succeeded", "failed", "succeeded", "failed"), strict=True)
    )


def test_a_hook_may_take_failures_in_batches(app: Tenure) -> None:
    heard: list[int] = []

    @app.on_failed
    @app.task(batch=Batch(max_size=8, wait_seconds=0.05))
    def alert(items: list[Item[FailedJob]]) -> list[None]:
        heard.extend(item.value.id for item in items)
        return [None] * len(items)

    @app.task(max_attempts=1)
    def pay(n: int) -> None:
        raise ValueError(n)

    with working(app):
        ids = [pay.enqueue(n).id for n in range(3)]
        eventually(lambda: len(heard) == len(ids))
    assert sorted(heard) == ids
