"""The bell of a SQLite file: it looks again and again whether tickets were put in line.

A look is `PRAGMA data_version` on a connection of its own. It costs 7 microseconds in a busy loop,
but 130 after a sleep, half of them for the waking: 250 looks a second took 3 % of a core (of a
small virtual machine). So on Linux the bell sleeps until somebody writes to the file's log, looks
at once and soon again, and often for a while after that; a commit can be seen some time after it
was written, when the disk has it. Elsewhere, and where the kernel does not tell (some mounts of
containers), it looks all the time.
"""

import math
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from tenure.errors import InvalidInput, StoreBusy, TenureError
from tenure.store.bell import Bell, Ring, pause_seconds
from tenure.store.sqlite.inotify import Watch, watch

SOON_SECONDS = (0.001, 0.002, 0.012)
"""The pauses after a write. The disk mostly has it within the first two; the third keeps a file to
which many write from being looked at all the time."""

LOOK_SECONDS = 0.004
"""After that, while awake, unless another write comes first. Later on less often: a commit that
takes long is seen an eighth of that time late."""

AWAKE_SECONDS = 1.0
ASLEEP_SECONDS = 0.5
"""One look in a while, asleep: 0.05 % of a core."""

LOOK_ALWAYS_SECONDS = 0.006
"""Without the kernel's help: 2 % of a core, half of the commits within 3.2 ms."""


class Lines(Protocol):
    """What is looked at: the session of one SQLite file."""

    path: str

    def look(self) -> object: ...
    def look_away(self) -> None: ...


class SQLiteBell(Bell):
    """Looks for signs of new tickets, and rings when they have changed."""

    def __init__(self, lines: Lines, ring: Ring) -> None:
        super().__init__(ring)
        self._lines = lines
        self._stopping = threading.Event()

    @property
    def ahead_seconds(self) -> float:
        return math.inf if self._hears else 0.0  # whatever its due time, a ticket draws a place

    def _prepare(self) -> None:
        self._stopping = threading.Event()

    def _wake(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        nap = _Nap(watch(f"{self._lines.path}-wal"))
        signs: object = None
        failures = 0
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                seen = self._lines.look()
            except StoreBusy:
                seen = signs  # somebody recovers the file, or forks
            except InvalidInput:
                break  # the store was closed
            except TenureError as error:
                self._lost(error)
                failures += 1
                pause = pause_seconds(failures)
                continue
            failures = 0
            self._heard()
            if seen != signs:
                signs = seen
                nap.found_something()
                self._call()
            pause = nap.take()
        self._hears = False
        nap.close()
        self._lines.look_away()


class _Nap:
    """How long to wait before the next look."""

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch
        self._written_at = -AWAKE_SECONDS
        self._soon: Iterator[float] = iter(())
        self._slept = False

    def take(self) -> float:
        """Sleep while nobody writes; answers how long to wait on top of that."""
        self._slept = False
        if self._watch is None:
            return LOOK_ALWAYS_SECONDS
        if pause := next(self._soon, None):
            return pause
        waited = time.monotonic() - self._written_at
        awake = waited < AWAKE_SECONDS
        if self._watch.wait(max(LOOK_SECONDS, waited / 8) if awake else ASLEEP_SECONDS):
            self._written_at = time.monotonic()
            self._soon = iter(SOON_SECONDS)
        else:
            self._slept = not awake
        return 0.0

    def found_something(self) -> None:
        """If nobody has told us by now, the kernel is not to be trusted with this file."""
        if self._slept and self._watch is not None and not self._watch.wait(0):
            self.close()

    def close(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.close()
        self._watch = None
