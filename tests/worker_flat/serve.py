"""The worker process under test: `python -m tests.worker_flat.serve URL`."""

from __future__ import annotations

import gc
import sys

from tenure import TaskSet, Tenure

tasks = TaskSet()


@tasks.task(name="flat.async")
async def in_loop(text: str) -> str:
    return text


@tasks.task(name="flat.thread")
def in_thread(text: str) -> str:
    return text


@tasks.task(name="flat.collect")
async def collect() -> None:
    gc.collect()


if __name__ == "__main__":
    app = Tenure(sys.argv[1])
    app.include(tasks)
    # Services so often that all of them meet early: what they hold together is held from then on.
    app.run_worker(promote_seconds=0.05, sweep_seconds=0.05)
