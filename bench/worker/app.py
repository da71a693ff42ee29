"""The application that a measured worker process runs: `python -m bench.worker.app URL KIND FD`.

The handler does nothing. Its arguments are those of the engine's benchmarks. What must be told to
the measuring process goes through the file descriptor, line by line.
"""

from __future__ import annotations

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


def main() -> None:
    """Work with the default settings until a signal comes."""
    url, kind, tell = sys.argv[1:]
    app = Tenure(url)
    app.include({"async": async_tasks, "thread": thread_tasks}[kind](int(tell)))
    app.run_worker()


if __name__ == "__main__":
    main()
