"""What any worker does for all: put due jobs in line, take back the jobs of the dead, prune.

Whether there is anything to do is seen by the claimer's looks: an idle worker asks once for all.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tenure.errors import TenureError
from tenure.store import AsyncStore, Outlook
from tenure.worker.environment import World
from tenure.worker.settings import WorkerSettings

PROMOTE_PAGE = 1000
HEAL_SECONDS = 60.0
PRUNE_SOON_SECONDS = 60.0
"""The first time, at the latest: a worker may not live for an hour. And after a failure."""
log = logging.getLogger("tenure.worker")


class Services:
    """The loops of one worker process that need no leader."""

    def __init__(
        self, store: AsyncStore, settings: WorkerSettings, world: World, ring: Callable[[], None]
    ) -> None:
        self._store = store
        self._settings = settings
        self._world = world
        self._ring = ring
        self._due, self._expired = asyncio.Event(), asyncio.Event()
        self._due.set()  # who knows what was left undone
        self._expired.set()

    def saw(self, outlook: Outlook) -> None:
        """There may be something to do."""
        if outlook.due_seconds is not None and outlook.due_seconds <= 0:
            self._due.set()
        if outlook.expired:
            self._expired.set()

    async def promote(self) -> None:
        """Put due jobs in line, for ever."""
        await self._repeat("promoting", self._promote, self._settings.promote_seconds)

    async def sweep(self) -> None:
        """Take back the jobs of expired leases, for ever."""
        await self._repeat("sweeping", self._sweep, self._settings.sweep_seconds)

    async def prune(self) -> None:
        """Prune soon, but not with all who start now, and then now and then, for ever."""
        soon = min(PRUNE_SOON_SECONDS, self._settings.prune_seconds)
        await asyncio.sleep(soon * (0.5 + self._world.random() / 2))
        await self._repeat("pruning", self._prune, soon)

    async def heal(self) -> None:
        """See to gates and workflows now and then, for ever."""
        await self._repeat("healing", self._heal, self._settings.sweep_seconds)

    async def _promote(self) -> None:
        await self._due.wait()
        self._due.clear()
        while (promoted := await self._store.promote(most=PROMOTE_PAGE)) > 0:
            self._ring()
            if promoted < PROMOTE_PAGE:
                break

    async def _sweep(self) -> None:
        await self._expired.wait()
        self._expired.clear()
        more = True
        while more:
            self._world.crash_point("before sweep")
            swept = await self._store.sweep()
            more = swept.more
            if swept.requeued or swept.finished:
                log.warning(
                    "took back jobs of dead workers: %d put in line, %d ended",
                    swept.requeued, swept.finished,
                )  # fmt: skip
                self._ring()

    async def _prune(self) -> None:
        await self._store.prune()
        await asyncio.sleep(self._settings.prune_seconds)

    async def _heal(self) -> None:
        await asyncio.sleep(HEAL_SECONDS)
        if healed := await self._store.heal_gates():
            log.warning("put right what was wrong at gates: %d", healed)
            self._ring()
        if stopped := await self._store.heal_workflows():
            log.warning("stopped workflows for a worker that died: %d", stopped)
            self._ring()

    async def _repeat(self, what: str, step: Callable[[], Awaitable[None]], seconds: float) -> None:
        """A step that fails is not forgotten: what it should have done will be seen again."""
        failing = False
        while True:
            try:
                await step()
                failing = False
            except TenureError as error:
                if not failing:  # said once: an outage must not fill the disk
                    log.warning("%s failed, trying again: %s", what, error)
                failing = True
            await asyncio.sleep(seconds * (0.75 + self._world.random() / 2))
