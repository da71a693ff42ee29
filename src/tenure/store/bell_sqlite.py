"""The bell of a SQLite file: it looks again and again whether tickets were put in line.

A look is `PRAGMA data_version` on a connection of its own. It costs 7 microseconds in a busy loop,
but 110 after a sleep: 250 looks a second took 2.8 % of a core on a machine with nothing else to do.
So on Linux it sleeps until somebody writes to the file, and looks often only for a while after
that: 0.05 % when nothing happens. The write of a commit comes before the commit can be seen, by the
time that the disk takes. Elsewhere, and where the kernel does not tell (some mounts of containers),
it looks all the time.
"""

import threading
import time
from collections.abc import Callable

from tenure.errors import InvalidInput, StoreBusy, TenureError
from tenure.store.bell import Bell, Ring, pause_seconds
from tenure.store.inotify import Watch, watch

LOOK_SECONDS = 0.004
"""Half of the commits are heard of within 2.2 ms, all within 5, on an idle machine."""

LOOK_ALWAYS_SECONDS = 0.007
"""Without help of the kernel: 1.5 to 2 % of a core, and half of the commits within 3.8 ms."""

AWAKE_SECONDS = 1.0
ASLEEP_SECONDS = 0.25


class SQLiteBell(Bell):
    """Looks for signs of new tickets, and rings when they have changed."""

    def __init__(self, look: Callable[[], object], path: str, ring: Ring) -> None:
        super().__init__(ring)
        self._look = look
        self._log = f"{path}-wal"
        self._stopping = threading.Event()

    def _prepare(self) -> None:
        self._stopping = threading.Event()

    def _wake(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        nap = _Nap(watch(self._log))
        signs: object = None
        failures = 0
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                seen = self._look()
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
        nap.close()
        self._hears = False


class _Nap:
    """How long to wait before the next look."""

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch
        self._awake_until = 0.0
        self._slept = False

    def take(self) -> float:
        """Sleep while nobody writes; answers how long to wait on top of that."""
        self._slept = False
        if self._watch is None:
            return LOOK_ALWAYS_SECONDS
        if time.monotonic() < self._awake_until:
            return LOOK_SECONDS
        if self._watch.wait(ASLEEP_SECONDS):
            self._awake_until = time.monotonic() + AWAKE_SECONDS
        else:
            self._slept = True
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
