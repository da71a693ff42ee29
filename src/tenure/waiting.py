"""How a caller waits: look, rest, look again, with rests that grow."""

import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from tenure.errors import WaitTimeout
from tenure.rules.limits import check_seconds
from tenure.store.colours import Runner, rest_on

T = TypeVar("T")


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

    Raises `WaitTimeout` after `timeout_seconds`, with the message that `late` gives.
    """
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
