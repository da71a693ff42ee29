"""The seam to everything outside: time, chance, threads, processes, and moments for a crash.

The worker asks its world, never `time`, `random`, `threading` or `os` directly, so that a simulator
can put another world in its place and drive the real code. (Its event loop is asyncio's: a
simulator brings one of its own.)
"""

import os
import queue
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

from tenure.store import AsyncStore, Store


class Thread(Protocol):
    """What the worker needs of a thread."""

    def start(self) -> None:
        """Begin."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most so long."""


class Event(Protocol):
    """A fact that threads wait for."""

    def set(self) -> None:
        """From now on it is so."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is so, at most so long. Answers whether it is."""


class Permits(Protocol):
    """Handed out one by one."""

    def put(self, item: None) -> None:
        """One more."""

    def get(self) -> None:
        """Wait for one and take it."""


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

    def secret(self) -> str:
        """A short text that nobody else has."""
        return secrets.token_hex(4)

    def thread(self, body: Callable[[], None], name: str) -> Thread:
        """A thread that keeps no process from ending."""
        return threading.Thread(target=body, name=name, daemon=True)

    def event(self) -> Event:
        """For threads that wait for each other."""
        return threading.Event()

    def permits(self) -> Permits:
        """For threads that share work."""
        return queue.SimpleQueue()

    def crash_point(self, name: str) -> None:
        """A moment with a name. Nothing happens here, except in tests."""

    def wrap(self, store: Store) -> Store:
        """A store that the worker will use; a recorder puts itself in between."""
        return store

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        """The same for the other colour."""
        return store

    def kill_group(self, leader: int, how: signal.Signals) -> None:
        """Send a signal to a process and to all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(leader, how)

    def exit_now(self, code: int) -> None:
        """End this process without another word."""
        os._exit(code)
