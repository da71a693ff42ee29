"""Three kinds of handlers: coroutines, threads and child processes."""

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from tenure import State, Tenure
from tests.support.working import working
from tests.tour import training


def test_async_handlers_share_the_event_loop(app: Tenure) -> None:
    together = asyncio.Barrier(50)

    @app.task()
    async def meet() -> str:
        await together.wait()  # needs all fifty at once
        return threading.current_thread().name

    handles = app.enqueue_many([meet.call()] * 50)
    with working(app, async_slots=50):
        assert len({handle.wait(timeout_seconds=30) for handle in handles}) == 1


def test_plain_functions_run_in_threads(app: Tenure) -> None:
    together = threading.Barrier(4)

    @app.task()
    def meet() -> str:
        together.wait(timeout=30)
        return threading.current_thread().name

    handles = app.enqueue_many([meet.call()] * 4)
    with working(app, thread_slots=4):
        assert len({handle.wait(timeout_seconds=30) for handle in handles}) == 4


@pytest.fixture
def isolated(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenure]:
    """The application of `training.py`, on the database under test."""
    monkeypatch.setenv("TENURE_URL", url)
    with training.app as app:
        yield app


@pytest.mark.slow
def test_isolated_handlers_run_in_child_processes(isolated: Tenure) -> None:
    with working(isolated, process_slots=1):
        result = training.train.enqueue(3).wait(timeout_seconds=30)
    assert result["epochs"] == 3
    assert result["pid"] != os.getpid()


@pytest.mark.slow
def test_a_crash_costs_one_attempt_and_never_the_worker(isolated: Tenure) -> None:
    with working(isolated, process_slots=1):
        job = isolated.wait(training.segfault.enqueue().id, timeout_seconds=30)
        assert job.state is State.FAILED
        assert job.reason == "exit 134 (SIGABRT)"
        assert job.error is not None
        assert "about to fall over" in (job.error.output or "")  # what it had printed
        assert training.train.enqueue(1).wait(timeout_seconds=30)["epochs"] == 1


@pytest.mark.slow
def test_a_handler_that_does_not_stop_is_killed(isolated: Tenure) -> None:
    with working(isolated, process_slots=1, kill_seconds=0.2):
        job = isolated.wait(training.spin.enqueue().id, timeout_seconds=30)
    assert (job.state, job.reason) == (State.FAILED, "timeout")
