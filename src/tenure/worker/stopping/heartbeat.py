"""Heartbeats: a thread renews all leases, from the claim until the settlement is written.

A handler that blocks the event loop keeps its job, because the thread does not need the loop. While
the database cannot be reached, the worker decides by its monotonic clock that a lease may have
expired, and stops the jobs on it. It counts from before the last successful claim or heartbeat.

Two things do not wait for the next heartbeat. Progress and notes are sent at most once a second
while handlers report them. When the bell tells of a cancel request, the thread renews the leases at
once, and so learns which jobs to stop. Both are hints: what they miss, the next heartbeat finds.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from tenure.errors import JobNotFound, SchemaError, StoreError
from tenure.rules.job import Beat, State, WorkerInfo
from tenure.store import Store
from tenure.worker.environment import Environment
from tenure.worker.leases import MARGIN, LeasedJob, LeasedJobs, WorkerLease
from tenure.worker.memory import Memory
from tenure.worker.settings import WorkerSettings
from tenure.worker.stopping.loop_watch import LoopWatch
from tenure.worker.stopping.timekeeper import Timekeeper

RETRY_SECONDS = 0.5
HUNG_SECONDS = 2.0
"""A heartbeat without a reply for this long counts as failed."""
PROGRESS_SECONDS = 1.0
"""Progress is sent this often, at most."""
CANCEL_SECONDS = 0.1
"""Leases are renewed this often, at most, because of cancel requests."""
CLAIMING_SECONDS = 0.5
"""A cancel request may be heard before the worker has received the job that it has just claimed: so
it is looked at once more, after this time."""
WAIT_SECONDS = 1.0
"""A handler that has waited for another job for this long is looked at."""

log = logging.getLogger("tenure.worker")


class _Heard(NamedTuple):
    """Cancel requests of which the bell has told."""

    look_at: float
    ids: Collection[int] | None
    """None: any job."""
    again: bool
    """Whether to look at it once more."""


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
        loop_watch: LoopWatch,
        info: Callable[[], WorkerInfo],
    ) -> None:
        self._store = store
        self._worker = worker
        self._settings = settings
        self._environment = environment
        self._leased_jobs = leased_jobs
        self._timekeeper = timekeeper
        self._loop_watch = loop_watch
        self._info = info
        self._memory = Memory(leased_jobs)
        self._wake = environment.event()
        self._stopping = False
        self._thread = environment.thread(self._run, "tenure-heartbeat")
        self._beat_at = -math.inf
        self._asked_at = -math.inf
        """When the leases were last renewed because of a cancel request."""
        self._heard: deque[_Heard] = deque()
        self._reported = False
        self._sent_at = -math.inf
        """When progress was last sent."""
        self._hung = False
        """Whether the log says that a heartbeat got no answer."""
        self._waits_at = math.inf
        """When to look at handlers that wait for other jobs."""
        self._told: set[tuple[int, int, int]] = set()
        """The waits that were logged: job, token, and the other job."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Returns after the last heartbeat."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def progress_reported(self) -> None:
        """A handler has reported progress or added notes: send them soon. Called in its thread."""
        if not self._reported:
            self._reported = True
            self._wake.set()

    def cancel_requested(self, ids: Collection[int] | None) -> None:
        """Jobs were asked to stop; None: any. Called in the thread of the bell."""
        self._heard.append(_Heard(self._environment.monotonic(), ids, again=True))
        self._wake.set()

    def _run(self) -> None:
        while self._rest():
            began = self._environment.monotonic()
            whole = began >= self._beat_at
            sent = self._sent(self._whole_beat if whole else self._part_of_beat)
            if whole:  # at a steady pace: one that took long is followed at once
                self._beat_at = began + self._settings.heartbeat_seconds
            if not sent or self._leased_jobs.heartbeats_fail:
                retry_at = self._environment.monotonic() + RETRY_SECONDS
                self._beat_at = min(self._beat_at, retry_at)
            self.give_up_expired()

    def _rest(self) -> bool:
        """Wait until there is something to send. Returns False when the worker stops."""
        while True:
            self._wake.clear()
            if self._stopping:
                return False
            next_at = self._next_at()
            if next_at <= self._environment.monotonic():
                return True
            next_at = min(next_at, self._loop_watch.look())
            self._wake.wait(max(0.0, next_at - self._environment.monotonic()))

    def _next_at(self) -> float:
        progress_at = self._sent_at + PROGRESS_SECONDS if self._reported else math.inf
        heard_at = min((heard.look_at for heard in list(self._heard)), default=math.inf)
        cancel_at = max(heard_at, self._asked_at + CANCEL_SECONDS)
        return min(self._beat_at, progress_at, cancel_at, self._waits_at)

    def _sent(self, send: Callable[[], None]) -> bool:
        """Send it. Returns False if that failed."""
        self._leased_jobs.beat_sent_at = self._environment.monotonic()
        try:
            send()
        except StoreError as error:
            # Logged once: an outage must not fill the disk.
            if not self._leased_jobs.heartbeats_fail:
                log.warning("a heartbeat of %s failed, trying again: %s", self._worker, error)
            self._leased_jobs.heartbeats_fail = True
            if isinstance(error, SchemaError):
                self._leased_jobs.schema_error = error
            return False
        except Exception:
            if not self._leased_jobs.heartbeats_fail:
                log.exception("a heartbeat of %s failed, trying again", self._worker)
            self._leased_jobs.heartbeats_fail = True
            return False
        finally:
            self._leased_jobs.beat_sent_at = None
        return True

    def works(self) -> bool:
        """Can leases be renewed? A heartbeat without an answer counts as failed. Called on the
        event loop."""
        sent_at = self._leased_jobs.beat_sent_at
        seconds = 0.0 if sent_at is None else self._environment.monotonic() - sent_at
        hangs = seconds >= HUNG_SECONDS
        if hangs and not self._hung and not self._leased_jobs.heartbeats_fail:
            log.warning(
                "a heartbeat of %s has had no answer for %.0f s; this worker claims no jobs until "
                "one comes", self._worker, seconds,
            )  # fmt: skip
            self._hung = True
        return not (hangs or self._leased_jobs.heartbeats_fail)

    def _whole_beat(self) -> None:
        self.beat()
        self._timekeeper.time_out_if_blocked(self._store)
        self._store.announce(self._info())
        self._look_at_waits()
        if self._leased_jobs.heartbeats_fail or self._hung:
            log.info("heartbeats of %s work again", self._worker)
        self._leased_jobs.heartbeats_fail = self._hung = False
        self._memory.give_back()

    def _part_of_beat(self) -> None:
        """Send what does not wait for the next heartbeat."""
        now = self._environment.monotonic()
        if self._concerned(now):
            self._asked_at = now
            self._renew()
        if self._waits_at <= now:
            self._store.announce(self._info())  # `why` reads it
            self._look_at_waits()
        if self._reported and now >= self._sent_at + PROGRESS_SECONDS:
            self._report_progress()

    def _concerned(self, now: float) -> bool:
        """Does one of the cancel requests concern this worker?"""
        concerned = False
        for _ in range(len(self._heard)):
            heard = self._heard.popleft()
            if heard.look_at > now:
                self._heard.append(heard)
                continue
            known = heard.ids is not None and self._leased_jobs.has_any(heard.ids)
            concerned = concerned or known or heard.ids is None
            if heard.again and not known:
                self._heard.append(_Heard(now + CLAIMING_SECONDS, heard.ids, again=False))
        return concerned

    def beat(self) -> None:
        """Renew each lease once, except those that were given up, and send progress."""
        self._renew()
        self._report_progress()

    def _renew(self) -> None:
        by_length: dict[float, list[WorkerLease]] = {}
        for lease in list(self._leased_jobs.leases.values()):
            if not lease.given_up:  # the blocked event loop has not dropped it yet
                by_length.setdefault(lease.lease_seconds, []).append(lease)
        for lease_seconds, leases in by_length.items():
            self._extend(leases, lease_seconds)

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
        self._reported = False  # before the look: a later report sets it again
        self._sent_at = self._environment.monotonic()
        jobs = self._leased_jobs.all()
        if any(leased.waits for leased in jobs):
            self._waits_at = min(self._waits_at, self._sent_at + WAIT_SECONDS)
        reports = [(j, j.progress) for j in jobs if j.progress is not None]
        if reports:
            self._store.report_progress(self._worker, [(j.job, *told) for j, told in reports])
        for leased, told in reports:
            if leased.progress is told:  # the handler has not reported again meanwhile
                leased.progress = None
        self._send_notes()

    def _send_notes(self) -> None:
        noted = [(j, j.notes) for j in self._leased_jobs.all() if j.notes is not j.notes_sent]
        if noted:
            self._store.annotate(self._worker, [(j.job, notes or {}) for j, notes in noted])
        for leased, notes in noted:
            leased.notes_sent = notes  # if the handler has added more, its dict is another one

    def _look_at_waits(self) -> None:
        """Log each wait for a job that is in a queue, because it may never get a slot."""
        now = self._environment.monotonic()
        waits = self._leased_jobs.waits(now)
        young = [WAIT_SECONDS - seconds for _, _, seconds in waits if seconds < WAIT_SECONDS]
        self._waits_at = now + min(young, default=math.inf)
        waiting = {
            (leased.job.id, leased.job.token, id): leased
            for leased, id, seconds in waits
            if seconds >= WAIT_SECONDS
        }
        self._told &= waiting.keys()
        for key, leased in waiting.items():
            if key not in self._told and (said := self._waits_in_vain(leased, key[2])):
                self._told.add(key)
                self._timekeeper.tell_of_wait(leased, key[2], said)

    def _waits_in_vain(self, leased: LeasedJob, id: int) -> str | None:
        """Why the other job does not run, if this worker has no slot for it."""
        if self._timekeeper.has_slot_like(leased):
            return None
        try:
            queued = self._store.get(id).state is State.QUEUED
            return self._store.why(id) if queued else None
        except JobNotFound:
            return None

    def give_up_expired(self) -> None:
        """Stop the jobs of leases that may have expired."""
        self._timekeeper.stop_soon(self._leased_jobs.give_up_expired(self._environment.monotonic()))


def _started(lease: WorkerLease) -> list[int]:
    jobs: list[LeasedJob] = list(lease.jobs.values())
    return [leased.job.id for leased in jobs if leased.started_at is not None]
