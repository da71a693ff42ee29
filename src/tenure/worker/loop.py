"""The event loop of a worker process. Unlike `asyncio.run`, no handler can end or outlast it.

When a task that a handler has left behind raises SystemExit or KeyboardInterrupt, asyncio throws it
out of the loop: the loop continues. Handlers cannot stop or close it: protected.py. At the end,
tasks that ignore their cancellation are abandoned, and so are calls in threads of the loop's
executor.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from tenure.worker.protected import ProtectedTask, protect
from tenure.worker.running.daemon_threads import DaemonThreads

END_SECONDS = 2.0
"""How long cancelled tasks may take to end."""

log = logging.getLogger("tenure.worker")


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` to its end, then end the other tasks of its loop."""
    loop = asyncio.new_event_loop()
    threads = DaemonThreads()
    loop.set_default_executor(threads)
    protect(loop)
    try:
        asyncio.set_event_loop(loop)
        _finish(loop, main)
    finally:
        try:
            _end_tasks(loop)
            _finish(loop, loop.shutdown_asyncgens())
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            asyncio.set_event_loop(None)
            loop.close()


def _finish(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, None]) -> None:
    task = ProtectedTask(main, loop=loop, name="tenure-main")
    while True:
        try:
            return loop.run_until_complete(task)
        except RuntimeError:
            if task.done() or loop.is_closed():
                raise
            log.error("the event loop was stopped from outside; the worker continues")
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done():
                raise
            log.error("a task of a handler raised %s; the worker continues", type(error).__name__)


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _finish(loop, _wait_for(tasks))


async def _wait_for(tasks: set[asyncio.Task[Any]]) -> None:
    _, left = await asyncio.wait(tasks, timeout=END_SECONDS)
    if left:
        log.error("%d cancelled tasks did not end; the worker exits without them", len(left))
