"""The claim loop: asks for as many jobs as there is room for, and rests when there are none.

Polling is the truth: soon after the last answer, then less and less often. To poll is to look, with
one statement: is there anything to claim, to promote or to sweep? Only then something else is sent.
A bell that rings, a slot that came free, or a job that is due cuts a rest short.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tenure.client import Client
from tenure.errors import SchemaError, StoreError
from tenure.rules.job import Lease
from tenure.rules.permits import Permits
from tenure.store import AsyncStore, Outlook
from tenure.store.jobs.claim import MAX_BLOCK
from tenure.tasks import Kind
from tenure.worker.claiming.slots import Pace, Shares, Slots
from tenure.worker.environment import World
from tenure.worker.running.executors import Executor
from tenure.worker.settings import WorkerSettings
from tenure.worker.settling.heartbeat import MARGIN

OUTAGE_PAUSE_SECONDS = 1.0
TOUCH_SECONDS = 1.0
RIDE_SECONDS, REST_SECONDS = 2.0, 0.1
UNSETTLED = 4
TakeOn = Callable[[Lease, Sequence[Permits], float, float], None]
log = logging.getLogger("tenure.worker")


class Claimer:
    """Claims for one worker process. Lives on the event loop."""

    def __init__(
        self,
        store: AsyncStore,
        worker: str,
        app: Client,
        settings: WorkerSettings,
        world: World,
        *,
        executors: Mapping[Kind, Executor],
        slots: Slots,
        pace: Pace,
        queue_pace: Pace,
        take_on: TakeOn,
        saw: Callable[[Outlook], None],
        announced_seconds: Callable[[], float],
        is_stuck: Callable[[], bool],
    ) -> None:
        self._store = store
        self._worker = worker
        self._settings = settings
        self._world = world
        self._executors = executors
        self._slots = slots
        self._pace = pace
        self._queue_pace = queue_pace
        self._take_on = take_on
        self._saw = saw
        self._announced_seconds = announced_seconds
        self._is_stuck = is_stuck
        self._shares = Shares(settings.queues)
        self._kinds = {queue: _kinds(app, queue) for queue in settings.queues}
        self._phase = RIDE_SECONDS * world.random()
        self._wake = asyncio.Event()
        self._more: set[str] = set(settings.queues)
        """Queues that may have jobs ready: news of them came, or there was no room for all."""
        self._halfway: set[str] = set()
        """Those of them at whose gates the last claim had no time to look at all who wait."""
        self._pause = settings.busy_poll_seconds
        self._asked_at = self._looked_at = world.monotonic()
        self._due_at = math.inf
        """When the next job is due, as far as is known."""
        self.resting = False
        """Does it wait for news? If not, it looks at the room by itself before it does."""
        self._stopping = False
        self._failing = False
        self._touched_at = -TOUCH_SECONDS
        self.claims = 0

    def ring(self) -> None:
        """There may be new work, now or soon."""
        self._more.update(self._settings.queues)
        self._pause = self._settings.busy_poll_seconds
        may_be_due_at = self._world.monotonic() + self._settings.promote_seconds
        self._due_at = min(self._due_at, may_be_due_at)
        self._wake.set()

    def slot_came_free(self) -> None:
        """There is room again."""
        if self._more:
            self._wake.set()

    def learn(self, queues: Collection[str], kind: Kind) -> None:
        """Jobs of this kind came from these queues: from now on its slots count there."""
        for queue in queues:
            if kind not in self._kinds[queue]:
                self._kinds[queue] |= {kind}

    def stop(self) -> None:
        """Claim no more."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Claim until told to stop."""
        now = self._world.monotonic
        while not self._stopping:
            self._executors["async"].leave_if_forked()  # in a fork, a handler has run this loop
            self._wake.clear()
            try:
                if now() >= self._look_at():
                    await self._look()
                claimed = await self._claim()
            except StoreError as error:
                await self._after(error)
                continue
            self._says_it_is_back()
            self._touch_health_file()
            if claimed:
                self._pause = self._settings.busy_poll_seconds
            if claimed or self._halfway:
                await asyncio.sleep(0)
                continue
            await self._rest(self._look_at() - now())

    def _look_at(self) -> float:
        """When to look again: when the next job is due, and before long for what comes meanwhile.

        Jobs that nobody announces may become due. While there is more to claim, nothing else is
        looked for.
        """
        often = self._settings.promote_seconds
        if self._more:
            return min(self._looked_at + often, self._due_at)
        often = max(often, self._announced_seconds())
        return min(self._asked_at + self._pause, self._looked_at + often, self._due_at)

    async def _look(self) -> None:
        """See what there is to do, for us and for all."""
        outlook = await self._store.peek(self._settings.queues)
        self._asked_at = self._looked_at = now = self._world.monotonic()
        self._pause = min(2 * self._pause, self._settings.idle_poll_seconds)
        self._due_at = math.inf
        if outlook.due_seconds is not None:  # what is due now will be in line when we look again
            overdue = outlook.due_seconds <= 0
            pause = self._settings.promote_seconds if overdue else outlook.due_seconds
            self._due_at = now + pause
        self._more.update(outlook.ready)
        self._saw(outlook)

    def _room(self) -> dict[Kind, int]:
        """Free slots and a little more, by kind; none where a claim would not be worth its while.

        With jobs waiting for slots, a claim pays when a quarter of the room is free.
        """
        room: dict[Kind, int] = {}
        for kind, executor in self._executors.items():
            prefetch = self._pace.prefetch(kind, executor.slots)
            free = executor.free - self._slots.waiting(kind)
            worth = free > 0 or 4 * (free + prefetch) >= executor.slots + prefetch
            room[kind] = free + prefetch if worth else 0
        return room

    async def _claim(self) -> int:
        """Claim until the room is full or the queues are empty. Answers how many.

        A claim that is halfway along a gate, and got nothing, is followed by the next one only when
        other things were seen to: to walk past thousands of lines takes seconds.
        """
        total = 0
        while not self._stopping:
            self._halfway.clear()
            room = self._room()  # anew: a small rest is not worth a claim
            limits = {queue: self._limit(queue, room) for queue in self._more}
            limits = {queue: limit for queue, limit in limits.items() if limit > 0}
            asked = self._shares.divide(limits, room, self._kinds)
            if not asked:
                break
            self._more.difference_update(asked)  # so that a ring from here on is not forgotten
            claimed = await self._claim_shares(asked)
            self._more.update(queue for queue, got in claimed.items() if got >= asked[queue])
            self._more.update(self._halfway)
            total += sum(claimed.values())
            if self._halfway and not any(claimed.values()):
                break
        return total

    def _limit(self, queue: str, room: Mapping[Kind, int]) -> int:
        kinds = self._kinds[queue]
        limit = min(room[kind] for kind in kinds)
        slots = self._slots.limits.get(queue)
        if slots is not None:
            ahead = self._queue_pace.prefetch(queue, slots)
            limit = min(limit, slots + ahead - self._slots.in_hand(queue))
        return limit

    async def _claim_shares(self, asked: Mapping[str, int]) -> dict[str, int]:
        got = dict.fromkeys(asked, 0)
        lengths = {self._settings.lease_of(queue) for queue in asked}
        for lease_seconds in sorted(lengths):
            part = {q: n for q, n in asked.items() if self._settings.lease_of(q) == lease_seconds}
            before = self._world.monotonic()
            claim = await self._store.claim(
                self._worker, part, lease_seconds=lease_seconds, ahead=self._all_must_wait(part),
                new_permits=self._free(), riders=self._riders(part),
            )  # fmt: skip
            self._halfway |= claim.more
            self._world.crash_point("after claim")
            self.claims += 1
            self._asked_at = self._world.monotonic()
            safe_until = before + lease_seconds * (1 - MARGIN)
            for lease in claim:
                self._take_on(lease, claim.permits, lease_seconds, safe_until)
                for job in lease.jobs:
                    got[job.queue] += 1
        return got

    def _riders(self, queues: Collection[str]) -> float:
        """How many jobs may come along with each place at a gate: as for slots, and those that have
        ended and are not settled yet, which the database cannot tell from others.

        Places come back to others only when this worker has fewer jobs than places. So that nobody
        waits for ever, in another queue, say, it now and then takes no more than it has places for.
        """
        if (self._world.monotonic() + self._phase) % RIDE_SECONDS < REST_SECONDS:
            return 0.0
        slots = {
            kind: self._executors[kind].slots for queue in queues for kind in self._kinds[queue]
        }
        riders = [self._pace.prefetch(kind, n) / n for kind, n in slots.items() if n]
        for queue, n in self._slots.limits.items():
            if queue in queues:
                riders.append(self._queue_pace.prefetch(queue, n) / n)
        return UNSETTLED * min(riders, default=0.0)

    def _free(self) -> int:
        """How many jobs could start at once. What waits here must not take places at gates."""
        free = (e.free - self._slots.waiting(kind) for kind, e in self._executors.items())
        return min(MAX_BLOCK, sum(n for n in free if n > 0))

    def _all_must_wait(self, queues: Collection[str]) -> bool:
        """Is there no slot at which a job of these queues could start at once?"""
        return not any(self._has_slot(queue) for queue in queues)

    def _has_slot(self, queue: str) -> bool:
        slots = self._slots.limits.get(queue)
        if slots is not None and self._slots.in_hand(queue) >= slots:
            return False
        return all(self._executors[kind].free > 0 for kind in self._kinds[queue])

    async def _rest(self, seconds: float) -> None:
        """Wait for news, at most so long."""
        self.resting = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self.resting = False

    async def _after(self, error: StoreError) -> None:
        if isinstance(error, SchemaError):
            raise error  # it does not get better by waiting
        if not self._failing:  # said once: an outage must not fill the disk
            log.warning("claiming for %s failed, trying again: %s", self._worker, error)
        self._failing = True
        self._more.update(self._settings.queues)
        until = self._world.monotonic() + OUTAGE_PAUSE_SECONDS * (0.5 + self._world.random())
        while not self._stopping and (left := until - self._world.monotonic()) > 0:
            self._wake.clear()
            await self._rest(left)

    def _touch_health_file(self) -> None:
        """For probes: claims make progress, and could start something. At most once a second."""
        file, now = self._settings.health_file, self._world.monotonic()
        if file is None or now - self._touched_at < TOUCH_SECONDS:
            return
        self._touched_at = now
        if self._is_stuck():
            return
        try:
            Path(file).touch()
        except OSError as error:
            log.warning("the health file %s cannot be touched: %s", file, error)

    def _says_it_is_back(self) -> None:
        if self._failing:
            log.info("claiming for %s goes on", self._worker)
        self._failing = False


def _kinds(app: Client, queue: str) -> frozenset[Kind]:
    """The kinds of handlers that this queue may need: those of its own tasks, or of all."""
    of_queue = {task.kind for task in app if task.options_of_task.queue == queue}
    return frozenset(of_queue or {task.kind for task in app} or {"async"})
