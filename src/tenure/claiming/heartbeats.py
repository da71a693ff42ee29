"""A thread that renews the leases of one claimer, from the claim until the settlement.

While the database cannot be reached, the claimer decides by its monotonic clock that a lease may
have expired, and tells its jobs so. It counts from before the last successful claim or heartbeat.
"""

import logging
import threading
import time
from collections.abc import Iterable

from tenure.claiming.jobs import HeldHere
from tenure.errors import JobNotFound, StoreError, TenureError
from tenure.rules.job import Beat, State
from tenure.store import Store

MARGIN = 0.15
"""This share of each lease is a safety margin: its jobs are told before it ends."""
log = logging.getLogger("tenure.claiming")


class _Lease:
    """One lease, its jobs, and until when it is ours for certain."""

    __slots__ = ("jobs", "safe_until")

    def __init__(self, jobs: dict[int, HeldHere], safe_until: float) -> None:
        self.jobs = jobs
        self.safe_until = safe_until


class Heartbeats:
    """Renews leases, and tells jobs that they are lost or cancelled."""

    def __init__(
        self, store: Store, worker: str, lease_seconds: float, heartbeat_seconds: float
    ) -> None:
        self._store = store
        self._worker = worker
        self._lease_seconds = lease_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._leases: dict[int, _Lease] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="tenure-claimer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Returns after the last heartbeat."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def add(self, lease: int, jobs: Iterable[HeldHere], claimed_from: float) -> None:
        """Renew a lease from now on. `claimed_from`: the time before the claim was sent."""
        with self._lock:
            by_id = {job.id: job for job in jobs}
            self._leases[lease] = _Lease(by_id, self._safe(claimed_from))

    def settled(self, job: HeldHere) -> None:
        """A job has ended. Its lease goes with its last job."""
        with self._lock:
            lease = self._leases.get(job.lease_id)
            if lease is not None:
                lease.jobs.pop(job.id, None)
                if not lease.jobs:
                    del self._leases[job.lease_id]

    def held(self) -> list[HeldHere]:
        """The jobs on all leases."""
        with self._lock:
            return [job for lease in self._leases.values() for job in lease.jobs.values()]

    def beat(self) -> None:
        """Renew all leases once."""
        with self._lock:
            started = {id: list(lease.jobs) for id, lease in self._leases.items()}
        if not started:
            return
        before = time.monotonic()
        try:
            beat = self._store.extend(self._worker, started, lease_seconds=self._lease_seconds)
        except TenureError as error:
            if not self._failing:  # logged once: an outage must not fill the disk
                log.warning("a heartbeat of %s failed, trying again: %s", self._worker, error)
            self._failing = isinstance(error, StoreError)
            self._give_up()
            return
        self._failing = False
        self._heard(beat, started, before)

    def _heard(self, beat: Beat, sent: Iterable[int], before: float) -> None:
        with self._lock:
            for id in sent:
                lease = self._leases.get(id)
                if lease is not None and id not in beat.busy:
                    lease.safe_until = self._safe(before)
            gone = [lease for id in beat.lost if (lease := self._leases.pop(id, None)) is not None]
            jobs = [job for lease in self._leases.values() for job in lease.jobs.values()]
        for job in jobs:
            if job.may_be_ended and self._has_ended(job):
                job.is_ended = True
                self.settled(job)
        for lease in gone:
            for job in lease.jobs.values():
                job.is_ended = job.is_ended or (job.may_be_ended and self._has_ended(job))
            _tell_lost(lease)
        asked = set(beat.cancelled)
        for job in jobs:
            if (job.id, job.token) in asked:
                job.cancelled.set()

    def _has_ended(self, job: HeldHere) -> bool:
        """Of a job that was ended with `on=`: was that committed? No, if we cannot know."""
        try:
            seen = self._store.get(job.id)
        except JobNotFound:  # it ended, and was not kept
            return True
        except TenureError:
            return False
        runs_here = seen.state is State.RUNNING and seen.token == job.token
        return not runs_here and seen.crashes == job.crashes

    def _give_up(self) -> None:
        """Leases that may have expired are lost."""
        now = time.monotonic()
        with self._lock:
            over = [id for id, lease in self._leases.items() if lease.safe_until <= now]
            gone = [self._leases.pop(id) for id in over]
        for lease in gone:
            _tell_lost(lease)

    def _safe(self, since: float) -> float:
        return since + self._lease_seconds * (1 - MARGIN)

    def _run(self) -> None:
        while not self._stopping.wait(self._heartbeat_seconds if not self._failing else 0.5):
            try:
                self.beat()
            except Exception:
                log.exception("a heartbeat of %s failed, trying again", self._worker)


def _tell_lost(lease: _Lease) -> None:
    for job in lease.jobs.values():
        if not job.is_ended:  # one that was ended with `on=` may have taken its lease with it
            job.lost.set()
