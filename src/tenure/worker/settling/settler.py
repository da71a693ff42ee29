"""Writes settlements in batches: a batch starts when the previous one has returned.

A batch that the store cannot write for now is sent again until it succeeds. Meanwhile its jobs stay
leased, heartbeats go on, and the store recognises settlements that it has written before. Jobs
whose rows another transaction has locked wait apart, so that they delay no other job. A settlement
that the store refuses is replaced by a failure that says so.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator

from tenure.errors import StoreBusy, StoreError
from tenure.rules.job import Feature
from tenure.rules.lifecycle import Outcome, Settlement
from tenure.store import LANDED, Answer, AsyncStore
from tenure.worker.backlog import LOCKED_SECONDS, Backlog, Ended
from tenure.worker.environment import Environment
from tenure.worker.events import EventReporter
from tenure.worker.leases import LeasedJob, LeasedJobs
from tenure.worker.running.attempt import refused

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.02, 2.0
_CHILDREN = int(Feature.CHILDREN)

log = logging.getLogger("tenure.worker")


class Settler:
    """Writes how attempts ended. Lives on the event loop."""

    def __init__(
        self,
        store: AsyncStore,
        worker: str,
        environment: Environment,
        *,
        backlog: Backlog,
        leased_jobs: LeasedJobs,
        reporter: EventReporter,
        ring: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._environment = environment
        self._backlog = backlog
        self._leased_jobs = leased_jobs
        self._reporter = reporter
        self._ring = ring
        self._pause = FIRST_PAUSE_SECONDS

    async def run(self) -> None:
        """Write batches for ever."""
        backlog, locked_at = self._backlog, 0.0
        while True:
            while backlog.waiting:
                await self._flush(backlog.take_waiting())
            if backlog.locked and self._environment.monotonic() >= locked_at:
                await self._flush(backlog.take_locked(), patient=False)
                locked_at = self._environment.monotonic() + LOCKED_SECONDS
            if not backlog.waiting:
                await backlog.wait()

    async def _flush(self, batch: list[Ended], *, patient: bool = True) -> None:
        """Write a batch. With `patient`, wait a little for rows that are locked."""
        self._environment.crash_point("before settle")
        try:
            answers = await self._settle(batch, patient)
        except StoreBusy:
            self._backlog.locked.extend(batch)
            return
        except StoreError as error:
            self._backlog.put_back(batch)
            await self._after(error)
            return
        self._environment.crash_point("after settle")
        if self._pause > FIRST_PAUSE_SECONDS:
            log.info("settling for %s works again", self._worker)
            self._pause = FIRST_PAUSE_SECONDS
        if self._leased_jobs.gated or _has_children(batch):
            self._ring()
        report_all = self._reporter.reports_successes()
        unreported: list[LeasedJob] = []
        for leased, settlement in batch:
            if settlement is None:
                unreported.append(leased)
                continue
            answer = next(answers)
            if report_all or answer is not LANDED or settlement.outcome is not Outcome.SUCCEED:
                self._note(leased, settlement, answer)
            else:
                unreported.append(leased)
        self._leased_jobs.settled(unreported)

    async def _after(self, error: StoreError) -> None:
        if self._pause == FIRST_PAUSE_SECONDS:  # logged once: an outage must not fill the disk
            log.warning("settling for %s failed, trying again: %s", self._worker, error)
        self._pause = min(LAST_PAUSE_SECONDS, self._pause * 2)
        await asyncio.sleep(self._pause * (0.5 + self._environment.random()))

    async def _settle(self, batch: list[Ended], patient: bool) -> Iterator[Answer]:
        """Returns an answer for each attempt that has a settlement, in order."""
        settlements = [settlement for _, settlement in batch if settlement is not None]
        done = self._finished_leases(batch)
        if not settlements and not done:
            return iter(())
        return iter(
            await self._store.settle(self._worker, settlements, done_leases=done, patient=patient)
        )

    def _finished_leases(self, batch: list[Ended]) -> list[int]:
        """Leases that have no job left after this batch. The store checks that, too."""
        leaving = Counter([leased.job.lease_id for leased, _ in batch])
        leases = self._leased_jobs.leases
        return [
            id for id, count in leaving.items() if id in leases and len(leases[id].jobs) <= count
        ]

    def _note(self, leased: LeasedJob, settlement: Settlement, answer: Answer) -> None:
        if answer.busy:
            self._backlog.locked.append((leased, settlement))
            return
        self._reporter.settled(leased, settlement, answer)
        failure = refused(leased.job, settlement, answer)
        if failure is not None:
            self._backlog.add(leased, failure)
        else:
            self._leased_jobs.settled([leased])


def _has_children(batch: list[Ended]) -> bool:
    """May the batch have made other jobs ready?

    A hint: all nodes of a workflow have children, so a look at the first and the last is enough.
    """
    return bool((batch[0][0].job.features | batch[-1][0].job.features) & _CHILDREN)
