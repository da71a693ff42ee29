"""Timeouts and cancellation reach every kind of handler, and no handler can keep a worker busy."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tenure import Cancel, Fixed, Running, State, Tenure
from tenure.errors import LeaseLost
from tests.worker import isolated
from tests.worker.support import (
    PATIENCE_SECONDS,
    Lines,
    believe_in_short_jobs,
    ended,
    eventually,
    file_numbers,
    is_gone,
    kinds,
    listen,
    meddle,
    process_of,
    working,
)
from tests.worker.test_settling import locking


def timed_out(app: Tenure, id: int) -> None:
    """The last attempt of this job has failed because it took too long."""
    job = ended(app, id)
    assert (job.state, job.reason, job.attempts) == (State.FAILED, "timeout", 1)
    assert job.error is not None
    assert job.error.type == "tenure.errors.AttemptTimedOut"


def test_a_coroutine_is_cancelled_when_its_time_is_over(app: Tenure) -> None:
    seen: list[str] = []

    @app.task(timeout_seconds=0.2, max_attempts=1)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with working(app):
        timed_out(app, slow.enqueue().id)
    assert seen == ["cancelled"]


def test_a_timed_out_attempt_is_tried_again(app: Tenure) -> None:
    @app.task(timeout_seconds=0.3, max_attempts=3, retry=Fixed(0.01))
    async def slow_at_first(job: Running) -> int:
        await asyncio.sleep(60 if job.attempt == 1 else 0)
        return job.attempt

    with working(app):
        handle = slow_at_first.enqueue()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == 2
    assert kinds(app, handle.id).count("retried") == 1


@pytest.mark.slow
def test_a_coroutine_that_swallows_its_cancellation_is_given_up(app: Tenure, lines: Lines) -> None:
    go_on = asyncio.Event()
    ends: list[str] = []

    @app.task(timeout_seconds=0.2, max_attempts=1)
    async def deaf() -> str:
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()
        ends.append("ended")
        return "too late"

    @app.task()
    async def quick() -> str:
        return "quick"

    with working(app, async_slots=2, kill_seconds=0.2) as worker:
        handle = deaf.enqueue()
        timed_out(app, handle.id)
        assert quick.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) == "quick"
        stuck = eventually(lambda: [w for w in app.workers() if w.counts.get("stuck")])
        assert stuck[0].counts["stuck"] == 1
        assert worker._loop is not None
        worker._loop.call_soon_threadsafe(go_on.set)
        eventually(lambda: ends)
        eventually(lambda: not [w for w in app.workers() if w.counts.get("stuck")])
    assert ended(app, handle.id).result is None
    assert lines.with_text("does not stop; its slot is stuck")
    assert lines.with_text("ended after it was given up; not recorded")


def test_a_thread_that_goes_on_is_settled_and_its_slot_is_stuck(app: Tenure, lines: Lines) -> None:
    """Nobody can stop a thread."""
    go_on = threading.Event()
    told: list[str] = []
    heard = listen(app)

    @app.task(timeout_seconds=0.2, max_attempts=2, retry=Fixed(0.01))
    def stuck(job: Running) -> str:
        if job.attempt == 2:
            return "second"
        go_on.wait(60)
        try:
            job.check()
        except LeaseLost:
            told.append("lost")
        return "too late"

    with working(app, thread_slots=2):
        handle = stuck.enqueue()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "second"
        stuck_workers = eventually(lambda: [w for w in app.workers() if w.counts.get("stuck")])
        assert stuck_workers[0].counts["stuck"] == 1
        go_on.set()
        eventually(lambda: lines.with_text("ended after it was given up; not recorded"))
    assert told == ["lost"]
    assert ended(app, handle.id).result_json == '"second"'
    assert heard.kinds(handle.id) == ["started", "retried", "started", "succeeded"]


def test_a_worker_full_of_stuck_threads_claims_no_more_for_them(app: Tenure) -> None:
    go_on = threading.Event()

    @app.task(timeout_seconds=0.1, max_attempts=1, queue="threads")
    def stuck() -> None:
        go_on.wait(60)

    @app.task(queue="loop")
    async def quick() -> str:
        return "quick"

    with working(app, {"threads": 0, "loop": 0}, thread_slots=2):
        first = [stuck.enqueue() for _ in range(2)]
        for handle in first:
            timed_out(app, handle.id)
        waiting = stuck.enqueue()
        assert quick.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) == "quick"
        job = app.get(waiting.id)
        assert (job.state, job.token) == (State.QUEUED, 1)
        go_on.set()
        assert ended(app, waiting.id).state is State.SUCCEEDED


@pytest.mark.slow
def test_a_coroutine_that_blocks_the_loop_is_timed_out_by_the_heartbeat(
    app: Tenure, lines: Lines
) -> None:
    """Nothing on the loop can do it."""
    go_on = threading.Event()

    @app.task(timeout_seconds=0.2, max_attempts=1)
    async def blocks() -> None:
        go_on.wait(60)

    @app.task()
    async def quick() -> str:
        return "quick"

    with working(app, kill_seconds=0.2):
        handle = blocks.enqueue()
        timed_out(app, handle.id)
        assert lines.with_text("timed out while the event loop was blocked")
        go_on.set()
        assert quick.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) == "quick"
        eventually(lambda: not [w for w in app.workers() if w.running])
    timed_out(app, handle.id)


def test_a_loop_that_goes_on_while_its_job_is_timed_out_does_not_end_it_again(app: Tenure) -> None:
    """The heartbeat and the loop want to end one attempt at the same moment."""
    go_on, went_on = threading.Event(), threading.Event()
    heard = listen(app)

    @app.task(timeout_seconds=0.05, max_attempts=2, retry=Fixed(3600))
    async def blocks() -> str:
        go_on.wait(PATIENCE_SECONDS)
        asyncio.get_running_loop().call_soon(went_on.set)  # when this attempt has ended
        return "too late"

    def let_it_go_on(record: logging.LogRecord) -> bool:
        if "timed out while the event loop was blocked" in record.getMessage():
            go_on.set()
            went_on.wait(PATIENCE_SECONDS)
        return True

    logger = logging.getLogger("tenure.worker")
    logger.addFilter(let_it_go_on)  # unlike a handler, it locks nobody out
    try:
        with working(app, heartbeat_seconds=0.05, kill_seconds=0.05):
            handle = blocks.enqueue()
            eventually(lambda: len(heard.kinds(handle.id)) > 1)
    finally:
        logger.removeFilter(let_it_go_on)
    assert heard.kinds(handle.id) == ["started", "retried"]
    job = app.get(handle.id)
    assert (job.state, job.reason, job.attempts) == (State.SCHEDULED, "timeout", 1)


def test_a_coroutine_that_goes_on_after_it_blocked_the_loop_is_stopped(
    app: Tenure, lines: Lines
) -> None:
    go_on = threading.Event()
    heard = listen(app)

    @app.task(timeout_seconds=0.05, max_attempts=1)
    async def blocks() -> None:
        go_on.wait(PATIENCE_SECONDS)
        await asyncio.sleep(60)

    with working(app, heartbeat_seconds=0.05, kill_seconds=0.05):
        handle = blocks.enqueue()
        timed_out(app, handle.id)
        go_on.set()
        eventually(lambda: lines.with_text("ended after it was given up; not recorded"))
    assert heard.kinds(handle.id) == ["started", "failed"]
    assert not lines.with_text("runs longer than")


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_lock_delays_the_end_of_what_blocks_the_loop_and_does_not_drop_it(
    app: Tenure, url: str
) -> None:
    go_on, started = threading.Event(), threading.Event()

    @app.task(timeout_seconds=0.05, max_attempts=1)
    async def blocks() -> None:
        started.set()
        go_on.wait(PATIENCE_SECONDS)

    @app.task()
    async def quick() -> str:
        return "quick"

    with working(app, heartbeat_seconds=0.05, kill_seconds=0.05) as worker:
        handle = blocks.enqueue()
        assert started.wait(PATIENCE_SECONDS)
        with locking(url, handle.id):
            eventually(lambda: process_of(worker).timekeeper.blocked_loop.owed)
            go_on.set()
            assert quick.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) == "quick"
            assert app.get(handle.id).state is State.RUNNING
        timed_out(app, handle.id)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["loop", "ignores_everything"])
def test_a_child_is_terminated_and_then_killed(
    children_app: Tenure, tmp_path: Path, name: str
) -> None:
    """An endless loop; and a handler that ignores SIGTERM and every exception."""
    with working(children_app, process_slots=1, kill_seconds=0.3):
        handle = getattr(isolated, name).enqueue()
        timed_out(children_app, handle.id)
        [pid] = file_numbers(tmp_path / "started")
        assert is_gone(pid)
        assert isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) != pid


@pytest.mark.slow
def test_what_a_child_has_started_is_killed_with_it(children_app: Tenure, tmp_path: Path) -> None:
    with working(children_app, process_slots=1, kill_seconds=0.3):
        timed_out(children_app, isolated.with_grandchildren.enqueue().id)
        [pid] = file_numbers(tmp_path / "grandchildren")
        eventually(lambda: is_gone(pid))
        job = ended(children_app, isolated.dies_before_its_grandchild.enqueue().id)
        assert job.reason == "exit 0"
        pid = file_numbers(tmp_path / "grandchildren")[-1]
        eventually(lambda: is_gone(pid))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cleans_up", "cleans_up_async"])
def test_a_child_may_clean_up(children_app: Tenure, tmp_path: Path, name: str) -> None:
    """A function gets an exception, a coroutine is cancelled, whichever of its tasks is running."""
    with working(children_app, process_slots=1, kill_seconds=10):
        handle = getattr(isolated, name).options(timeout_seconds=0.5).enqueue(60)
        timed_out(children_app, handle.id)
    assert file_numbers(tmp_path / "cleaned") == file_numbers(tmp_path / "started")


@pytest.mark.slow
def test_the_time_that_a_child_needs_to_start_is_not_the_jobs(
    children_app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child takes longer to import the application than this job may run."""
    monkeypatch.setenv("TENURE_TEST_IMPORT_SECONDS", "2.0")
    with working(children_app, process_slots=1):
        handle = isolated.pid.options(timeout_seconds=1.0, max_attempts=1).enqueue()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS)


