"""What ran, how often and when: a score board in memory that the processes of a trial share.

Every handler marks its job here, so that a trial can tell whether all jobs ran, and which ran
twice, without asking the queue under test. All processes of a machine share CLOCK_MONOTONIC.

    go | one ready mark per worker | a counter per job | when each started | when each was committed
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

WORKERS = 7
_HEADER = 8 * (1 + WORKERS)
_LOOK_SECONDS = 0.001


class Board:
    """The board of one trial. The first to open it makes it."""

    def __init__(self, path: Path, jobs: int) -> None:
        self.path = path
        self.jobs = jobs
        padded = (jobs + 7) // 8 * 8
        size = _HEADER + padded + 16 * jobs
        if not path.exists():
            with path.open("wb") as file:
                file.truncate(size)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)
        whole = memoryview(self._memory)
        times = _HEADER + padded
        self._marks = whole[:_HEADER].cast("Q")
        self._counts = whole[_HEADER : _HEADER + jobs]
        self._started = whole[times : times + 8 * jobs].cast("Q")
        self._committed = whole[times + 8 * jobs :].cast("Q")

    # --- in a worker ---

    linger: Callable[[int], None] | None = None
    linger_async: Callable[[int], Awaitable[None]] | None = None
    """What a handler does after its first line, where jobs take time: see bench/kills/."""

    def wait_for_go(self, worker: int) -> None:
        """Everything is imported and prepared: say so, and wait for the start of the race."""
        self._marks[1 + worker] = 1
        while not self._marks[0]:
            time.sleep(_LOOK_SECONDS)

    def ran(self, job: int) -> None:
        """The first line of every handler."""
        if not self._counts[job]:
            self._started[job] = time.monotonic_ns()
        self._counts[job] += 1

    # --- in a producer ---

    def committed(self, job: int) -> None:
        """The call that enqueued this job has returned."""
        self._committed[job] = time.monotonic_ns()

    # --- in the measuring process ---

    def is_ready(self, workers: int) -> bool:
        """Have so many workers prepared themselves?"""
        return all(self._marks[1 + worker] for worker in range(workers))

    def go(self) -> float:
        """Start the race. Answers when."""
        now = time.monotonic_ns()
        self._marks[0] = now
        return now / 1e9

    def reset_workers(self) -> None:
        """Other workers will come."""
        for mark in range(1 + WORKERS):
            self._marks[mark] = 0

    def done(self, first: int, end: int) -> int:
        """How many of these jobs have started at least once."""
        return end - first - bytes(self._counts[first:end]).count(0)

    def twice(self, first: int, end: int) -> int:
        """How many of these jobs have started more than once."""
        some = bytes(self._counts[first:end])
        return len(some) - some.count(0) - some.count(1)

    def waits(self, first: int, end: int) -> list[float]:
        """Milliseconds from commit to handler. A handler may be faster than the commit's answer."""
        return [
            (self._started[job] - self._committed[job]) / 1e6
            for job in range(first, end)
            if self._counts[job]
        ]
