"""Ended attempts that wait to be written by the settler."""

import asyncio
from collections import deque
from contextlib import suppress

from tenure.rules.lifecycle import Settlement
from tenure.worker.leases import LeasedJob

MAX_BATCH = 1000
LOCKED_SECONDS = 0.5
"""How often the settler tries again to write jobs whose rows are locked."""

Ended = tuple[LeasedJob, Settlement | None]
"""An attempt and its settlement; None when there is nothing to write about it."""


class Backlog:
    """The backlog of one worker process. Lives on the event loop."""

    def __init__(self) -> None:
        self.waiting: deque[Ended] = deque()
        self.locked: deque[Ended] = deque()
        """Attempts whose rows another transaction has locked."""
        self._wake = asyncio.Event()
        self._sleeping = True
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        """Add an ended attempt."""
        leased.end_taken = True
        self.waiting.append((leased, settlement))
        if self._sleeping:
            self._sleeping = False
            self._empty.clear()
            self._wake.set()

    def put_back(self, batch: list[Ended]) -> None:
        """Put a batch that could not be written at the head again."""
        self.waiting.extendleft(reversed(batch))

    def take_waiting(self) -> list[Ended]:
        """Remove and return the next batch."""
        return _take(self.waiting)

    def take_locked(self) -> list[Ended]:
        """Remove and return a batch of attempts whose rows were locked."""
        return _take(self.locked)

    async def wait(self) -> None:
        """Wait for the next ended attempt, or until locked rows should be tried again."""
        if not self.locked:
            self._empty.set()
        self._sleeping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(LOCKED_SECONDS if self.locked else None):
                await self._wake.wait()
        self._wake.clear()
        self._sleeping = False

    async def until_empty(self) -> None:
        """Wait until the store has returned an answer for every ended attempt."""
        await self._empty.wait()


def _take(attempts: deque[Ended]) -> list[Ended]:
    return [attempts.popleft() for _ in range(min(MAX_BATCH, len(attempts)))]
