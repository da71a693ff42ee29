"""A small shop: the tasks of one application, and its worker.

    TENURE_URL=sqlite:///shop.db python -m examples.shop    # works until Ctrl-C

Some of these tasks are made to fail: the bank hangs up now and then, and the label printer has a
broken driver.
"""

import asyncio
import logging
import os
import signal
import time
from dataclasses import dataclass

from tenure import Exponential, Running, Tenure

app = Tenure()  # on the database that TENURE_URL names


@dataclass(frozen=True, slots=True)
class Order:
    """What somebody has bought."""

    number: int
    cents: int


@app.task()
async def confirm(order: Order) -> str:
    """A coroutine: one worker process runs many of them at once."""
    await asyncio.sleep(0.01)
    return confirmation(order)


def confirmation(order: Order) -> str:
    return f"thank you for order {order.number}"


@app.task(max_attempts=20, retry=Exponential(base_seconds=0.2, cap_seconds=1.0))
def charge(job: Running, order: Order) -> int:
    """A plain function: it runs in a thread. What it raises is tried again."""
    if order.number % 20 == 0 and job.attempt == 1:
        raise ConnectionError("the bank hung up")
    return order.cents


@app.task(isolation="process", max_attempts=2)
def print_label(order: Order) -> str:
    """In a process of its own: what kills that process costs an attempt, and not the worker."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return f"label {order.number}"


@app.task(queue="reports")
def report(job: Running, months: int) -> list[int]:
    """A long job that goes on where the last attempt has stopped. Answers who did which month."""
    tokens = job.load(list[int]) or []
    for month in range(len(tokens), months):
        time.sleep(0.2)
        tokens.append(job.token)
        job.save(tokens)
        job.progress((month + 1) / months, f"month {month + 1}")
    return tokens


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")
    app.run_worker(
        {"default": 0, "reports": 1},
        processes=2, lease_seconds=2.0, heartbeat_seconds=0.5, drain_seconds=5.0,
    )  # fmt: skip
