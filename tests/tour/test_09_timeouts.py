"""An attempt that takes too long is ended, and counts as failed."""

import asyncio
import threading

import pytest

from tenure import Running, State, Tenure
from tenure.errors import JobFailed
from tests.support.working import working


def test_a_coroutine_is_cancelled(app: Tenure) -> None:
    tidied_up = []

    @app.task(timeout_seconds=0.1, max_attempts=1)
    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tidied_up.append(True)

    with working(app):
        handle = wait_for_ever.enqueue()
        with pytest.raises(JobFailed, match=r"AttemptTimedOut: stopped after 0.1 s"):
            handle.wait(timeout_seconds=30)
    assert tidied_up


def test_a_thread_cannot_be_stopped_but_is_told(app: Tenure) -> None:
    told = threading.Event()

    @app.task(timeout_seconds=0.1, max_attempts=1)
    def compute(job: Running) -> str:
        job.lost.wait(30)  # nothing that this attempt does is recorded any more
        told.set()
        return "too late"

    with working(app):
        job = app.wait(compute.enqueue().id, timeout_seconds=30)
        assert told.wait(30)
    assert (job.state, job.reason) == (State.FAILED, "timeout")
    assert job.error is not None
    assert job.error.type.endswith("AttemptTimedOut")
