"""A workflow of real jobs, and worker processes that run it and may be killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from tenure import Running, Tenure
from tenure.worker.worker import Worker
from tests.processes.crew import Voice

FAST: Mapping[str, Any] = {
    "lease_seconds": 1.5,
    "heartbeat_seconds": 0.4,
    "sweep_seconds": 0.1,
    "idle_poll_seconds": 0.05,
}


def application(url: str, say: Callable[..., None] | None = None) -> Tenure:
    """Tasks that say when they begin, and give what they got from their parents, plus one."""
    app = Tenure(url)

    def tell(job: Running, **what: Any) -> None:
        if say is not None:
            say("begin", (job.id, job.token, what))

    @app.task(name="root", max_attempts=50)
    async def root(job: Running) -> int:
        tell(job)
        return 1

    @app.task(name="leaf", max_attempts=50)
    async def leaf(job: Running, seconds: float) -> int:
        tell(job)
        await asyncio.sleep(seconds)
        return 1 + sum(await job.results_async(root))

    @app.task(name="fan", max_attempts=50)
    def fan(job: Running, width: int, seconds: float) -> int:
        tell(job)
        for _ in range(width):
            job.workflow.add(leaf.call(seconds), after=["root"], before=["join"])
        job.workflow.enqueue()
        time.sleep(seconds)
        return width

    @app.task(name="join", max_attempts=50)
    def join(job: Running) -> int:
        results = job.results(leaf)
        tell(job, leaves=len(results))
        return sum(results)

    @app.task(name="final", max_attempts=50)
    def final(job: Running) -> None:
        tell(job)

    return app


def work(voice: Voice, url: str) -> None:
    """The role of a worker process."""
    app = application(url, voice.say)
    voice.say("begun")
    Worker(app, **FAST).run()
