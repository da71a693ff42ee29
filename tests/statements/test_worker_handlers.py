"""What handlers do to the worker that runs them, and what it makes of that."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tenure import Cancel, Fixed, Retry, Running, Skip, State, Task, Tenure
from tenure.rules.codec import decode, encode
from tenure.rules.job import NewJob
from tests.statements import children
from tests.statements.raising import RAISED, raise_it
from tests.statements.support import defect, statement
from tests.worker.support import PATIENCE_SECONDS, Lines, ended, eventually, kinds, working


@statement(33)
@defect("C-12")
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_whatever_a_handler_raises_costs_one_attempt_and_never_the_worker(
    app: Tenure, kind: str
) -> None:
    """The attempt is charged with its reason on record, and the same worker runs the next job."""

    @app.task(name="thread", max_attempts=1)
    def in_a_thread(name: str) -> None:
        raise_it(name)

    @app.task(name="async", max_attempts=1)
    async def on_the_loop(name: str) -> None:
        raise_it(name)

    @app.task()
    async def fine() -> str:
        return "fine"

    check_that_the_worker_survives(app, in_a_thread if kind == "thread" else on_the_loop, fine)


@pytest.mark.slow
@statement(33)
@defect("C-12")
def test_whatever_a_handler_in_a_child_raises_costs_one_attempt_and_never_the_worker(
    children_app: Tenure,
) -> None:
    """The same for handlers in child processes."""
    check_that_the_worker_survives(children_app, children.raising, children.fine)


def check_that_the_worker_survives(
    app: Tenure, raising: Task[[str], None], fine: Task[[], str]
) -> None:
    raised = {name: raising.enqueue(name) for name in RAISED}
    with working(app, process_slots=1) as worker:
        jobs = {name: ended(app, handle.id) for name, handle in raised.items()}
        after = fine.enqueue()
        assert after.wait(timeout_seconds=PATIENCE_SECONDS) == "fine"
        name_at_work = worker.name
    for name, job in jobs.items():
        assert (job.state, job.attempts, job.crashes) == (State.FAILED, 1, 0), name
        error = decode(job.error or "null", dict[str, str])
        assert name in error["type"]
        assert "raised by a handler" in error["message"]
        assert "raise_it" in error["traceback"]
    workers = {job.worker for job in [*jobs.values(), app.get(after.id)]}
    assert workers == {name_at_work}


@defect("F-9")
def test_a_task_that_no_worker_knows_waits_longer_and_longer(app: Tenure, lines: Lines) -> None:
    """It is not charged, never lost, never spun on, and visible."""

    @app.task()
    async def known() -> None: ...

    [unknown] = app.store.enqueue([NewJob(task="app.renamed")])
    waits = []
    with working(app):
        for _ in range(4):
            eventually(lambda: app.get(unknown.id).state is State.SCHEDULED)
            job = app.get(unknown.id)
            assert job.due_at is not None
            waits.append((job.due_at - datetime.now(UTC)).total_seconds())
            assert (job.attempts, job.crashes, job.reason) == (0, 0, "no handler")
            hasten(app, unknown.id)
        assert known.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) is None
    assert all(longer > 1.5 * wait for wait, longer in pairwise(waits))
    assert waits[-1] <= 300
    assert waits[0] == pytest.approx(5, abs=2)
    assert lines.with_text("this worker has no such task")


def hasten(app: Tenure, id: int) -> None:
    """Let a job that waits run again now, and wait until a worker has had it."""
    before = app.get(id).token
    app.move(id, due_at=datetime.now(UTC) - timedelta(seconds=1))
    eventually(lambda: app.get(id).state not in (State.QUEUED, State.RUNNING))
    assert app.get(id).token > before


@defect("F-11")
def test_arguments_that_do_not_fit_wait_for_a_deploy_and_then_fail(app: Tenure) -> None:
    """They keep nobody behind them from running, and are not charged while they wait."""

    @app.task(name="app.send")
    async def send(to: str) -> str:
        return f"to {to}"

    [bad] = app.store.enqueue([NewJob(task="app.send", args=encode({"address": 7}))])
    good = send.enqueue("me")
    with working(app):
        assert good.wait(timeout_seconds=PATIENCE_SECONDS) == "to me"
        while True:
            eventually(lambda: app.get(bad.id).state in (State.SCHEDULED, State.FAILED))
            job = app.get(bad.id)
            if job.state is State.FAILED:
                break
            assert (job.attempts, job.reason) == (0, "arguments do not fit this code")
            assert job.token < 20
            hasten(app, bad.id)
    assert job.reason == "arguments do not fit"
    assert "address" in decode(job.error or "null", dict[str, str])["message"]
    app.replay(bad.id)  # it is all there, for code that understands it


@defect("F-12")
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_job_that_runs_longer_than_it_may_is_ended(app: Tenure, kind: str, lines: Lines) -> None:
    """Its attempt is charged as timed out when its time is over. A coroutine is cancelled; a thread
    cannot be, so its slot is reported stuck until it returns."""
    release = threading.Event()
    told: list[bool] = []

    @app.task(name="thread", max_attempts=1, timeout_seconds=0.3)
    def in_a_thread(job: Running) -> None:
        release.wait(PATIENCE_SECONDS)
        told.append(bool(job.lost))

    @app.task(name="async", max_attempts=1, timeout_seconds=0.3)
    async def on_the_loop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append(True)

    handle = (in_a_thread if kind == "thread" else on_the_loop).enqueue()
    with working(app, heartbeat_seconds=0.1):
        check_timed_out(app, handle.id)
        if kind == "thread":
            assert lines.with_text("its slot is stuck")
            eventually(lambda: app.workers()[0].counts["stuck"] == 1)
            release.set()
            eventually(lambda: app.workers()[0].counts["stuck"] == 0)
    assert told == [True]


@pytest.mark.slow
@defect("F-12")
def test_a_job_in_a_child_that_runs_longer_than_it_may_is_killed(children_app: Tenure) -> None:
    """The same for a handler in a child process, which is ended for good."""
    handle = children.endless.enqueue()
    with working(children_app):
        check_timed_out(children_app, handle.id)
        assert children.fine.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) == "fine"


def check_timed_out(app: Tenure, id: int) -> None:
    job = ended(app, id)
    assert (job.state, job.attempts, job.reason) == (State.FAILED, 1, "timeout")
    assert decode(job.error or "null", dict[str, str])["type"].endswith("AttemptTimedOut")


@defect("F-12")
@statement(61)
def test_draining_has_a_limit_and_what_is_left_goes_back_uncharged(app: Tenure) -> None:
    """A handler that does not stop holds nobody up. Its job is claimable at once."""
    started, release = threading.Event(), threading.Event()

    @app.task(max_attempts=1)
    def endless(job: Running) -> str:
        if job.token == 1:
            started.set()
            release.wait(PATIENCE_SECONDS)
        return f"token {job.token}"

    handle = endless.enqueue()
    with working(app, drain_seconds=0.2, kill_seconds=0.2):
        assert started.wait(PATIENCE_SECONDS)
    job = app.get(handle.id)  # the worker has ended, the handler has not
    assert (job.state, job.attempts, job.crashes, job.reason) == (State.QUEUED, 0, 0, "shutdown")
    release.set()
    with working(app):
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "token 2"


@statement(55)
def test_a_result_that_cannot_be_stored_is_a_failure_with_its_reason(app: Tenure) -> None:
    """The worker does not take the handler's return for a success, nor try for ever."""

    @app.task()
    async def nonsense() -> Any:
        return object()

    handle = nonsense.enqueue()
    with working(app):
        job = ended(app, handle.id)
    assert (job.state, job.result, job.reason) == (
        State.FAILED, None, "the result cannot be stored"
    )  # fmt: skip


