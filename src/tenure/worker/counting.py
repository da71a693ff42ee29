"""Counts how the attempts of a worker process end, by queue, task and outcome, for statistics.

It counts what the store has recorded, and each attempt once: the end of a job that was no longer
this worker's is not counted. Lives on the event loop.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta

from tenure.rules.statistics import BOUNDS, OUTCOMES, Counted, Tally
from tenure.worker.environment import Environment
from tenure.worker.leases import LeasedJob, LeasedJobs

MOST_UNSENT = 360
"""If the store cannot be reached, the counts of an hour are kept."""
_OUTCOMES = frozenset(OUTCOMES)
_SECOND = timedelta(seconds=1)


class EndCounter:
    """What one worker process has counted, and the store does not have yet."""

    def __init__(self, leased_jobs: LeasedJobs, environment: Environment) -> None:
        self._leases = leased_jobs.leases
        self._environment = environment
        self._tally = Tally()
        self._began = environment.monotonic()
        self._clock: tuple[datetime, float] | None = None
        """The time of the database and of our own clock, at one moment."""
        self._last_at: datetime | None = None
        self.unsent: deque[tuple[datetime, list[Counted]]] = deque(maxlen=MOST_UNSENT)
        """What is to be written, and when the worker began to count it, by the database's clock."""

    def ended(self, leased: LeasedJob, kind: str, seconds: float | None) -> None:
        """An attempt has ended; its handler ran so long."""
        if kind in _OUTCOMES:
            self._count([(leased, seconds)], kind)

    def succeeded(self, attempts: Sequence[tuple[LeasedJob, float | None]]) -> None:
        """These have succeeded. Most jobs come here: for each it only calculates."""
        if attempts:
            self._count(attempts, "succeeded")

    def _count(self, attempts: Sequence[tuple[LeasedJob, float | None]], kind: str) -> None:
        leases, tally = self._leases, self._tally
        first = attempts[0][0].job
        queue, task = first.queue, first.task
        counted, waits, runs = tally.cell(queue, task, kind)
        for leased, seconds in attempts:
            job, started_at = leased.job, leased.started_at
            if job.task != task or job.queue != queue:  # most jobs of a batch are alike
                queue, task = job.queue, job.task
                counted, waits, runs = tally.cell(queue, task, kind)
            counted.ends += 1
            lease_id = job.lease_id
            if seconds is None or started_at is None or lease_id not in leases:
                continue
            claimed_at = leases[lease_id].claimed_at
            waited = (claimed_at - (job.queued_at or job.created_at)) / _SECOND
            waited += started_at - leased.taken_at
            if waited < 0.0:  # noqa: PLR1730 - no call of `max` for each job
                waited = 0.0
            counted.wait_seconds += waited
            counted.run_seconds += seconds
            waits[bisect_left(BOUNDS, waited)] += 1
            runs[bisect_left(BOUNDS, seconds)] += 1
            if self._clock is None:
                self._clock = (claimed_at, leased.taken_at)

    def close_period(self) -> bool:
        """Put what was counted with what is to be written. Returns whether there is any."""
        if rows := self._tally.take():
            at = self._environment.now()
            if self._clock is not None:
                there, here = self._clock
                at = there + timedelta(seconds=self._began - here)
            if self._last_at is not None:  # a time is used once
                at = max(at, self._last_at + timedelta(microseconds=1))
            self._last_at = at
            self.unsent.append((at, rows))
        self._began, self._clock = self._environment.monotonic(), None
        return bool(self.unsent)