# --- cancellation ---------------------------------------------------------------------------------


def test_cancellation_reaches_a_coroutine(app: Tenure) -> None:
    seen: list[str] = []

    @app.task()
    async def slow(job: Running) -> None:
        seen.append("started")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append(f"cancelled {bool(job.cancelled)}")
            raise

    with working(app):
        handle = slow.enqueue()
        eventually(lambda: seen)
        assert app.cancel(handle.id)
        job = ended(app, handle.id)
    assert (job.state, job.reason, job.attempts) == (State.CANCELLED, "cancelled", 0)
    assert seen == ["started", "cancelled True"]


def test_a_coroutine_that_finishes_though_it_was_cancelled_has_succeeded(app: Tenure) -> None:
    """Its own result counts, not the request that it did not follow."""
    started = threading.Event()

    @app.task()
    async def finishes() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished"
        return "never"

    with working(app):
        handle = finishes.enqueue()
        assert started.wait(PATIENCE_SECONDS)
        assert app.cancel(handle.id) is State.RUNNING
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "finished"


def test_cancellation_reaches_a_thread(app: Tenure) -> None:
    seen: list[str] = []

    @app.task()
    def waits(job: Running) -> None:
        seen.append("waits")
        assert job.cancelled.wait(60)
        job.check()

    @app.task()
    def looks(job: Running) -> str:
        seen.append("looks")
        while True:
            time.sleep(0.01)
            try:
                job.check()
            except Cancel:
                return "finished nevertheless"

    with working(app):
        first, second = waits.enqueue(), looks.enqueue()
        eventually(lambda: len(seen) == 2)
        app.cancel(first.id)
        app.cancel(second.id)
        assert ended(app, first.id).state is State.CANCELLED
        job = ended(app, second.id)
    assert (job.state, job.result_json) == (State.SUCCEEDED, '"finished nevertheless"')


