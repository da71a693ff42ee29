"""The bell of a SQLite file: it looks again and again for new tickets and cancel requests.

A look is `PRAGMA data_version` on a connection of its own. It costs 7 microseconds in a busy loop,
but 130 after a sleep, half of them for the waking: 250 looks a second took 3 % of a core (of a
small virtual machine). So on Linux the bell sleeps until a process writes to the WAL of the file.
Then it looks at once, and often for a while: a commit becomes visible some time after it was
written, when the disk has it. On other systems, and if the kernel does not report writes (some
mounts of containers), it looks all the time.
"""

import ctypes
import math
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol

from tenure.errors import InvalidInput, StoreBusy, TenureError
from tenure.store.bell import Bell, OnCancel, Ring, pause_seconds

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

_IN_MODIFY = 0x2
_EVENTS_BYTES = 4096


class Signs(NamedTuple):
    """What the bell compares. See the statement `queue_signs`."""

    position: int
    queues: int
    cancels: int


NO_SIGNS = Signs(-1, -1, -1)
"""Before the first look."""


class Lines(Protocol):
    """What is looked at: the session of one SQLite file."""

    path: str

    def look(self) -> Signs: ...
    def look_away(self) -> None: ...


class SQLiteBell(Bell):
    """Looks for signs of new tickets, and rings when they have changed."""

    def __init__(self, lines: Lines, ring: Ring, on_cancel: OnCancel | None = None) -> None:
        super().__init__(ring, on_cancel)
        self._lines = lines
        self._stopping = threading.Event()

    @property
    def ahead_seconds(self) -> float:
        return math.inf if self._hears else 0.0  # every ticket draws a position, also a due one

    def _prepare(self) -> None:
        self._stopping = threading.Event()

    def _wake(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        nap = _Nap(watch_file(f"{self._lines.path}-wal"))
        signs = NO_SIGNS
        failures = 0
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                seen = self._lines.look()
            except StoreBusy:
                seen = signs  # another process recovers the file, or this one forks
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
                before, signs = signs, seen
                nap.found_something()
                if seen[:2] != before[:2]:
                    self._call()
                if seen.cancels != before.cancels:
                    self._call_cancel(None)
            pause = nap.take()
        self._hears = False
        nap.close()
        self._lines.look_away()


class _Nap:
    """How long to wait before the next look."""

    def __init__(self, watch: "Watch | None") -> None:
        self._watch = watch
        self._written_at = -AWAKE_SECONDS
        self._soon: Iterator[float] = iter(())
        self._slept = False

    def take(self) -> float:
        """Sleep until a process writes. Returns how long to wait in addition."""
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
        """If the kernel has not reported this write by now, do not rely on it for this file."""
        if self._slept and self._watch is not None and not self._watch.wait(0):
            self.close()

    def close(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.close()
        self._watch = None


# --- inotify --------------------------------------------------------------------------------------


class Watch:
    """Waits for writes to one file, which may be removed and created again meanwhile.

    The file is not opened: the kernel gets its path. So no descriptor of the file exists here whose
    closing could drop SQLite's locks.
    """

    def __init__(self, libc: ctypes.CDLL, descriptor: int, path: str) -> None:
        self._libc = libc
        self._descriptor = descriptor
        self._path = os.fsencode(path)
        self._mark = -1
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Wait for a write since the last call, at most so long. True, too, for a new file."""
        mark = self._libc.inotify_add_watch(self._descriptor, self._path, _IN_MODIFY)
        if mark != self._mark:  # no file is a mark as well: -1
            self._mark = mark
            return True
        if not self._poll.poll(1000 * seconds):
            return False
        with suppress(BlockingIOError):
            os.read(self._descriptor, _EVENTS_BYTES)
        return True

    def close(self) -> None:
        """Give it back to the kernel."""
        os.close(self._descriptor)


def watch_file(path: str) -> Watch | None:
    """A watch on this file, or None where there is none to be had."""
    if sys.platform != "linux":
        return None
    try:
        libc = ctypes.CDLL(None)
        descriptor = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, AttributeError):
        return None
    return Watch(libc, descriptor, path) if descriptor >= 0 else None
