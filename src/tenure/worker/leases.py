"""The jobs that this worker process has leased, from the claim until the settlement is written."""

import threading
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any

from tenure.rules.job import Claimed, Feature, Lease
from tenure.running import Flag
from tenure.tasks import Task, TaskOptions

MARGIN = 0.15
"""This share of each lease is a safety margin: the worker stops handlers before the lease ends."""

_GATE = Feature.GATE
_ending = threading.Lock()


def _no_handler() -> None:
    """Stands in for the handler of a task that this process does not have."""


NO_TASK: Task[..., Any] = Task(_no_handler, "unknown", TaskOptions())


class Stop(Enum):
    """Why the worker stops an attempt."""

    TIMEOUT = auto()
    CANCELLED = auto()
    LOST = auto()
    SHUTDOWN = auto()


class LeasedJob:
    """One leased job. Changed on the event loop only, except for the fields that say otherwise."""

    __slots__ = (
        "asked_at",
        "cancelled",
        "completed",
        "end_taken",
        "job",
        "lost",
        "progress",
        "slot_freed",
        "started_at",
        "stop",
        "stop_now",
        "taken_at",
        "task",
    )  # fmt: skip

    def __init__(self, job: Claimed, task: Task[..., Any], taken_at: float) -> None:
        self.job = job
        self.task = task
        self.taken_at = taken_at
        self.started_at: float | None = None
        """Set when the handler starts, in the thread that runs it."""
        self.stop: Stop | None = None
        self.stop_now: Callable[[], object] | None = None
        """Interrupts the handler, where that is possible. Set by the executor."""
        self.asked_at = 0.0
        """When the attempt was told to stop."""
        self.cancelled = Flag()
        self.lost = Flag()
        self.completed = False
        """The handler called `complete(on=...)`. Set in the thread that runs the handler."""
        self.progress: tuple[float | None, str | None] | None = None
        """Set in the thread that runs the handler; the heartbeat thread sends and clears it."""
        self.end_taken = False
        """The settler or the heartbeat thread is writing how the attempt ended."""
        self.slot_freed = False
        """The handler has ended, or will never start, and its slot is free."""

    def take_end(self) -> bool:
        """Returns True to one caller only, which then writes how the attempt ended.

        Called on the event loop and in the heartbeat thread.
        """
        with _ending:
            taken, self.end_taken = self.end_taken, True
        return not taken

    def stop_reason(self) -> Stop | None:
        """Why it must stop, if it must. Read it again each time: another thread may change it."""
        return self.stop

    def ask_to_stop(self, why: Stop, now: float) -> None:
        """Tell the attempt to stop. The first reason counts, with two exceptions.

        A timeout replaces a cancellation, which a handler may ignore for ever. A lost lease
        replaces every other reason.
        """
        if why is Stop.CANCELLED:
            self.cancelled.set()
        if why is Stop.LOST:
            self.lost.set()
        if self.end_taken or self.stop is why:
            return
        late = why is Stop.TIMEOUT and self.stop is Stop.CANCELLED
        if self.stop is None or late or why is Stop.LOST:
            self.stop = why
            self.asked_at = now
            if self.started_at is not None and self.stop_now is not None:
                self.stop_now()

    def seconds_run(self, now: float) -> float:
        """How long its handler has run."""
        return 0.0 if self.started_at is None else now - self.started_at


class WorkerLease:
    """One lease of this worker, and its jobs whose settlements are not written yet."""

    __slots__ = ("given_up", "id", "jobs", "lease_seconds", "safe_until")

    def __init__(
        self, id: int, lease_seconds: float, safe_until: float, jobs: dict[int, LeasedJob]
    ) -> None:
        self.id = id
        self.lease_seconds = lease_seconds
        self.safe_until = safe_until
        """By this worker's monotonic clock; after it, another worker may have the jobs."""
        self.jobs = jobs
        self.given_up = False
        """It may have expired: its jobs are being stopped, and another worker may have them."""


class LeasedJobs:
    """All leases of this worker process. Changed on the event loop only; any thread may read."""

    def __init__(self) -> None:
        self.leases: dict[int, WorkerLease] = {}
        self.gated: set[int] = set()
        """Leases of jobs that have passed a gate: when one ends, another job may pass."""

    def add(
        self, lease: Lease, jobs: Iterable[LeasedJob], lease_seconds: float, safe_until: float
    ) -> None:
        """Add a claimed lease. `safe_until` is counted from before the claim was sent."""
        by_id = {leased.job.id: leased for leased in jobs}
        self.leases[lease.id] = WorkerLease(lease.id, lease_seconds, safe_until, by_id)
        if lease.jobs[0].features & _GATE:  # gated jobs do not share leases with other jobs
            self.gated.add(lease.id)

    def settled(self, jobs: Iterable[LeasedJob]) -> None:
        """Remove jobs whose settlements the store has returned an answer for."""
        leases = self.leases
        for leased in jobs:
            job = leased.job
            lease = leases.get(job.lease_id)
            if lease is not None:
                lease.jobs.pop(job.id, None)
                if not lease.jobs:
                    del leases[lease.id]
                    self.gated.discard(lease.id)

    def has(self, leased: LeasedJob) -> bool:
        """Is this job still leased, as far as this worker knows?"""
        lease = self.leases.get(leased.job.lease_id)
        return lease is not None and leased.job.id in lease.jobs

    def drop(self, lease_id: int) -> list[LeasedJob]:
        """Remove a lost lease. Returns the jobs that were still on it."""
        lease = self.leases.pop(lease_id, None)
        self.gated.discard(lease_id)
        return list(lease.jobs.values()) if lease else []

    def give_up_expired(self, now: float) -> list[int]:
        """Mark leases that may have expired. Returns the ids of those that were not marked before.

        Called on the event loop and in the heartbeat thread, while the event loop may be blocked.
        """
        expired = [
            lease
            for lease in list(self.leases.values())
            if lease.safe_until <= now and not lease.given_up
        ]
        for lease in expired:
            lease.given_up = True
            for leased in list(lease.jobs.values()):
                leased.lost.set()
        return [lease.id for lease in expired]

    def all(self) -> list[LeasedJob]:
        """A list of all leased jobs."""
        return [job for lease in list(self.leases.values()) for job in list(lease.jobs.values())]

    def unfinished(self) -> list[LeasedJob]:
        """Leased jobs whose handlers run, or wait for a slot."""
        return [job for job in self.all() if not job.end_taken and not job.slot_freed]
