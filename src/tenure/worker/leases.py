"""The jobs that this worker process has leased, from the claim until the settlement is written.

`Watchlist` names those that the timekeeper watches: with a time limit, told to stop, or stuck.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from enum import Enum, auto
from typing import Any

import msgspec

from tenure.errors import SchemaError
from tenure.rules.claim import Claimed, Lease
from tenure.rules.job import Feature
from tenure.rules.lifecycle import Settlement
from tenure.rules.notes import NoteValue, check_size
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
    """The store says that the lease is gone."""
    EXPIRED = auto()
    """The lease may have expired, because the store could not be reached for too long."""
    SHUTDOWN = auto()


class LeasedJob:
    """One leased job. Changed on the event loop only, except for the fields that say otherwise."""

    __slots__ = (
        "asked_at",
        "batch",
        "cancelled",
        "completed",
        "end_taken",
        "job",
        "kb",
        "lost",
        "notes",
        "notes_sent",
        "on_progress",
        "progress",
        "slot_freed",
        "started_at",
        "stop",
        "stop_flag",
        "stop_now",
        "taken_at",
        "task",
        "waits",
        "waits_since",
    )  # fmt: skip

    def __init__(
        self,
        job: Claimed,
        task: Task[..., Any],
        taken_at: float,
        on_progress: Callable[[], None] | None = None,
    ) -> None:
        self.job = job
        self.task = task
        self.taken_at = self.waits_since = taken_at
        """When it was claimed, and since when it waits for a slot: a batch must form first."""
        self.kb = 0
        """The kilobytes of its arguments and, once it has ended, of its result."""
        self.on_progress = on_progress
        """Called in the thread that runs the handler, after each report."""
        self.batch: list[LeasedJob] | None = None
        """All jobs of its batch, itself included. The first one has the slot."""
        self.started_at: float | None = None
        """Set when the handler starts, in the thread that runs it."""
        self.stop: Stop | None = None
        self.stop_now: Callable[[], object] | None = None
        """Interrupts the handler, where that is possible. Set by the executor."""
        self.stop_flag: Flag | None = None
        """Made when the handler first asks for it: hardly any does."""
        self.asked_at = 0.0
        """When the attempt was told to stop; 0: the event loop has not done so yet."""
        self.cancelled = Flag()
        self.lost = Flag()
        self.completed = False
        """The handler ended its job with `on=`. Set in the thread that runs the handler."""
        self.progress: tuple[float | None, str | None] | None = None
        """Set in the thread that runs the handler; the heartbeat thread sends and clears it."""
        self.waits: dict[int, float] | None = None
        """The jobs that its handler waits for, and since when. Set in the thread that runs it."""
        self.notes: dict[str, NoteValue] | None = None
        """All notes of this attempt; never changed, but replaced by another dict."""
        self.notes_sent: dict[str, NoteValue] | None = None
        """The dict that the store has."""
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

    def report(self, fraction: float | None, message: str | None) -> None:
        """The handler has reported progress. Called in the thread that runs it."""
        self.progress = (fraction, message)
        if self.on_progress is not None:
            self.on_progress()

    def wait_begins(self, id: int, now: float) -> None:
        """The handler waits for another job. Called in the thread that runs it."""
        self.waits = {**(self.waits or {}), id: now}
        if self.on_progress is not None:
            self.on_progress()

    def wait_ends(self, id: int) -> None:
        """The handler does not wait for it any more. Called in the thread that runs it."""
        self.waits = {other: at for other, at in (self.waits or {}).items() if other != id} or None

    def annotate(self, values: dict[str, NoteValue]) -> dict[str, NoteValue]:
        """The handler has added notes. Called in the thread that runs it. Returns all of them.

        Raises `PayloadTooLarge` if this attempt has too many.
        """
        with _ending:
            notes = {**(self.notes or {}), **values}
            check_size(notes)
            self.notes = notes
        if self.on_progress is not None:
            self.on_progress()
        return notes

    def with_unsent(self, settlement: Settlement) -> Settlement:
        """The settlement with all that the handler has told since the last heartbeat."""
        notes = self.notes if self.notes is not self.notes_sent else None
        if self.progress is None and notes is None:
            return settlement
        return msgspec.structs.replace(settlement, progress=self.progress, notes=notes)

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
        if why in (Stop.LOST, Stop.EXPIRED):
            self.lost.set()
        if self.end_taken or (self.stop is why and self.asked_at):
            return
        late = why is Stop.TIMEOUT and self.stop is Stop.CANCELLED
        if self.stop is None or late or why in (Stop.LOST, Stop.EXPIRED):
            self.stop = why
            self.asked_at = now
            with _ending:
                if self.stop_flag is not None:
                    self.stop_flag.set()
            if self.started_at is not None and self.stop_now is not None:
                self.stop_now()

    def mark_stopped(self, why: Stop) -> None:
        """The heartbeat thread has ended the attempt, or its lease may have expired.

        The handler can see it at once. The event loop interrupts it as soon as it runs.
        """
        self.lost.set()
        with _ending:
            self.stop = why
            if self.stop_flag is not None:
                self.stop_flag.set()

    def stopping(self) -> Flag:
        """True once the attempt was told to stop. Called by the handler."""
        with _ending:
            if self.stop_flag is None:
                self.stop_flag = Flag()
                if self.stop is not None:
                    self.stop_flag.set()
        return self.stop_flag

    def seconds_run(self, now: float) -> float:
        """How long its handler has run."""
        return 0.0 if self.started_at is None else now - self.started_at


class WorkerLease:
    """One lease of this worker, and its jobs whose settlements are not written yet."""

    __slots__ = (
        "claimed_at",
        "given_up",
        "id",
        "jobs",
        "lease_seconds",
        "safe_until",
        "unreachable",
    )

    def __init__(
        self,
        id: int,
        lease_seconds: float,
        safe_until: float,
        jobs: dict[int, LeasedJob],
        claimed_at: datetime,
    ) -> None:
        self.id = id
        self.claimed_at = claimed_at
        self.lease_seconds = lease_seconds
        self.safe_until = safe_until
        """By this worker's monotonic clock; after it, another worker may have the jobs."""
        self.jobs = jobs
        self.given_up = False
        """It may have expired: its jobs are being stopped, and another worker may have them."""
        self.unreachable = False
        """It was given up because the store could not be reached, not because we were too slow."""


