"""The event loop and the tasks of a worker, protected from its handlers.

A handler may stop the loop, close it, or cancel all tasks of the loop. That would end the worker,
and other handlers with it. So the worker's own loop and tasks refuse it: the handler gets an error,
which is the failure of its own attempt.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from tenure.errors import LoopMisused
from tenure.running import current

log = logging.getLogger("tenure.worker")
_last_misuse: tuple[int, float] | None = None
"""The job whose handler last tried it, and when, by the clock of the event loop.

It is the monotonic clock of the worker's environment, also in a simulation."""


class ProtectedTask(asyncio.Task[None]):
    """A task that no handler can cancel."""

    def cancel(self, msg: Any | None = None) -> bool:
        refuse_to_handlers("cancel a task of its worker", self.get_loop())
        return super().cancel(msg)


def start_task(coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start a task of the worker on the running event loop."""
    return ProtectedTask(coroutine, loop=asyncio.get_running_loop(), name=name)


def protect(loop: asyncio.AbstractEventLoop) -> None:
    """Let no handler stop or close this event loop."""
    loop.stop = _protected(loop, loop.stop, "stop")  # type: ignore[method-assign]
    loop.close = _protected(loop, loop.close, "close")  # type: ignore[method-assign]


def _protected(
    loop: asyncio.AbstractEventLoop, call: Callable[[], None], deed: str
) -> Callable[[], None]:
    def called() -> None:
        refuse_to_handlers(f"{deed} the event loop of its worker", loop)
        call()

    return called


def refuse_to_handlers(deed: str, loop: asyncio.AbstractEventLoop) -> None:
    """Raise `LoopMisused` if a handler calls this, and name its job in the log."""
    global _last_misuse  # noqa: PLW0603
    job = current()
    if job is not None:
        _last_misuse = job.id, loop.time()
        log.error("job %d of %s tried to %s; refused", job.id, job.task, deed)
        raise LoopMisused(f"a handler must not {deed}; to end the attempt, return or raise")


def misused_since(at: float) -> int | None:
    """The job whose handler has tried it since then, if there is one."""
    return None if _last_misuse is None or _last_misuse[1] < at else _last_misuse[0]
