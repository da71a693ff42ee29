"""Heartbeats: a thread renews all leases, from the claim until the settlement is written.

A handler that blocks the event loop keeps its job, because the thread does not need the loop. While
the database cannot be reached, the worker decides by its monotonic clock that a lease may have
expired, and stops the jobs on it. It counts from before the last successful claim or heartbeat.
"""

import logging
from collections.abc import Callable

from tenure.errors import StoreError
from tenure.rules.job import Beat, WorkerInfo
from tenure.store import Store
from tenure.worker.environment import Environment
from tenure.worker.leases import MARGIN, LeasedJob, LeasedJobs, WorkerLease
from tenure.worker.settings import WorkerSettings
from tenure.worker.settling.timekeeper import Timekeeper

RETRY_SECONDS = 0.5

log = logging.getLogger("tenure.worker")


class Heartbeat:
    """Renews the leases of one worker, announces the worker, and sends the progress of jobs."""

    def __init__(
        self,
        store: Store,
        worker: str,
        settings: WorkerSettings,
        environment: Environment,
        *,
        leased_jobs: LeasedJobs,
        timekeeper: Timekeeper,
        info: Callable[[], WorkerInfo],
    ) -> None:
        self._store = store
        self._worker = worker
        self._settings = settings
        self._environment = environment
        self._leased_jobs = leased_jobs
        self._timekeeper = timekeeper
        self._info = info
        self._stop = environment.event()
        self._thread = environment.thread(self._run, "tenure-heartbeat")
        self._failing = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Returns after the last heartbeat."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            began = self._environment.monotonic()
            try:
                self.beat()
                self._timekeeper.time_out_if_blocked(self._store)
                self._store.announce(self._info())
                if self._failing:
                    log.info("heartbeats of %s work again", self._worker)
                self._failing = False
            except StoreError as error:
                if not self._failing:  # logged once: an outage must not fill the disk
                    log.warning("a heartbeat of %s failed, trying again: %s", self._worker, error)
                self._failing = True
                pause = min(self._rest(began), RETRY_SECONDS)
            except Exception:
                log.exception("a heartbeat of %s failed", self._worker)
                pause = min(self._rest(began), RETRY_SECONDS)
            else:
                pause = self._rest(began)
            self.give_up_expired()

    def _rest(self, began: float) -> float:
        """The time until the next heartbeat, at a steady pace.

        After a heartbeat that took long the next one follows at once: leases that were claimed
        meanwhile have waited for it.
        """
        return max(0.0, self._settings.heartbeat_seconds - (self._environment.monotonic() - began))

    def beat(self) -> None:
        """Renew each lease once, except those that were given up, and send progress."""
        by_length: dict[float, list[WorkerLease]] = {}
        for lease in list(self._leased_jobs.leases.values()):
            if not lease.given_up:  # the blocked event loop has not dropped it yet
                by_length.setdefault(lease.lease_seconds, []).append(lease)
        for lease_seconds, leases in by_length.items():
            self._extend(leases, lease_seconds)
        self._report_progress()

    def _extend(self, leases: list[WorkerLease], lease_seconds: float) -> None:
        started = {lease.id: _started(lease) for lease in leases}
        self._environment.crash_point("before heartbeat")
        before = self._environment.monotonic()
        beat: Beat = self._store.extend(self._worker, started, lease_seconds=lease_seconds)
        unmoved = {*beat.lost, *beat.busy}
        for lease in leases:
            if lease.id not in unmoved:
                lease.safe_until = before + lease_seconds * (1 - MARGIN)
        self._timekeeper.stop_soon(beat.lost, beat.cancelled)

    def _report_progress(self) -> None:
        reports = [(j, j.progress) for j in self._leased_jobs.all() if j.progress is not None]
        if reports:
            self._store.report_progress(self._worker, [(j.job, *told) for j, told in reports])
        for leased, told in reports:
            if leased.progress is told:  # the handler has not reported again meanwhile
                leased.progress = None

    def give_up_expired(self) -> None:
        """Stop the jobs of leases that may have expired."""
        self._timekeeper.stop_soon(self._leased_jobs.give_up_expired(self._environment.monotonic()))


def _started(lease: WorkerLease) -> list[int]:
    jobs: list[LeasedJob] = list(lease.jobs.values())
    return [leased.job.id for leased in jobs if leased.started_at is not None]
