"""Work that every worker does for all: promote due jobs, sweep expired leases, prune, heal, and
write statistics.

The claimer's looks show whether there is something to do, so an idle worker sends one statement.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tenure.errors import TenureError
from tenure.rules.statistics import WRITE_SECONDS
from tenure.store import AsyncStore, Outlook
from tenure.worker.counting import EndCounter
from tenure.worker.environment import Environment
from tenure.worker.settings import WorkerSettings

PROMOTE_PAGE = 1000
HEAL_SECONDS = 60.0
EXPIRE_SECONDS = 10.0
"""How often jobs are looked for that were not started in time and that no claim meets."""
PRUNE_SOON_SECONDS = 60.0
"""A worker asks at the latest after this time whether a prune is due: it may not run for an hour.
After a failure it asks again after this time."""
STATISTICS_SECONDS = 0.8 * WRITE_SECONDS
"""About how often it writes statistics: at most ten seconds pass between two writes."""
IDLE_SAMPLE_SECONDS = 60.0
"""How often a worker without jobs counts the live jobs."""
WAIT_FACTOR = 9
"""After a sweep that could take back nothing, the worker waits nine times as long as it took."""
log = logging.getLogger("tenure.worker")


class Upkeep:
    """The upkeep loops of one worker process. They need no leader."""

    before_sweep: Callable[[], Awaitable[None]]
    """Writes what an outage has left unwritten, so that the sweep does not charge jobs that this
    worker puts back. Set before the first sweep."""

    counter: EndCounter
    worker: str
    """The name under which its counts are written. Both are set before the first loop starts."""

    def __init__(
        self,
        store: AsyncStore,
        settings: WorkerSettings,
        environment: Environment,
        ring: Callable[[], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._environment = environment
        self._ring = ring
        self._due, self._expired = asyncio.Event(), asyncio.Event()
        self._storage_trouble = False
        self._sampled_at = environment.monotonic()
        self._due.set()  # other workers may have left something undone
        self._expired.set()

    def saw(self, outlook: Outlook) -> None:
        """The claimer has looked: wake the loops that have something to do."""
        if outlook.due_seconds is not None and outlook.due_seconds <= 0:
            self._due.set()
        if outlook.expired:
            self._expired.set()

    async def promote(self) -> None:
        """Promote due jobs, for ever."""
        await self._repeat("promoting", self._promote, self._settings.promote_seconds)

    async def sweep(self) -> None:
        """Sweep expired leases, for ever."""
        await self._repeat("sweeping", self._sweep, self._settings.sweep_seconds)

    async def prune(self) -> None:
        """Prune regularly, for ever. The database knows when the last prune was, of any worker."""
        soon = min(PRUNE_SOON_SECONDS, self._settings.prune_seconds)
        await asyncio.sleep(soon * (0.5 + self._environment.random() / 2))
        await self._repeat("pruning", self._prune, soon)

    async def expire(self) -> None:
        """End jobs that were not started in time, for ever."""
        await self._repeat("expiring", self._expire, EXPIRE_SECONDS)

    async def statistics(self) -> None:
        """Write what this worker has counted, and count the live jobs, for ever."""
        await self._repeat("writing statistics", self._statistics, STATISTICS_SECONDS)

    async def write_statistics(self) -> None:
        """Write what this worker has counted. What the store does not get is kept."""
        unsent = self.counter.unsent
        self.counter.close_period()
        while unsent:
            at, rows = unsent[0]
            await self._store.add_statistics(self.worker, rows, at=at)
            if unsent and unsent[0][1] is rows:
                unsent.popleft()

    async def heal(self) -> None:
        """Repair gates and workflows regularly, for ever."""
        await self._repeat("housekeeping", self._heal, self._settings.sweep_seconds)

    async def _promote(self) -> None:
        await self._due.wait()
        self._due.clear()
        while (promoted := await self._store.promote(most=PROMOTE_PAGE)) > 0:
            self._ring()
            if promoted < PROMOTE_PAGE:
                break

    async def _sweep(self) -> None:
        await self._expired.wait()
        await self.before_sweep()
        self._expired.clear()
        began = self._environment.monotonic()
        more, found = True, False
        while more:
            self._environment.crash_point("before sweep")
            swept = await self._store.sweep(keep=self._settings.keep)
            more = swept.more
            if swept.requeued or swept.finished:
                found = True
                log.warning(
                    "took back jobs of dead workers: %d run again, %d finished",
                    swept.requeued, swept.finished,
                )  # fmt: skip
                self._ring()
        if not found:  # other transactions have locked what is there: most of the time, do nothing
            await asyncio.sleep(WAIT_FACTOR * (self._environment.monotonic() - began))

    async def _prune(self) -> None:
        await self._store.prune(every_seconds=self._settings.prune_seconds)
        await asyncio.sleep(self._settings.prune_seconds)

    async def _expire(self) -> None:
        if await self._store.expire(keep=self._settings.keep):
            self._ring()  # their children may run now

    async def _statistics(self) -> None:
        now = self._environment.monotonic()
        busy = self.counter.close_period()
        await self.write_statistics()
        if busy or now - self._sampled_at >= IDLE_SAMPLE_SECONDS:
            self._sampled_at = now
            await self._store.sample_depth()

    async def _heal(self) -> None:
        await asyncio.sleep(HEAL_SECONDS)
        if healed := await self._store.heal_gates():
            log.warning("repaired %d inconsistent gate rows", healed)
            self._ring()
        if stopped := await self._store.heal_workflows():
            log.warning("stopped %d workflows that a crashed worker had left unstopped", stopped)
            self._ring()
        await self._look_at_storage()

    async def _look_at_storage(self) -> None:
        """Log when something goes wrong with the files of the database; once, while it lasts."""
        trouble = await self._store.storage_trouble()
        if trouble is not None and not self._storage_trouble:
            log.warning("a problem of storage: %s", trouble)
        self._storage_trouble = trouble is not None

    async def _repeat(self, name: str, step: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Repeat a step. After a failure it runs again at the next look."""
        failing = False
        while True:
            try:
                await step()
                if failing:
                    log.info("%s works again", name)
                failing = False
            except TenureError as error:
                if not failing:  # logged once: an outage must not fill the disk
                    log.warning("%s failed, trying again: %s", name, error)
                failing = True
            await asyncio.sleep(seconds * (0.75 + self._environment.random() / 2))