@pytest.mark.slow
def test_a_thread_that_ignores_cancellation_is_reported(app: Tenure, lines: Lines) -> None:
    go_on = threading.Event()
    started = threading.Event()

    @app.task()
    def deaf() -> str:
        started.set()
        go_on.wait(60)
        return "done"

    with working(app, kill_seconds=0.2):
        handle = deaf.enqueue()
        assert started.wait(PATIENCE_SECONDS)
        app.cancel(handle.id)
        eventually(lambda: lines.with_text("does not stop; its slot is stuck"))
        assert app.get(handle.id).state is State.RUNNING
        assert "asked to stop" in app.why(handle.id)
        go_on.set()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "done"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_handler_that_ignores_cancellation_is_timed_out_all_the_same(
    app: Tenure, lines: Lines, kind: str
) -> None:
    go_on, started = threading.Event(), threading.Event()

    @app.task(timeout_seconds=1.0)
    def deaf_thread() -> None:
        started.set()
        go_on.wait(60)

    @app.task(timeout_seconds=1.0)
    async def deaf() -> None:
        started.set()
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    with working(app, heartbeat_seconds=0.05, kill_seconds=0.1):
        handle = (deaf if kind == "async" else deaf_thread).enqueue()
        assert started.wait(PATIENCE_SECONDS)
        app.cancel(handle.id)
        job = ended(app, handle.id)
        assert (job.state, job.reason, job.attempts) == (State.CANCELLED, "cancelled", 1)
        go_on.set()
        eventually(lambda: lines.with_text("ended after it was given up; not recorded"))
    assert len(lines.with_text("runs longer than 1 s")) == 1
    assert len(lines.with_text("does not stop; its slot is stuck")) == 1


