"""A worker that stops finishes running jobs, returns all others, and loses none."""

import asyncio
import threading

from tenure import State, Tenure
from tests.support.working import working


def test_running_jobs_may_finish(app: Tenure) -> None:
    started, go_on = threading.Event(), threading.Event()

    @app.task()
    def brew() -> str:
        started.set()
        go_on.wait(30)
        return "tea"

    with working(app, {"default": 1}) as worker:
        first, second = brew.enqueue(), brew.enqueue()
        assert started.wait(30)
        worker.stop()  # what SIGTERM does to `app.run_worker()`
        go_on.set()
        assert first.wait(timeout_seconds=30) == "tea"
    assert app.get(second.id).state is State.QUEUED


def test_what_does_not_finish_in_time_goes_back_uncharged(app: Tenure) -> None:
    started = threading.Event()

    @app.task()
    async def for_ever() -> None:
        started.set()
        await asyncio.Event().wait()

    with working(app, drain_seconds=0.1):
        handle = for_ever.enqueue()
        assert started.wait(30)
    job = app.get(handle.id)
    assert (job.state, job.reason, job.attempts) == (State.QUEUED, "shutdown", 0)