class LeasedJobs:
    """All leases of this worker process. Changed on the event loop only; any thread may read."""

    def __init__(self) -> None:
        self.leases: dict[int, WorkerLease] = {}
        self.heartbeats_fail = False
        """Set by the heartbeat thread while it cannot reach the store."""
        self.beat_sent_at: float | None = None
        """When the heartbeat thread sent a heartbeat to which the store has not replied yet."""
        self.schema_error: SchemaError | None = None
        """The schema has become too new for this code: a heartbeat or a settlement was refused, and
        the worker must end."""
        self.gated: set[int] = set()
        """Leases of jobs that have passed a gate: when one ends, another job may pass."""
        self.kb = 0
        """The kilobytes of arguments and results of all leased jobs."""
        self.moved_kb = 0
        """The same of all jobs so far."""

    def add(
        self, lease: Lease, jobs: Iterable[LeasedJob], lease_seconds: float, safe_until: float
    ) -> None:
        """Add a claimed lease. `safe_until` is counted from before the claim was sent."""
        by_id = {leased.job.id: leased for leased in jobs}
        for leased in by_id.values():
            job = leased.job
            if len(job.args) >= 1024 or job.metadata is not None:
                self._grow(leased, job.size_kb)
        self.leases[lease.id] = WorkerLease(
            lease.id, lease_seconds, safe_until, by_id, lease.claimed_at
        )
        if lease.jobs[0].features & _GATE:  # gated jobs do not share leases with other jobs
            self.gated.add(lease.id)

    def ended(self, leased: LeasedJob, kb: int) -> None:
        """An attempt ended with a result or an error of this size."""
        if self.has(leased):
            self._grow(leased, kb)

    def _grow(self, leased: LeasedJob, kb: int) -> None:
        leased.kb += kb
        self.kb += kb
        self.moved_kb += kb

    def settled(self, jobs: Iterable[LeasedJob]) -> None:
        """Remove jobs whose settlements the store has returned an answer for."""
        leases = self.leases
        for leased in jobs:
            job = leased.job
            lease = leases.get(job.lease_id)
            if lease is not None:
                if lease.jobs.pop(job.id, None) is not None:
                    self.kb -= leased.kb
                if not lease.jobs:
                    del leases[lease.id]
                    self.gated.discard(lease.id)

    def has(self, leased: LeasedJob) -> bool:
        """Is this job still leased, as far as this worker knows?"""
        lease = self.leases.get(leased.job.lease_id)
        return lease is not None and leased.job.id in lease.jobs

    def drop(self, lease_id: int) -> WorkerLease | None:
        """Remove a lost lease, and return it."""
        self.gated.discard(lease_id)
        lease = self.leases.pop(lease_id, None)
        if lease is not None:
            self.kb -= sum(leased.kb for leased in lease.jobs.values())
        return lease

    def give_up_expired(self, now: float) -> list[int]:
        """Mark leases that may have expired. Returns the ids of those that were not marked before.

        Called on the event loop and in the heartbeat thread, while the event loop may be blocked.
        """
        expired = [
            lease
            for lease in list(self.leases.values())
            if lease.safe_until <= now and not lease.given_up
        ]
        sent_at = self.beat_sent_at
        for lease in expired:
            in_time = sent_at is not None and sent_at < lease.safe_until  # and got no reply
            lease.given_up, lease.unreachable = True, self.heartbeats_fail or in_time
            why = Stop.EXPIRED if lease.unreachable else Stop.LOST
            for leased in list(lease.jobs.values()):
                if leased.end_taken:
                    leased.lost.set()
                else:
                    leased.mark_stopped(why)
        return [lease.id for lease in expired]

    def has_any(self, ids: Collection[int]) -> bool:
        """Is one of these jobs leased? Called in the heartbeat thread."""
        return any(id in lease.jobs for lease in list(self.leases.values()) for id in ids)

    def all(self) -> list[LeasedJob]:
        """A list of all leased jobs."""
        return [job for lease in list(self.leases.values()) for job in list(lease.jobs.values())]

    def waits(self, now: float) -> list[tuple[LeasedJob, int, float]]:
        """Running jobs that wait for other jobs, the ids of those, and for how many seconds."""
        return [
            (leased, id, now - since)
            for leased in self.all()
            for id, since in (leased.waits or {}).items()
            if not leased.slot_freed
        ]

    def unfinished(self) -> list[LeasedJob]:
        """Leased jobs whose handlers run, or wait for a slot."""
        return [job for job in self.all() if not job.end_taken and not job.slot_freed]


