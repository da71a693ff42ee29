"""The claim loop: asks for as many jobs as there is room for, and rests when there are none.

To poll is to look, with one statement: is there a job to claim, to promote or to sweep? Only if so,
the worker sends another statement. When to look is decided in polling.py.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from tenure.errors import SchemaError, StoreError
from tenure.store import AsyncStore
from tenure.store.jobs.claim import MAX_BLOCK
from tenure.tasks import Kind
from tenure.worker.claiming.intake import Intake
from tenure.worker.claiming.polling import Polling
from tenure.worker.claiming.slots import Shares
from tenure.worker.environment import Environment
from tenure.worker.leases import MARGIN
from tenure.worker.settings import WorkerSettings
from tenure.worker.upkeep.upkeep import Upkeep

OUTAGE_PAUSE_SECONDS = 1.0
TOUCH_SECONDS = 1.0
RIDE_SECONDS, REST_SECONDS = 2.0, 0.1
UNSETTLED = 4
log = logging.getLogger("tenure.worker")


class Claimer:
    """Claims for one worker process. Lives on the event loop."""

    def __init__(
        self,
        store: AsyncStore,
        worker: str,
        settings: WorkerSettings,
        environment: Environment,
        *,
        intake: Intake,
        polling: Polling,
        upkeep: Upkeep,
    ) -> None:
        self._store = store
        self._worker = worker
        self._settings = settings
        self._environment = environment
        self._intake = intake
        self._slots = intake.slots
        self._executors = intake.executors
        self._polling = polling
        self._upkeep = upkeep
        self._shares = Shares(settings.queues)
        self._phase = RIDE_SECONDS * environment.random()
        self._halfway: set[str] = set()
        """Queues at whose gates the last claim had no time to look at all lines."""
        self._stopping = False
        self._failing = False
        self._touched_at = -TOUCH_SECONDS
        self.claims = 0

    def stop(self) -> None:
        """Send no more claims."""
        self._stopping = True
        self._polling.wake()

    async def run(self) -> None:
        """Claim until told to stop."""
        now, polling = self._environment.monotonic, self._polling
        while not self._stopping:
            self._executors["async"].exit_if_forked()  # a handler may have forked this loop
            polling.begin_round()
            try:
                if now() >= polling.look_at():
                    await self._look()
                claimed = await self._claim()
            except StoreError as error:
                await self._after(error)
                continue
            self._log_recovery()
            self._touch_health_file()
            if claimed:
                polling.claimed()
            if claimed or self._halfway:
                await asyncio.sleep(0)
                continue
            await polling.rest(polling.look_at() - now())

    async def _look(self) -> None:
        """See whether there is work: jobs to claim, and upkeep for all workers."""
        outlook = await self._store.peek(self._settings.queues)
        self._polling.saw(outlook)
        self._upkeep.saw(outlook)

    def _room(self) -> dict[Kind, int]:
        """How many jobs to claim, by kind: free slots and a few ahead; 0 where it is not worth it.

        While jobs wait for slots, a claim is worth it when a quarter of the room is free.
        """
        room: dict[Kind, int] = {}
        for kind, executor in self._executors.items():
            prefetch = self._intake.pace.prefetch(kind, executor.slots)
            free = executor.free - self._slots.waiting(kind)
            worth = free > 0 or 4 * (free + prefetch) >= executor.slots + prefetch
            room[kind] = free + prefetch if worth else 0
        return room

    async def _claim(self) -> int:
        """Claim until the room is full or the queues are empty. Returns how many jobs.

        To walk past thousands of lines at gates takes seconds. So a claim that got nothing and has
        not looked at all lines is continued only after the rest of the loop.
        """
        total, may_have_work = 0, self._polling.may_have_work
        while not self._stopping:
            self._halfway.clear()
            room = self._room()  # again each time: a small rest is not worth a claim
            limits = {queue: self._limit(queue, room) for queue in may_have_work}
            limits = {queue: limit for queue, limit in limits.items() if limit > 0}
            asked = self._shares.divide(limits, room, self._intake.kinds.of)
            if not asked:
                break
            may_have_work.difference_update(asked)  # before the claim: a ring meanwhile must count
            claimed = await self._claim_shares(asked)
            may_have_work.update(queue for queue, got in claimed.items() if got >= asked[queue])
            may_have_work.update(self._halfway)
            total += sum(claimed.values())
            if self._halfway and not any(claimed.values()):
                break
        return total

    def _limit(self, queue: str, room: Mapping[Kind, int]) -> int:
        kinds = self._intake.kinds.of[queue]
        limit = min(room[kind] for kind in kinds)
        slots = self._slots.limits.get(queue)
        if slots is not None:
            ahead = self._intake.queue_pace.prefetch(queue, slots)
            limit = min(limit, slots + ahead - self._slots.in_use(queue))
        return limit

    async def _claim_shares(self, asked: Mapping[str, int]) -> dict[str, int]:
        got = dict.fromkeys(asked, 0)
        lengths = {self._settings.lease_of(queue) for queue in asked}
        for lease_seconds in sorted(lengths):
            part = {q: n for q, n in asked.items() if self._settings.lease_of(q) == lease_seconds}
            before = self._environment.monotonic()
            claim = await self._store.claim(
                self._worker, part, lease_seconds=lease_seconds, ahead=self._all_must_wait(part),
                new_permits=self._free(), riders=self._riders(part),
            )  # fmt: skip
            self._halfway |= claim.more
            self._environment.crash_point("after claim")
            self.claims += 1
            self._polling.asked()
            safe_until = before + lease_seconds * (1 - MARGIN)
            for lease in claim:
                self._intake.take_on(lease, claim.permits, lease_seconds, safe_until)
                for job in lease.jobs:
                    got[job.queue] += 1
        return got

    def _riders(self, queues: Collection[str]) -> float:
        """How many jobs may come along with each permit at a gate.

        As many as are claimed ahead for slots, and some more for attempts that have ended and are
        not settled yet, which the database cannot tell from running ones. Permits go to other
        workers only when this worker has fewer jobs than permits. So that no other queue waits for
        ever, this worker from time to time claims no more jobs than it has permits for.
        """
        if (self._environment.monotonic() + self._phase) % RIDE_SECONDS < REST_SECONDS:
            return 0.0
        kinds, pace = self._intake.kinds.of, self._intake.pace
        slots = {kind: self._executors[kind].slots for queue in queues for kind in kinds[queue]}
        riders = [pace.prefetch(kind, n) / n for kind, n in slots.items() if n]
        for queue, n in self._slots.limits.items():
            if queue in queues:
                riders.append(self._intake.queue_pace.prefetch(queue, n) / n)
        return UNSETTLED * min(riders, default=0.0)

    def _free(self) -> int:
        """How many jobs could start at once. Jobs that wait here must not take permits at gates."""
        free = (e.free - self._slots.waiting(kind) for kind, e in self._executors.items())
        return min(MAX_BLOCK, sum(n for n in free if n > 0))

    def _all_must_wait(self, queues: Collection[str]) -> bool:
        """Is there no slot in which a job of these queues could start at once?"""
        return not any(self._has_slot(queue) for queue in queues)

    def _has_slot(self, queue: str) -> bool:
        slots = self._slots.limits.get(queue)
        if slots is not None and self._slots.in_use(queue) >= slots:
            return False
        return all(self._executors[kind].free > 0 for kind in self._intake.kinds.of[queue])

    async def _after(self, error: StoreError) -> None:
        if isinstance(error, SchemaError):
            raise error  # waiting does not help
        if not self._failing:  # logged once: an outage must not fill the disk
            log.warning("claiming for %s failed, trying again: %s", self._worker, error)
        self._failing = True
        now, polling = self._environment.monotonic, self._polling
        polling.may_have_work.update(self._settings.queues)
        until = now() + OUTAGE_PAUSE_SECONDS * (0.5 + self._environment.random())
        while not self._stopping and (left := until - now()) > 0:
            polling.begin_round()
            await polling.rest(left)

    def _touch_health_file(self) -> None:
        """For probes: claims work, and a job could start. At most once a second."""
        file, now = self._settings.health_file, self._environment.monotonic()
        if file is None or now - self._touched_at < TOUCH_SECONDS:
            return
        self._touched_at = now
        if self._intake.is_stuck():
            return
        try:
            Path(file).touch()
        except OSError as error:
            log.warning("the health file %s cannot be touched: %s", file, error)

    def _log_recovery(self) -> None:
        if self._failing:
            log.info("claiming for %s works again", self._worker)
        self._failing = False
