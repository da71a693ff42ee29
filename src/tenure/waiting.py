"""How a caller waits: look, rest, look again, with rests that grow."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from tenure.errors import BlockingWait, WaitTimeout
from tenure.rules.limits import check_seconds
from tenure.store.api import AsyncRunner, Runner, rest_on

T = TypeVar("T")

_loops_of_workers: Counter[asyncio.AbstractEventLoop] = Counter()
"""The event loops of this process that run workers, and how many each."""


@contextmanager
def worker_on_this_loop() -> Iterator[None]:
    """A worker runs on this event loop: a blocking `wait` is refused here."""
    loop = asyncio.get_running_loop()
    _loops_of_workers[loop] += 1
    try:
        yield
    finally:
        _loops_of_workers[loop] -= 1
        if not _loops_of_workers[loop]:
            del _loops_of_workers[loop]


def _refuse_on_worker_loop() -> None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return  # no event loop runs in this thread
    if loop in _loops_of_workers:
        raise BlockingWait(
            "wait() would block the event loop of a worker, which then cannot run the job; use "
            "'await ...wait_async()'"
        )


class Rests(NamedTuple):
    """How long to rest after the first look, and how long at most."""

    first_seconds: float
    longest_seconds: float


async def wait_until(
    runner: Runner,
    look: Callable[[], Awaitable[T]],
    done: Callable[[T], bool],
    *,
    rests: Rests,
    timeout_seconds: float | None,
    late: Callable[[], Awaitable[str]],
) -> T:
    """The first result of `look` that is `done`.

    Raises `WaitTimeout` after `timeout_seconds`, with the message that `late` gives. A caller that
    would block the event loop of a worker gets `BlockingWait`.
    """
    if not isinstance(runner, AsyncRunner):
        _refuse_on_worker_loop()
    if timeout_seconds is not None:
        check_seconds("timeout_seconds", timeout_seconds)
    started, rest_seconds = time.monotonic(), rests.first_seconds
    while not done(found := await look()):
        if timeout_seconds is not None:
            left = timeout_seconds - (time.monotonic() - started)
            if left <= 0:
                raise WaitTimeout(await late())
            rest_seconds = min(rest_seconds, left)
        await rest_on(runner, rest_seconds)
        rest_seconds = min(rest_seconds * 1.5, rests.longest_seconds)
    return found