class Watchlist:
    """The watched jobs of one worker process.

    Changed on the event loop; the heartbeat thread reads it while the loop is blocked.
    """

    def __init__(self, now: float) -> None:
        # Dictionaries keep their order, so that a simulation can be repeated.
        self.timed: dict[LeasedJob, None] = {}
        """Jobs with a timeout, from the claim on."""
        self.stopping: dict[LeasedJob, None] = {}
        """Running jobs that were told to stop."""
        self.stuck: set[LeasedJob] = set()
        """Jobs whose handlers were told to stop and did not. They keep their slots."""
        self.ticked_at = now
        """When the event loop last ran the timekeeper or took jobs on."""
        self.in_use = asyncio.Event()
        """Set while there are leased jobs, so that nothing ticks in an idle worker."""

    def wake(self, now: float) -> None:
        """The worker takes jobs on."""
        self.ticked_at = now
        self.in_use.set()

    def forget(self, leased: LeasedJob) -> None:
        """The handler has ended."""
        self.timed.pop(leased, None)
        self.stopping.pop(leased, None)
        self.stuck.discard(leased)

    def note_stuck(self, leased: LeasedJob) -> bool:
        """The handler does not stop. Returns False if that was noted before."""
        before = len(self.stuck)
        self.stuck.add(leased)
        return len(self.stuck) > before
