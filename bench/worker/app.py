"""The application that a measured worker process runs: `python -m bench.worker.app URL KIND FD`.

The handler does nothing. Its arguments are those of the engine's benchmarks. What must be told to
the measuring process goes through the file descriptor, line by line.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from tenure import TaskSet, Tenure

QUEUE = "default"
NOOP = "mail.send"
LAST = "bench.last"
"""Says that its turn has come. Jobs run in order, so all before it have at least started."""
CLOCK = "bench.clock"
"""Says when it started, by the clock that all processes of a machine share."""
SLEEP, SLEEP_SECONDS = "bench.sleep", 0.02
SLOTS = 20
"""Of each kind, for jobs that sleep."""


app: Tenure


def async_tasks(tell: int) -> TaskSet:
    """Handlers on the event loop."""
    tasks = TaskSet()

    @tasks.task(name=NOOP)
    async def send(user_id: int, template: str, locale: str, to: str) -> None:
        pass

    @tasks.task(name=LAST)
    async def last() -> None:
        os.write(tell, b"last\n")

    @tasks.task(name=CLOCK)
    async def clock() -> None:
        os.write(tell, b"%.9f\n" % time.monotonic())

    return tasks


def thread_tasks(tell: int) -> TaskSet:
    """Handlers in threads."""
    tasks = TaskSet()

    @tasks.task(name=NOOP)
    def send(user_id: int, template: str, locale: str, to: str) -> None:
        pass

    @tasks.task(name=LAST)
    def last() -> None:
        os.write(tell, b"last\n")

    return tasks


def unused_tasks(tell: int) -> TaskSet:
    """Handlers on the event loop, and tasks of the other kinds that have no jobs."""
    tasks = async_tasks(tell)

    @tasks.task(name="bench.in_thread")
    def in_thread() -> None: ...

    @tasks.task(name="bench.in_child", isolation="process")
    def in_child() -> None: ...

    return tasks


def mixed_tasks(tell: int) -> TaskSet:
    """Handlers of two kinds that sleep."""
    tasks = TaskSet()

    @tasks.task(name=f"{SLEEP}.async")
    async def in_loop() -> None:
        await asyncio.sleep(SLEEP_SECONDS)

    @tasks.task(name=f"{SLEEP}.thread")
    def in_thread() -> None:
        time.sleep(SLEEP_SECONDS)

    @tasks.task(name=f"{LAST}.async")
    async def last_in_loop() -> None:
        os.write(tell, b"async\n")

    @tasks.task(name=f"{LAST}.thread")
    def last_in_thread() -> None:
        os.write(tell, b"thread\n")

    return tasks


def main() -> None:
    """Work until a signal comes, with the default settings unless jobs sleep."""
    global app  # noqa: PLW0603 - where child processes would look for it
    url, kind, tell = sys.argv[1:]
    app = Tenure(url)
    makers = {
        "async": async_tasks, "thread": thread_tasks, "unused": unused_tasks, "mixed": mixed_tasks,
    }  # fmt: skip
    app.include(makers[kind](int(tell)))
    if kind == "mixed":
        app.run_worker(async_slots=SLOTS, thread_slots=SLOTS)
    else:
        app.run_worker()


if __name__ == "__main__":
    main()
