"""The measured application. Its handlers do nothing; its database is TENURE_URL.

Each kind of handler has its own queue. If a queue has several kinds, a worker claims only as many
jobs as the kind with the fewest slots can run, and the figures would show that limit instead.
"""

import time
from typing import Any, Final

from tenure.app import Tenure
from tenure.rules.claim import Kind
from tenure.tasks import Task

app = Tenure()

ARGS: Final[dict[str, Any]] = {
    "user_id": 1234567,
    "template": "welcome",
    "locale": "en_GB",
    "to": "someone.or.other@example.com",
}
"""About 100 bytes."""


@app.task(name="bench.async", queue="async")
async def on_loop(user_id: int, template: str, locale: str, to: str) -> None:
    """A coroutine."""


@app.task(name="bench.thread", queue="thread")
def in_thread(user_id: int, template: str, locale: str, to: str) -> None:
    """A function in a thread."""


@app.task(name="bench.process", queue="process", isolation="process")
def in_process(user_id: int, template: str, locale: str, to: str) -> None:
    """A function in a child process."""


@app.task(name="bench.clock", queue="async")
async def clock() -> float:
    """The start time, on the clock that all processes of the machine share."""
    return time.monotonic()


TASKS: Final[dict[Kind, Task[..., None]]] = {
    "async": on_loop,
    "thread": in_thread,
    "process": in_process,
}
"""Tasks by kind. The kind is also the name of the queue."""
