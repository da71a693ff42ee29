"""The end of a shutdown: running handlers may finish, then they are stopped, then given up."""

import asyncio
import logging

from tenure.worker.claiming.intake import Intake
from tenure.worker.environment import Environment
from tenure.worker.leases import LeasedJobs, Stop
from tenure.worker.settings import WorkerSettings
from tenure.worker.settler import Settler
from tenure.worker.stopping.timekeeper import TICK_SECONDS, Timekeeper

FLUSH_SECONDS = 5.0
REAP_SECONDS = 1.0
"""How long a killed child may take to be gone."""

log = logging.getLogger("tenure.worker")


class Drain:
    """Drains one worker process. Claims have ended before."""

    def __init__(
        self,
        worker: str,
        settings: WorkerSettings,
        environment: Environment,
        *,
        intake: Intake,
        settler: Settler,
        timekeeper: Timekeeper,
        leased_jobs: LeasedJobs,
    ) -> None:
        self._worker = worker
        self._settings = settings
        self._environment = environment
        self._intake = intake
        self._settler = settler
        self._timekeeper = timekeeper
        self._leased_jobs = leased_jobs

    async def run(self, *, by_signal: bool) -> None:
        """Put back unstarted jobs, end running ones, and write how they ended."""
        self._intake.put_back_unstarted()
        second = "; a second Ctrl-C or signal ends it at once, and its jobs run again within %g s"
        log.info(
            "worker %s is draining; still running: %d, for at most %g s%s",
            self._worker, len(self._leased_jobs.unfinished()), self._settings.drain_seconds,
            second % self._settings.lease_seconds if by_signal else "",
        )  # fmt: skip
        await self._until_finished(self._settings.drain_seconds)
        for leased in self._leased_jobs.unfinished():
            self._timekeeper.stop(leased, Stop.SHUTDOWN)
        await self._until_finished(self._settings.kill_seconds + REAP_SECONDS)
        for leased in self._leased_jobs.unfinished():
            self._timekeeper.give_up(leased)
        await self._flush()

    async def _until_finished(self, seconds: float) -> None:
        now = self._environment.monotonic
        deadline = now() + seconds
        while self._leased_jobs.unfinished() and now() < deadline:  # noqa: ASYNC110 - by our clock
            await asyncio.sleep(TICK_SECONDS / 2)

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._settler.until_written()
        except TimeoutError:
            await self._settler.abandon_confirmations()
            log.error(
                "worker %s could not write its last results; these jobs run again when their "
                "leases expire", self._worker,
            )  # fmt: skip
