"""The seam to time, randomness, threads and processes, and to named moments for crash tests.

The worker asks its environment, never `time`, `random`, `threading` or `os` directly. A simulation
puts another environment in its place and runs the real worker code. (The event loop is asyncio's: a
simulation brings its own.)
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
    """The part of a thread that the worker uses."""

    def start(self) -> None:
        """Start the thread."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, at most `timeout` seconds."""


class Event(Protocol):
    """An event that threads wait for."""

    def set(self) -> None:
        """Set the event; it stays set until it is cleared."""

    def clear(self) -> None:
        """The event is not set any more."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the event, at most `timeout` seconds. Returns whether it is set."""


class Permits(Protocol):
    """A queue of permits, taken one at a time."""

    def put(self, item: None) -> None:
        """Add one permit."""

    def get(self) -> None:
        """Wait for a permit and take it."""


class Environment:
    """The real environment."""

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """Seconds that never go back. (Called twice per job: not wrapped in a method.)"""

    def now(self) -> datetime:
        """The wall clock, for people to read; no decision depends on it."""
        return datetime.now(UTC)

    def random(self) -> float:
        """A number from 0 to 1."""
        return random.random()

    def secret(self) -> str:
        """A short unique text."""
        return secrets.token_hex(4)

    def thread(self, body: Callable[[], None], name: str) -> Thread:
        """A daemon thread: it does not keep the process alive."""
        return threading.Thread(target=body, name=name, daemon=True)

    def event(self) -> Event:
        """An event for threads."""
        return threading.Event()

    def permits(self) -> Permits:
        """Permits for threads that share work."""
        return queue.SimpleQueue()

    def crash_point(self, name: str) -> None:
        """A named moment. Only tests do something here."""

    def wrap(self, store: Store) -> Store:
        """Called with each store that the worker opens; a recorder returns a proxy."""
        return store

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        """The same for async stores."""
        return store

    def kill_group(self, leader: int, how: signal.Signals) -> None:
        """Send a signal to a process and to all processes that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(leader, how)

    def exit_now(self, code: int) -> None:
        """End this process at once, without clean-up."""
        os._exit(code)
