"""Jobs that the timekeeper watches: with a time limit, told to stop, or stuck.

Lives on the event loop; the heartbeat thread reads it while the loop is blocked.
"""

import asyncio
import logging

from tenure.worker.events import EventReporter
from tenure.worker.leases import LeasedJob


class Watchlist:
    """The watched jobs of one worker process."""

    def __init__(self, reporter: EventReporter, now: float) -> None:
        self._reporter = reporter
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

    def note_stuck(self, leased: LeasedJob) -> None:
        """The handler does not stop. Logged once."""
        if leased not in self.stuck:
            self.stuck.add(leased)
            self._reporter.say(logging.ERROR, leased.job, "does not stop; its slot is stuck")
