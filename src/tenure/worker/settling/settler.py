"""Settlements in natural batches: a flush starts when the previous one has returned.

A batch that the store cannot take for now is sent again, for ever: its jobs stay held, heartbeats
go on, and the store recognises what had landed before. Jobs whose rows somebody else has locked
step aside, so that they hold up no other. One that the store refuses ends as failed, in words.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from tenure.errors import StoreBusy, StoreError, ValueRefused
from tenure.rules import lifecycle
from tenure.rules.codec import encode_error
from tenure.rules.job import Feature
from tenure.rules.lifecycle import Outcome, Settlement
from tenure.store import LANDED, Answer, AsyncStore
from tenure.worker.environment import World
from tenure.worker.events import Teller
from tenure.worker.leases import Held, Holding

MAX_BATCH = 1000
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.02, 2.0
LOCKED_SECONDS = 0.5
"""So often it is looked whether rows are still locked."""
_CHILDREN = Feature.CHILDREN
REFUSED = "the store refused how it ended"

Ended = tuple[Holding, Settlement | None]

log = logging.getLogger("tenure.worker")


class Settler:
    """Writes what became of attempts. Lives on the event loop."""

    def __init__(
        self,
        store: AsyncStore,
        worker: str,
        held: Held,
        world: World,
        tell: Teller,
        *,
        gates_opened: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._held = held
        self._world = world
        self._tell = tell
        self._gates_opened = gates_opened
        self._line: deque[Ended] = deque()
        self._locked: deque[Ended] = deque()
        self._wake = asyncio.Event()
        self._sleeping = True
        self._idle = asyncio.Event()
        self._idle.set()
        self._pause = FIRST_PAUSE_SECONDS

    def add(self, holding: Holding, settlement: Settlement | None) -> None:
        """Hand over the end of an attempt; None when there is nothing to write about it."""
        holding.done = True
        self._line.append((holding, settlement))
        if self._sleeping:
            self._sleeping = False
            self._idle.clear()
            self._wake.set()

    async def drained(self) -> None:
        """Wait until everything handed over has been answered."""
        await self._idle.wait()

    async def run(self) -> None:
        """Flush for ever."""
        look_at = 0.0
        while True:
            while self._line:
                await self._flush(_take(self._line))
            if self._locked and self._world.monotonic() >= look_at:
                await self._flush(_take(self._locked), patient=False)
                look_at = self._world.monotonic() + LOCKED_SECONDS
            if not self._line:
                await self._rest()

    async def _rest(self) -> None:
        if not self._locked:
            self._idle.set()
        self._sleeping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(LOCKED_SECONDS if self._locked else None):
                await self._wake.wait()
        self._wake.clear()
        self._sleeping = False

    async def _flush(self, batch: list[Ended], *, patient: bool = True) -> None:
        """Send a batch. With `patient`, wait a little for rows that somebody else has locked."""
        self._world.crash_point("before settle")
        try:
            answers = await self._settle(batch, patient)
        except StoreBusy:
            self._locked.extend(batch)
            return
        except StoreError as error:
            self._line.extendleft(reversed(batch))
            await self._after(error)
            return
        self._world.crash_point("after settle")
        if self._pause > FIRST_PAUSE_SECONDS:
            log.info("settling for %s goes on", self._worker)
            self._pause = FIRST_PAUSE_SECONDS
        if self._held.gated or _has_children(batch):
            self._gates_opened()
        loud = self._tell.hears_successes()
        quiet: list[Holding] = []
        for holding, settlement in batch:
            if settlement is None:
                quiet.append(holding)
                continue
            answer = next(answers)
            if loud or answer is not LANDED or settlement.outcome is not Outcome.SUCCEED:
                self._note(holding, settlement, answer)
            else:
                quiet.append(holding)
        self._held.settled(quiet)

    async def _after(self, error: StoreError) -> None:
        if self._pause == FIRST_PAUSE_SECONDS:  # said once: an outage must not fill the disk
            log.warning("settling for %s failed, trying again: %s", self._worker, error)
        self._pause = min(LAST_PAUSE_SECONDS, self._pause * 2)
        await asyncio.sleep(self._pause * (0.5 + self._world.random()))

    async def _settle(self, batch: list[Ended], patient: bool) -> Iterator[Answer]:
        """Answers for those that have a settlement, in order."""
        settlements = [settlement for _, settlement in batch if settlement is not None]
        done = self._finished_leases(batch)
        if not settlements and not done:
            return iter(())
        return iter(
            await self._store.settle(self._worker, settlements, done_leases=done, patient=patient)
        )

    def _finished_leases(self, batch: list[Ended]) -> list[int]:
        """Leases on which nothing is left after this batch. The store checks that, too."""
        leaving = Counter([holding.job.lease_id for holding, _ in batch])
        leases = self._held.leases
        return [
            id for id, jobs in leaving.items() if id in leases and len(leases[id].holdings) <= jobs
        ]

    def _note(self, holding: Holding, settlement: Settlement, answer: Answer) -> None:
        if answer.busy:
            self._locked.append((holding, settlement))
            return
        self._tell.settled(holding, settlement, answer)
        if answer.error is not None and settlement.reason != REFUSED:
            error = encode_error(ValueRefused(answer.error))
            self.add(holding, lifecycle.fail(holding.job, error, REFUSED))
            return
        self._held.settled([holding])


def _has_children(batch: list[Ended]) -> bool:
    """May it have freed others? A hint: all nodes of a workflow have some, so two looks do."""
    return bool((batch[0][0].job.features | batch[-1][0].job.features) & _CHILDREN)


def _take(line: deque[Ended]) -> list[Ended]:
    return [line.popleft() for _ in range(min(MAX_BATCH, len(line)))]
