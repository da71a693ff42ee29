"""What any worker does for all: put due jobs in line, take back the jobs of the dead, prune."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tenure.errors import TenureError
from tenure.store import AsyncStore
from tenure.worker.settings import WorkerSettings
from tenure.worker.world import World

PROMOTE_PAGE = 1000
HEAL_SECONDS = 60.0
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
        self._pruned_at = self._healed_at = world.monotonic()

    async def promote(self) -> None:
        """Put due jobs in line, for ever."""
        await self._repeat("promoting", self._promote, self._settings.promote_seconds)

    async def sweep(self) -> None:
        """Take back the jobs of expired leases, and prune now and then, for ever."""
        await self._repeat("sweeping", self._sweep, self._settings.sweep_seconds)

    async def _promote(self) -> None:
        while (promoted := await self._store.promote(most=PROMOTE_PAGE)) > 0:
            self._ring()
            if promoted < PROMOTE_PAGE:
                break

    async def _sweep(self) -> None:
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
        if self._world.monotonic() - self._healed_at >= HEAL_SECONDS:
            self._healed_at = self._world.monotonic()
            if healed := await self._store.heal_gates():
                log.warning("put right what was wrong at gates: %d", healed)
        if self._world.monotonic() - self._pruned_at >= self._settings.prune_seconds:
            self._pruned_at = self._world.monotonic()
            await self._store.prune()

    async def _repeat(self, what: str, step: Callable[[], Awaitable[None]], seconds: float) -> None:
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
