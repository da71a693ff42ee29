"""When to look for work, and which lanes may have some.

Polling alone finds all work: soon after the last claim, then less and less often. A ring of the
bell, a slot that comes free or a job that is due only shortens the wait.
"""

import asyncio
import math
from contextlib import suppress

from tenure.rules.claim import ALL_NEEDS
from tenure.store import Outlook
from tenure.store.bell import Bell
from tenure.worker.environment import Environment
from tenure.worker.settings import WorkerSettings

Lane = tuple[str, int]
"""A queue, and the needs of its jobs."""


class Polling:
    """The polls of one worker process. Lives on the event loop."""

    def __init__(self, settings: WorkerSettings, environment: Environment) -> None:
        self._settings = settings
        self._environment = environment
        self._wake = asyncio.Event()
        self._lanes = frozenset((queue, needs) for queue in settings.queues for needs in ALL_NEEDS)
        self.may_have_work: set[Lane] = set(self._lanes)
        """Lanes that may have jobs ready: they were announced, or a claim left some behind."""
        self.is_full = False
        """There is no room for jobs of any kind."""
        self._pause = settings.busy_poll_seconds
        self._asked_at = self.looked_at = environment.monotonic()
        self._due_at = math.inf
        """When the next job is due, as far as is known."""
        self.resting = False
        """Whether the claimer waits. If not, it looks for free slots by itself before it does."""
        self.bell: Bell | None = None
        """Rings when there may be new work."""

    def ring(self) -> None:
        """There may be new work, now or soon."""
        self.may_have_work.update(self._lanes)
        self._pause = self._settings.busy_poll_seconds
        may_be_due_at = self._environment.monotonic() + self._settings.promote_seconds
        self._due_at = min(self._due_at, may_be_due_at)
        self._wake.set()

    def slot_came_free(self) -> None:
        """A job could start."""
        if self.may_have_work:
            self._wake.set()

    def wake(self) -> None:
        """End the rest, and the next one."""
        self._wake.set()

    def begin_round(self) -> None:
        """From now on, news shorten the next rest."""
        self._wake.clear()

    def look_at(self) -> float:
        """When to look next.

        At the latest when the next job is due. Also from time to time, because jobs may become due
        that no bell announces. While there is more to claim and no room for it, only due jobs are
        looked for.
        """
        often = self._settings.promote_seconds
        if self.may_have_work and self.is_full:
            return min(self.looked_at + often, self._due_at)
        often = often if self.bell is None else max(often, self.bell.ahead_seconds)
        return min(self._asked_at + self._pause, self.looked_at + often, self._due_at)

    def saw(self, outlook: Outlook) -> None:
        """The claimer has looked."""
        self._asked_at = self.looked_at = now = self._environment.monotonic()
        self._pause = min(2 * self._pause, self._settings.idle_poll_seconds)
        self._due_at = math.inf
        if outlook.due_seconds is not None:  # a job due now will be ready at the next look
            overdue = outlook.due_seconds <= 0
            pause = self._settings.promote_seconds if overdue else outlook.due_seconds
            self._due_at = now + pause
        self.may_have_work.update(lane for lane in self._lanes if lane[0] in outlook.ready)

    def asked(self) -> None:
        """The store has returned from a claim."""
        self._asked_at = self._environment.monotonic()

    def claimed(self) -> None:
        """The last claim returned jobs: poll often again."""
        self._pause = self._settings.busy_poll_seconds

    async def rest(self, seconds: float) -> None:
        """Wait for news, at most this long."""
        self.resting = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self.resting = False
