"""A corpus backfill: thousands of small jobs, a few long ones, and a step that is broken at first.

TENURE_URL=sqlite:///corpus.db python -m examples.backfill [RECORDS]     # works until Ctrl-C
"""

import asyncio
import logging
import os
import random
import sys
import time
from pathlib import Path

from tenure import Fixed, Running, Tenure, Worker
from tenure.worker.recorder import RecordingWorld

app = Tenure()  # on the database that TENURE_URL names


@app.task(queue="pages", max_attempts=8, retry=Fixed(0.5))
async def embed(job: Running, page: int) -> int:
    """A small job. Every fiftieth page meets a hiccup and is tried again."""
    await asyncio.sleep(random.uniform(0.05, 0.25))
    if page % 50 == 0 and job.attempt == 1:
        raise ConnectionError("the embedding service hung up")
    return page * page


@app.task(queue="books")
def summarise(job: Running, book: int, chapters: int) -> list[int]:  # noqa: ARG001
    """A long job that goes on where the last attempt has stopped. Answers who did which chapter."""
    tokens = job.load(list[int]) or []
    for chapter in range(len(tokens), chapters):
        time.sleep(0.5)
        tokens.append(job.token)
        job.save(tokens)
        job.progress((chapter + 1) / chapters, f"chapter {chapter + 1} of {chapters}")
    return tokens


@app.task(queue="pages", max_attempts=3, retry=Fixed(0.5))
def publish(shelf: int) -> str:
    """Fails until somebody has fixed the shelf, and so ends among the dead letters."""
    if not Path(os.environ["SHELF_FIXED"]).exists():
        raise RuntimeError("the shelf has no room")
    return f"shelf {shelf}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    world = RecordingWorld(Path(sys.argv[1]))
    world.record(app)
    Worker(
        app, {"pages": 10, "books": 2}, world=world,
        lease_seconds=3.0, heartbeat_seconds=0.5, drain_seconds=5.0,
    ).run()  # fmt: skip
