"""What the handlers did: a board on which each job is also marked when its handler has ended.

A handler takes a moment, so that a kill meets some of them between the two marks. The ledger is
memory that all processes of a trial share: what was written before a kill stays.
"""

from __future__ import annotations

import asyncio
import mmap
import time
from pathlib import Path

from bench.peers.board import Board


class Ledger(Board):
    """The board of one trial, with the effects of its jobs. `hold_seconds` is how long one takes.

    a worker per job | a counter of effects per job | when each had its first effect
    """

    def __init__(self, path: Path, jobs: int, hold_seconds: float = 0.0) -> None:
        super().__init__(path, jobs)
        self._hold_seconds = hold_seconds
        self._worker = 0
        size = 16 * jobs
        effects = path.with_suffix(".effects")
        if not effects.exists():
            with effects.open("wb") as file:
                file.truncate(size)
        with effects.open("r+b") as file:
            self._effects_memory = mmap.mmap(file.fileno(), size)
        whole = memoryview(self._effects_memory)
        self._ended_at = whole[: 8 * jobs].cast("Q")
        self._owners = whole[8 * jobs : 9 * jobs]
        self._effects = whole[9 * jobs : 10 * jobs]

    # --- in a worker ---

    def wait_for_go(self, worker: int) -> None:
        """A worker that comes back after a kill does not wait: the race is on."""
        self._worker = worker
        super().wait_for_go(worker)

    def ran(self, job: int) -> None:
        """A handler begins."""
        self._owners[job] = 1 + self._worker
        super().ran(job)

    def linger(self, job: int) -> None:
        """A handler takes a moment, and has its effect."""
        time.sleep(self._hold_seconds)
        self._ended(job)

    async def linger_async(self, job: int) -> None:
        """The same on a loop."""
        await asyncio.sleep(self._hold_seconds)
        self._ended(job)

    def _ended(self, job: int) -> None:
        if not self._effects[job]:
            self._ended_at[job] = time.monotonic_ns()
        self._effects[job] += 1

    # --- in the measuring process ---

    def gone(self, worker: int) -> None:
        """A worker is dead; the next one will say that it is ready."""
        self._marks[1 + worker] = 0

    def in_hands_of(self, worker: int) -> list[int]:
        """The jobs that a worker had begun, and that have had no effect yet."""
        return [
            job
            for job in range(self.jobs)
            if self._owners[job] == 1 + worker and not self._effects[job]
        ]

    def without_effect(self) -> list[int]:
        """The jobs that have had no effect yet."""
        return [job for job, count in enumerate(bytes(self._effects)) if not count]

    def repeated(self) -> int:
        """How many jobs have had their effect more than once."""
        return sum(count > 1 for count in bytes(self._effects))

    def ended_at(self, job: int) -> float:
        """When a job had its first effect, in seconds of the monotonic clock."""
        return self._ended_at[job] / 1e9
