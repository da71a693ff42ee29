"""Counts how the jobs of one claimer end, for statistics. It counts what the store has recorded.

An end with `on=` is not counted: its transaction may be rolled back.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from tenure.claiming.jobs import HeldHere
from tenure.rules.lifecycle import Outcome, Settlement, after_settlement
from tenure.rules.statistics import OUTCOMES, WRITE_SECONDS, Counted, Tally
from tenure.store.api import Runner, run_on
from tenure.store.jobs.settle import Answer
from tenure.store.statistics.write import add_statistics

MOST_UNSENT = 360
"""If the store cannot be reached, the counts of an hour are kept."""
_REQUEUED = {Outcome.RETRY: "retried", Outcome.SNOOZE: "snoozed"}


class EndCounter:
    """What one claimer has counted, and the store does not have yet. Threads may share it."""

    def __init__(self, process: str) -> None:
        self._process = process
        """No other claimer writes under this name."""
        self._lock = threading.Lock()
        self._tally = Tally()
        self._began = time.monotonic()
        self._clock = (datetime.now(UTC), self._began)
        """The time of the database, after the first claim, and of our own clock, at one moment."""
        self._last_at: datetime | None = None
        self._unsent: deque[tuple[datetime, list[Counted]]] = deque(maxlen=MOST_UNSENT)

    def claimed(self, claimed_at: datetime, before: float) -> None:
        """A claim tells the time of the database."""
        self._clock = (claimed_at, before)

    def ended(self, job: HeldHere, settlement: Settlement, answer: Answer) -> None:
        """The store has recorded this end."""
        to = answer.became or after_settlement(job.standing(), settlement).to
        kind = str(to) if to.final else _REQUEUED.get(settlement.outcome, "")
        if kind not in OUTCOMES:
            return
        seconds = settlement.duration_seconds
        with self._lock:
            if seconds is None:
                self._tally.cell(job.queue, job.task, kind)[0].ends += 1
            else:
                self._tally.add(job.queue, job.task, kind, job.waited_seconds, seconds)

    def is_due(self) -> bool:
        """Is it time to write? At most ten seconds should pass between two writes."""
        return time.monotonic() - self._began >= 0.8 * WRITE_SECONDS

    async def write(self, runner: Runner) -> None:
        """Write what was counted. What the store does not get is kept."""
        for at, rows in self._close_period():
            await run_on(runner, add_statistics, self._process, rows, at=at)
            with self._lock:
                if (at, rows) in self._unsent:  # two threads may write it: it counts once
                    self._unsent.remove((at, rows))

    def _close_period(self) -> Sequence[tuple[datetime, list[Counted]]]:
        with self._lock:
            if rows := self._tally.take():
                there, here = self._clock
                at = there + timedelta(seconds=self._began - here)
                if self._last_at is not None:  # a time is used once
                    at = max(at, self._last_at + timedelta(microseconds=1))
                self._last_at = at
                self._unsent.append((at, rows))
            self._began = time.monotonic()
            return list(self._unsent)
