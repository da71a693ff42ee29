"""A corpus backfill: thousands of small jobs, a few long jobs, and a task that is broken at first.

    TENURE_URL=sqlite:///corpus.db python -m examples.backfill [RECORDS]

runs a worker until Ctrl-C. With a folder for RECORDS the worker records all that it does, for the
history checker. It then also exits when its standard input is closed, because its parent has ended.
"""

import asyncio
import logging
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from tenure import Fixed, Running, Tenure, Worker
from tenure.testing.recorder import RecordingWorld

app = Tenure()  # on the database that TENURE_URL names


@app.task(queue="pages", max_attempts=8, retry=Fixed(0.5))
async def embed(job: Running, page: int) -> int:
    """A small job. Every fiftieth page fails at its first attempt and is retried."""
    await asyncio.sleep(random.uniform(0.05, 0.25))
    if page % 50 == 0 and job.attempt == 1:
        raise ConnectionError("the embedding service hung up")
    return page * page


@app.task(queue="books", max_attempts=50)
def summarise(job: Running, book: int, chapters: int) -> list[int]:  # noqa: ARG001
    """A long job that continues from its checkpoint. Returns the token of each chapter."""
    tokens = job.load(list[int]) or []
    for chapter in range(len(tokens), chapters):
        time.sleep(0.5)
        tokens.append(job.token)
        job.save(tokens)
        job.progress((chapter + 1) / chapters, f"chapter {chapter + 1} of {chapters}")
    return tokens


@app.task(queue="shelves", max_attempts=3, retry=Fixed(0.5))
def publish(shelf: int) -> str:
    """Fails until the shelf is fixed, so its jobs become dead letters."""
    if not Path(os.environ.get("SHELF_FIXED", "shelf-fixed")).exists():
        raise RuntimeError("the shelf has no room")
    return f"shelf {shelf}"


def work(records: Path | None) -> None:
    """Run a worker until it is interrupted."""
    world = None
    if records is not None:
        world = RecordingWorld(records)
        world.record(app)
        threading.Thread(target=end_with_stdin, daemon=True).start()
    Worker(
        app, {"pages": 10, "books": 2, "shelves": 2}, world=world,
        lease_seconds=3.0, heartbeat_seconds=0.5, drain_seconds=5.0,
    ).run()  # fmt: skip


def end_with_stdin() -> None:
    """Interrupt this process when its standard input is closed."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    work(Path(sys.argv[1]) if sys.argv[1:] else None)
