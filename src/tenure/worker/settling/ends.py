"""The end of attempts: frees the slot, and hands the settlement to the settler, exactly once.

After `complete(on=...)` the job is read first, to see whether the handler's transaction committed.
"""

import asyncio
import logging

from tenure.errors import StoreError
from tenure.rules.lifecycle import Settlement
from tenure.store import AsyncStore
from tenure.worker.backlog import Backlog
from tenure.worker.claiming.intake import Intake
from tenure.worker.environment import Environment
from tenure.worker.events import EventReporter
from tenure.worker.leases import LeasedJob, LeasedJobs
from tenure.worker.running.run import confirm_completion

LOOK_AGAIN_SECONDS = 1.0

log = logging.getLogger("tenure.worker")


class Ends:
    """Ends the attempts of one worker process. Lives on the event loop."""

    def __init__(
        self,
        store: AsyncStore,
        worker: str,
        environment: Environment,
        *,
        intake: Intake,
        backlog: Backlog,
        leased_jobs: LeasedJobs,
        reporter: EventReporter,
    ) -> None:
        self._store = store
        self._worker = worker
        self._environment = environment
        self._intake = intake
        self._backlog = backlog
        self._leased_jobs = leased_jobs
        self._reporter = reporter
        self._confirming: set[asyncio.Task[None]] = set()

    def ended(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        """A handler has ended. Called by the executors."""
        self._intake.free_slot(leased, settlement)
        lost = bool(leased.lost)
        if not self.finish(leased, None if lost else settlement):
            self._reporter.say(
                logging.WARNING, leased.job, "ended after it was given up; not recorded"
            )
        elif lost:
            self._reporter.say(
                logging.WARNING, leased.job, "ended after its lease was lost; not recorded"
            )

    def finish(self, leased: LeasedJob, settlement: Settlement | None) -> bool:
        """Hand over how the attempt ended. Returns False if it was handed over before."""
        # Only attempts with a timeout may be ended by another thread: see blocked_loop.py.
        timed = leased.job.timeout_seconds is not None
        if not leased.take_end() if timed else leased.end_taken:
            return False
        leased.end_taken = True
        if leased.completed and not leased.lost:
            self._confirm_soon(leased, settlement)
        else:
            self._backlog.add(leased, settlement)
        return True

    def write(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        """Hand over the end of an attempt that the heartbeat thread has taken."""
        if leased.completed:
            self._confirm_soon(leased, settlement)
        else:
            self._backlog.add(leased, settlement)

    async def until_written(self) -> None:
        """Wait until the store has returned an answer for every ended attempt."""
        while self._confirming:
            await asyncio.wait(self._confirming)
        await self._backlog.until_empty()

    async def abandon_confirmations(self) -> None:
        """Stop looking whether handlers' transactions committed."""
        tasks = list(self._confirming)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _confirm_soon(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        task = asyncio.get_running_loop().create_task(self._confirm(leased, settlement))
        self._confirming.add(task)
        task.add_done_callback(self._confirming.discard)

    async def _confirm(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        try:
            settlement = await self._confirmed(leased, settlement)
        except Exception:
            log.exception(
                "job %d: cannot see whether its completion was committed; given up", leased.job.id
            )
            settlement = None  # if it was not committed, the lease expires and the job runs again
        self._backlog.add(leased, settlement)

    async def _confirmed(
        self, leased: LeasedJob, settlement: Settlement | None
    ) -> Settlement | None:
        """The settlement that is still to be written, as long as the job is ours."""
        while self._leased_jobs.has(leased):
            try:
                settlement = await confirm_completion(
                    leased, settlement, look=self._store.get, worker=self._worker,
                    reporter=self._reporter, environment=self._environment,
                )  # fmt: skip
            except StoreError:
                log.debug(
                    "job %d: cannot see whether its completion was committed; trying again",
                    leased.job.id, exc_info=True,
                )  # fmt: skip
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
            else:
                return settlement if self._leased_jobs.has(leased) else None
        return None