@statement(57)
def test_a_retry_leaves_no_final_record_and_every_end_of_a_handler_leaves_one(
    app: Tenure,
) -> None:
    """Whichever way a handler ends its job there is one record of it, and none before."""

    @app.task(retry=Fixed(0.01), max_attempts=2)
    def ending(job: Running, way: str) -> str:
        match way:
            case "succeeded":
                return "yes"
            case "failed":
                raise ValueError("no")
            case "skipped":
                raise Skip("nothing to do")
            case "cancelled":
                raise Cancel("not wanted")
        if job.attempt == 1:
            raise Retry("later", after_seconds=3600)
        return "at last"

    ways = ["succeeded", "failed", "skipped", "cancelled"]
    handles = {way: ending.enqueue(way) for way in ways}
    later = ending.enqueue("later")
    with working(app):
        for way, handle in handles.items():
            assert ended(app, handle.id).state == way
            assert [kind for kind in kinds(app, handle.id) if kind in [*State]] == [way]
        eventually(lambda: app.get(later.id).state is State.SCHEDULED)
        job = app.get(later.id)
        assert (job.result, job.finished_at) == (None, None)
        assert len([job for job in app.list_jobs().jobs if job.state.final]) == len(ways)
        hasten(app, later.id)
        assert later.wait(timeout_seconds=PATIENCE_SECONDS) == "at last"


@statement(59)
def test_what_fails_on_the_side_does_not_change_how_a_job_ends(app: Tenure, lines: Lines) -> None:
    """A listener, what surrounds the handler, and a report of progress that cannot be written."""

    @app.listen
    def listener(event: object) -> None:
        raise RuntimeError(f"no ear for {event}")

    @app.around
    def around(job: Running) -> Any:
        raise RuntimeError(f"nothing goes around {job.id}")

    @app.task()
    def reporting(job: Running) -> str:
        job.progress(0.5, "\0 cannot be stored")
        return "done"

    handle = reporting.enqueue()
    with working(app, heartbeat_seconds=0.05):
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "done"
    assert lines.with_text("a listener failed")
    assert lines.with_text("running the job without it")