@pytest.mark.slow
def test_cancellation_reaches_a_child(children_app: Tenure, tmp_path: Path) -> None:
    with working(children_app, process_slots=1):
        handle = isolated.cleans_up.enqueue(60)
        [pid] = eventually(lambda: file_numbers(tmp_path / "started"))
        children_app.cancel(handle.id)
        job = ended(children_app, handle.id)
    assert (job.state, job.reason) == (State.CANCELLED, "cancelled")
    assert file_numbers(tmp_path / "cleaned") == [pid]


def test_a_job_cancelled_before_it_starts_never_starts(app: Tenure) -> None:
    """It was claimed ahead and waits for a slot."""
    go_on = threading.Event()
    ran: list[str] = []

    @app.task(queue="one")
    def first() -> None:
        ran.append("first")
        go_on.wait(60)

    @app.task(queue="one")
    def second() -> None:
        ran.append("second")

    with working(app, {"one": 0}, thread_slots=1) as worker:
        believe_in_short_jobs(worker)
        blocked = first.enqueue()
        eventually(lambda: ran)
        waiting = second.enqueue()
        eventually(lambda: app.get(waiting.id).state is State.RUNNING)  # claimed ahead
        app.cancel(waiting.id)
        eventually(lambda: any(leased.cancelled for leased in process_of(worker).leased_jobs.all()))
        go_on.set()
        assert ended(app, waiting.id).state is State.CANCELLED
        assert ended(app, blocked.id).state is State.SUCCEEDED
    assert ran == ["first"]


# --- lost leases ----------------------------------------------------------------------------------


def test_a_lost_lease_reaches_a_child(
    children_app: Tenure, tmp_path: Path, url: str, lines: Lines
) -> None:
    with working(children_app, process_slots=1, sweep_seconds=0.1):
        handle = isolated.cleans_up.enqueue(60)
        [pid] = eventually(lambda: file_numbers(tmp_path / "started"))
        meddle(url, "delete from tenure.lease")
        eventually(lambda: is_gone(pid))
        eventually(lambda: lines.with_text("ended after its lease was lost; not recorded"))
    assert file_numbers(tmp_path / "cleaned") == [pid]
    assert children_app.get(handle.id).result is None
