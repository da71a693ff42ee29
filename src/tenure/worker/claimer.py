"""The claim loop: asks for as many jobs as there is room for, and rests when there are none.

Polling is the truth: busy every 5 ms, idle every second, in between growing. A bell that rings, or
a slot that came free, cuts a rest short.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from tenure.client import Client
from tenure.errors import SchemaError, StoreError
from tenure.job import Lease
from tenure.store import AsyncStore
from tenure.tasks import Kind
from tenure.worker.executors import Executor
from tenure.worker.heartbeat import MARGIN
from tenure.worker.settings import WorkerSettings
from tenure.worker.slots import Pace, Shares, Slots
from tenure.worker.world import World

OUTAGE_PAUSE_SECONDS = 1.0
TOUCH_SECONDS = 1.0
TakeOn = Callable[[Lease, float, float], None]
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
        take_on: TakeOn,
    ) -> None:
        self._store = store
        self._worker = worker
        self._settings = settings
        self._world = world
        self._executors = executors
        self._slots = slots
        self._pace = pace
        self._take_on = take_on
        self._shares = Shares(settings.queues)
        self._kinds = {queue: _kinds(app, queue) for queue in settings.queues}
        self._wake = asyncio.Event()
        self._no_room = False
        self._stopping = False
        self._failing = False
        self._touched_at = -TOUCH_SECONDS
        self.claims = 0

    def ring(self) -> None:
        """There may be new work."""
        self._wake.set()

    def slot_came_free(self) -> None:
        """There is room again."""
        if self._no_room:
            self._wake.set()

    def saw(self, queue: str, kind: Kind) -> None:
        """A job of this kind came from this queue: from now on its slots count there."""
        if kind not in self._kinds[queue]:
            self._kinds[queue] |= {kind}

    def stop(self) -> None:
        """Claim no more."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Claim until told to stop."""
        pause = self._settings.busy_poll_seconds
        while not self._stopping:
            self._wake.clear()
            room = self._room()
            self._no_room = not room
            if self._no_room:
                await self._rest(self._settings.idle_poll_seconds)
                continue
            try:
                claimed, short = await self._claim(room)
            except StoreError as error:
                await self._after(error)
                continue
            self._says_it_is_back()
            self._touch_health_file()
            if claimed:
                pause = self._settings.busy_poll_seconds
            if claimed and not short:
                await asyncio.sleep(0)
            elif await self._rest(pause):
                pause = self._settings.busy_poll_seconds
            else:
                pause = min(2 * pause, self._settings.idle_poll_seconds)

    def _room(self) -> dict[Kind, int]:
        """Free slots and a little more, by kind; empty when a claim would not be worth its while.

        With jobs waiting for slots, a claim pays when a quarter of the room is free.
        """
        room: dict[Kind, int] = {}
        worth = False
        for kind, executor in self._executors.items():
            prefetch = self._pace.prefetch(kind, executor.slots)
            room[kind] = executor.free + prefetch
            worth = worth or executor.free > 0 or 4 * room[kind] >= executor.slots + prefetch
        return room if worth else {}

    async def _claim(self, room: dict[Kind, int]) -> tuple[int, bool]:
        """Claim until the room is full or the queues are empty. Answers how many, and if empty."""
        total = 0
        hungry = list(self._settings.queues)
        while hungry and not self._stopping:
            limits = {queue: self._limit(queue, room) for queue in hungry}
            limits = {queue: limit for queue, limit in limits.items() if limit > 0}
            asked = self._shares.divide(limits, room, self._kinds)
            if not asked:
                return total, False
            for queue, got in (await self._claim_shares(asked)).items():
                total += got
                if got < asked[queue]:
                    hungry.remove(queue)
                for kind in self._kinds[queue]:
                    room[kind] -= got
        return total, True

    def _limit(self, queue: str, room: Mapping[Kind, int]) -> int:
        kinds = self._kinds[queue]
        limit = min(room[kind] for kind in kinds)
        slots = self._slots.limits.get(queue)
        if slots is not None:
            ahead = min(self._pace.prefetch(kind, slots) for kind in kinds)
            limit = min(limit, slots + ahead - self._slots.in_hand(queue))
        return limit

    async def _claim_shares(self, asked: Mapping[str, int]) -> dict[str, int]:
        got = dict.fromkeys(asked, 0)
        lengths = {self._settings.lease_of(queue) for queue in asked}
        for lease_seconds in sorted(lengths):
            part = {q: n for q, n in asked.items() if self._settings.lease_of(q) == lease_seconds}
            before = self._world.monotonic()
            leases = await self._store.claim(self._worker, part, lease_seconds=lease_seconds)
            self._world.crash_point("after claim")
            self.claims += 1
            safe_until = before + lease_seconds * (1 - MARGIN)
            for lease in leases:
                self._take_on(lease, lease_seconds, safe_until)
                for job in lease.jobs:
                    got[job.queue] += 1
        return got

    async def _rest(self, seconds: float) -> bool:
        """Wait for news, at most so long. Answers whether there was any."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    async def _after(self, error: StoreError) -> None:
        if isinstance(error, SchemaError):
            raise error  # it does not get better by waiting
        if not self._failing:  # said once: an outage must not fill the disk
            log.warning("claiming for %s failed, trying again: %s", self._worker, error)
        self._failing = True
        await asyncio.sleep(OUTAGE_PAUSE_SECONDS * (0.5 + self._world.random()))

    def _touch_health_file(self) -> None:
        """For probes: claims make progress. At most once a second."""
        file, now = self._settings.health_file, self._world.monotonic()
        if file is None or now - self._touched_at < TOUCH_SECONDS:
            return
        self._touched_at = now
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
