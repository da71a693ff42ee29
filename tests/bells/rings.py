"""What the tests of bells share: a ring that counts, and a connection that hears notifications."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql

from tests.support.patience import PATIENCE_SECONDS

CHANNEL = "tenure.bell"


class Rings:
    """Counts how often it was rung, and by which thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.count = 0
        self.at = 0.0
        self.thread = ""

    def __call__(self) -> None:
        with self._condition:
            self.count += 1
            self.at = time.monotonic()
            self.thread = threading.current_thread().name
            self._condition.notify_all()

    def wait_for(self, count: int, seconds: float = PATIENCE_SECONDS) -> bool:
        """Wait until it has been rung so often."""
        with self._condition:
            return self._condition.wait_for(lambda: self.count >= count, seconds)

    def stay_quiet(self, seconds: float) -> None:
        """Nobody may ring for so long."""
        before = self.count
        assert not self.wait_for(before + 1, seconds), "it rang for nothing"


class Listener:
    """A session that listens as a bell does, and remembers what it heard."""

    def __init__(self, url: str, channel: str = CHANNEL) -> None:
        self.connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        self._channel = channel
        self.connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))

    def heard(self) -> list[str]:
        """The payloads since the last call. Notifications come in order: ours is the last."""
        self.connection.execute("select pg_notify(%s, 'the end')", [self._channel])
        payloads: list[str] = []
        for note in self.connection.notifies(timeout=PATIENCE_SECONDS):
            if note.payload == "the end":
                return payloads
            payloads.append(note.payload)
        raise AssertionError("the end was not heard")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.connection.close()


def bell_threads() -> list[threading.Thread]:
    """The threads of bells in this process."""
    return [thread for thread in threading.enumerate() if thread.name == "tenure-bell"]


def cpu_share(thread: threading.Thread, rings: Rings, seconds: float = 2.0) -> float:
    """Which part of a core a thread uses while nothing happens."""
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    before = time.clock_gettime(clock)
    rings.stay_quiet(seconds)
    return (time.clock_gettime(clock) - before) / seconds
