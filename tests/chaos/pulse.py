"""The control: was this machine there at all?

A thread of the test's own process wants to run every few milliseconds. How much later than that it
ran is time in which no process could count on running. So is a time in which no CPU was idle: who
wanted to run then had to wait for others. What the workers did is judged without these times.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.books import Stall

BEAT_SECONDS = 0.01
NOTED_SECONDS = 0.01
"""Less than this late is on time."""
LOOK_SECONDS = 0.1
BUSY = 0.95
"""A machine with less idle time than the rest is at its limit."""


class Pulse:
    """Beats from its beginning to its end, and knows when it did not."""

    def __init__(self) -> None:
        self.stalls: list[Stall] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def _beat(self) -> None:
        due = time.monotonic() + BEAT_SECONDS
        looked, (idle, total) = time.monotonic(), _cpu()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            if now - due > NOTED_SECONDS:
                self.stalls.append(Stall("not scheduled", due, now))
            due = now + BEAT_SECONDS
            if now - looked >= LOOK_SECONDS:
                before, (idle, total) = (idle, total), _cpu()
                if idle - before[0] < (1 - BUSY) * (total - before[1]):
                    self.stalls.append(Stall("no idle CPU", looked, now))
                looked = now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()


def _cpu() -> tuple[int, int]:
    """How long all CPUs of this machine were idle, and in all, in ticks of the kernel."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)
