"""The bell of a SQLite file: it looks whether the file has changed, every few milliseconds."""

import threading
from collections.abc import Callable

from tenure.errors import InvalidInput, StoreBusy, TenureError
from tenure.store.bell import Bell, Ring, pause_seconds

LOOK_SECONDS = 0.004


class SQLiteBell(Bell):
    """Looks for signs of new tickets, and rings when they have changed."""

    def __init__(self, look: Callable[[], object], ring: Ring) -> None:
        super().__init__(ring)
        self._look = look
        self._stopping = threading.Event()

    def _prepare(self) -> None:
        self._stopping = threading.Event()

    def _wake(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        last: object = None
        failures = 0
        pause = 0.0
        while not self._stopping.wait(pause):
            pause = LOOK_SECONDS
            try:
                signs = self._look()
            except StoreBusy:
                continue  # somebody recovers the file, or forks
            except InvalidInput:
                break  # the store was closed
            except TenureError as error:
                self._lost(error)
                failures += 1
                pause = pause_seconds(failures)
                continue
            failures = 0
            self._heard()
            if signs != last:
                last = signs
                self._call()
        self._hears = False
