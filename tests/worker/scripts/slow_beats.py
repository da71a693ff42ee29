"""A worker in a process of its own whose heartbeats are 20 minutes apart, on TENURE_URL."""

from __future__ import annotations

import asyncio
import logging
import os

from tenure import Running, Tenure

app = Tenure()


def say(words: str) -> None:
    os.write(1, f"{words}\n".encode())


@app.task(max_attempts=1)
def in_thread(job: Running) -> None:
    for n in range(1, 4):
        job.progress(n / 10, f"step {n}")
        say(f"thread {job.id} reported {n}")
    if not job.cancelled.wait(600):
        raise TimeoutError
    job.check()


@app.task(max_attempts=1)
async def on_loop(job: Running) -> None:
    job.progress(0.5, "half")
    say(f"loop {job.id}")
    await asyncio.sleep(600)


@app.task(max_attempts=1, isolation="process")
def in_child(job: Running) -> None:
    job.progress(0.25, "a quarter")
    say(f"child {job.id}")
    job.cancelled.wait(600)
    job.check()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    app.run_worker(lease_seconds=3600.0, heartbeat_seconds=1200.0, kill_seconds=60.0)
