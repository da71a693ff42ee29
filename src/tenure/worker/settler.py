"""Settlements in natural batches: a flush starts when the previous one has returned.

A batch that the store refuses for now is sent again, for ever: its jobs stay held, heartbeats go
on, and the store recognises what had landed before.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from tenure.errors import StoreError
from tenure.lifecycle import Settlement
from tenure.store import Answer, AsyncStore
from tenure.worker.holding import Held, Holding
from tenure.worker.world import World

MAX_BATCH = 1000
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.02, 2.0

Ended = tuple[Holding, Settlement | None]
Told = Callable[[Holding, Settlement, Answer], None]

log = logging.getLogger("tenure.worker")


class Settler:
    """Writes what became of attempts. Lives on the event loop."""

    def __init__(
        self, store: AsyncStore, worker: str, held: Held, world: World, told: Told
    ) -> None:
        self._store = store
        self._worker = worker
        self._held = held
        self._world = world
        self._told = told
        self._line: deque[Ended] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, holding: Holding, settlement: Settlement | None) -> None:
        """Hand over the end of an attempt; None when there is nothing to write about it."""
        holding.done = True
        self._line.append((holding, settlement))
        if self._idle.is_set():
            self._idle.clear()
            self._wake.set()

    async def drained(self) -> None:
        """Wait until everything handed over has been answered."""
        await self._idle.wait()

    async def run(self) -> None:
        """Flush for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._line:
                await self._flush(self._next_batch())
            self._idle.set()

    def _next_batch(self) -> list[Ended]:
        line = self._line
        return [line.popleft() for _ in range(min(MAX_BATCH, len(line)))]

    async def _flush(self, batch: list[Ended]) -> None:
        pause = FIRST_PAUSE_SECONDS
        while batch:
            self._world.crash_point("before settle")
            try:
                answers = await self._settle(batch)
            except StoreError as error:
                log.warning("settling %d jobs failed, trying again: %s", len(batch), error)
                await asyncio.sleep(pause * (0.5 + self._world.random()))
                pause = min(LAST_PAUSE_SECONDS, pause * 2)
                continue
            self._world.crash_point("after settle")
            batch = self._note(batch, answers)
            if batch:  # rows that somebody else has locked
                await asyncio.sleep(FIRST_PAUSE_SECONDS)

    async def _settle(self, batch: list[Ended]) -> dict[int, Answer]:
        settlements = [settlement for _, settlement in batch if settlement is not None]
        done = self._finished_leases(batch)
        if not settlements and not done:
            return {}
        answers = await self._store.settle(self._worker, settlements, done_leases=done)
        return {s.id: answer for s, answer in zip(settlements, answers, strict=True)}

    def _finished_leases(self, batch: list[Ended]) -> list[int]:
        """Leases on which nothing is left after this batch. The store checks that, too."""
        leaving: dict[int, set[int]] = {}
        for holding, _ in batch:
            leaving.setdefault(holding.job.lease_id, set()).add(holding.job.id)
        leases = self._held.leases
        return [
            id
            for id, jobs in leaving.items()
            if id in leases and leases[id].holdings.keys() <= jobs
        ]

    def _note(self, batch: list[Ended], answers: dict[int, Answer]) -> list[Ended]:
        """Let go of what was answered. Answers what must be sent again."""
        again: list[Ended] = []
        for holding, settlement in batch:
            if settlement is not None:
                answer = answers[settlement.id]
                if answer.busy:
                    again.append((holding, settlement))
                    continue
                self._told(holding, settlement, answer)
            self._held.settled(holding)
        return again
