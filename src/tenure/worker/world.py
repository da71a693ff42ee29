"""The seam to everything outside: time, chance, processes, and moments for a test to crash us.

The worker asks its world, never `time`, `random` or `os` directly, so that a simulator can put
another world in its place and drive the real code.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from tenure.store import AsyncStore, Store


class World:
    """The real one."""

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """Seconds that only grow. (Asked for twice per job: no method of ours in between.)"""

    def now(self) -> datetime:
        """The wall clock, for what people read; nothing is decided by it."""
        return datetime.now(UTC)

    def random(self) -> float:
        """A number from 0 to 1."""
        return random.random()

    def crash_point(self, name: str) -> None:
        """A moment with a name. Nothing happens here, except in tests."""

    def watch(self, store: Store) -> Store:
        """A store that the worker will use; a recorder puts itself in between."""
        return store

    def watch_async(self, store: AsyncStore) -> AsyncStore:
        """The same for the other colour."""
        return store

    def kill_group(self, leader: int, how: signal.Signals) -> None:
        """Send a signal to a process and to all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(leader, how)

    def exit_now(self, code: int) -> None:
        """End this process without another word."""
        os._exit(code)
