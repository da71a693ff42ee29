"""The claim loop: asks for as many jobs as there is room for, and rests when there are none.

To poll is to look, with one statement: is there a job to claim, to promote or to sweep? Only if so,
the worker sends another statement. When to look is decided in polling.py.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from tenure.errors import SchemaError, StoreError
from tenure.rules.claim import KINDS, NEEDS, Ask, Demand, Kind
from tenure.store import AsyncStore
from tenure.store.jobs.claim import MAX_BLOCK
from tenure.worker.claiming.intake import Intake
from tenure.worker.claiming.polling import Lane, Polling
from tenure.worker.claiming.slots import MAX_CLAIM, Shares
from tenure.worker.environment import Environment
from tenure.worker.leases import MARGIN, LeasedJobs
from tenure.worker.settings import WorkerSettings
from tenure.worker.upkeep.upkeep import Upkeep

OUTAGE_PAUSE_SECONDS = 1.0
TOUCH_SECONDS = 1.0
RIDE_SECONDS, REST_SECONDS = 2.0, 0.1
UNSETTLED = 4
LAST_LOOK_SECONDS = 0.1
"""How often a worker that ends by itself looks whether its jobs have ended."""
MAX_KB_IN_HAND = 16 * 1024
"""A worker with more kilobytes of arguments and results than this claims no other jobs."""
MAX_TICKET_KB = 3 * 1024
"""No job is larger: arguments, metadata and a retry policy of 1 MiB each."""
log = logging.getLogger("tenure.worker")


class Claimer:
    """Claims for one worker process. Lives on the event loop."""

    can_finish: Callable[[], bool]
    """Do heartbeats and settlements work? A worker that cannot renew or settle would use up the
    attempts of every job that it claims. Set before `run`."""

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
        leased_jobs: LeasedJobs,
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
        self._leased_jobs = leased_jobs
        self._max_kb = self._claimed_kb = 0
        self._shares = Shares(settings.queues)
        self._phase = RIDE_SECONDS * environment.random()
        self._halfway: set[str] = set()
        """Queues at whose gates the last claim had no time to look at all lines."""
        self._stopping = False
        self._failing = False
        self._touched_at = -TOUCH_SECONDS
        self._round_at = environment.monotonic()
        self._file_fails = False
        self._may_end = settings.until_idle or settings.max_jobs is not None
        self.reached_max_jobs = False
        """It has claimed as many jobs as it may, and they have finished."""
        self.claims = 0

    def idle_seconds(self) -> int:
        """How long ago the loop last came round: long if the event loop is blocked. From any
        thread."""
        return 0 if self._stopping else int(self._environment.monotonic() - self._round_at)

    def stop(self) -> None:
        """Send no more claims."""
        self._stopping = True
        self._polling.wake()

    async def run(self) -> None:
        """Claim until told to stop."""
        now, polling = self._environment.monotonic, self._polling
        while not self._stopping:
            self._round_at = now()
            self._executors["async"].exit_if_forked()  # a handler may have forked this loop
            polling.begin_round()
            try:
                if now() >= polling.look_at():
                    await self._look()
                if not self.can_finish():
                    if self._leased_jobs.schema_error is not None:
                        raise self._leased_jobs.schema_error
                    await self._pause()
                    continue
                claimed = await self._claim()
            except StoreError as error:
                await self._after(error)
                continue
            self._log_recovery()
            self._touch_health_file()
            if self._may_end and not claimed and await self._has_ended():
                return
            if claimed:
                polling.claimed()
            if claimed or self._halfway:
                await asyncio.sleep(0)
                continue
            seconds = polling.look_at() - now()
            if self._may_end and self._leased_jobs.leases:
                seconds = min(seconds, LAST_LOOK_SECONDS)
            await polling.rest(seconds)

    async def _has_ended(self) -> bool:
        """Is this worker's work done: as many jobs as it may start, or no work left?

        It waits for its own jobs first, however long they take: a drain would stop them.
        """
        if self._leased_jobs.leases:
            return False
        if self._intake.left == 0:
            self.reached_max_jobs = True
            log.info("worker %s has run %d jobs and ends", self._worker, self._settings.max_jobs)
            return True
        settings = self._settings
        if not settings.until_idle:
            return False
        try:
            idle = await self._store.is_idle(settings.queues, within_seconds=settings.idle_seconds)
        except StoreError as error:
            await self._after(error)
            return False
        if idle:
            log.info("worker %s ends: its queues have no work left", self._worker)
        return idle

    async def _look(self) -> None:
        """See whether there is work: jobs to claim, and upkeep for all workers."""
        outlook = await self._store.peek(self._settings.queues)
        self._polling.saw(outlook)
        self._upkeep.saw(outlook)

    def _room(self) -> dict[Kind, int]:
        """How many jobs to claim, by kind: free slots and a few ahead; 0 where it is not worth it.

        While jobs wait for slots, a claim is worth it when a quarter of the room is free. Jobs with
        large arguments or results leave no room for others.
        """
        has_memory = self._leased_jobs.kb < MAX_KB_IN_HAND
        room: dict[Kind, int] = {}
        for kind, executor in self._executors.items():
            prefetch = self._intake.pace.prefetch(kind, executor.slots)
            free = executor.free - self._slots.waiting(kind)
            worth = free > 0 or 4 * (free + prefetch) >= executor.slots + prefetch
            room[kind] = free + prefetch if worth and has_memory else 0
            if self._intake.batches is not None and free > 0 and has_memory:
                room[kind] += self._intake.batches.room(kind)
            kb = self._intake.result_kb.mean(kind)
            if kb >= 1.0:  # claimed jobs will have results, too
                in_hand = executor.slots - free
                most = int((MAX_KB_IN_HAND - self._leased_jobs.kb) / kb) - in_hand
                room[kind] = min(room[kind], max(most, 0 if in_hand else 1))
        return room

    async def _claim(self) -> int:
        """Claim until the room is full, the queues are empty or a look is due. Returns how many.

        To walk past thousands of lines at gates takes seconds. So a claim that got nothing and has
        not looked at all lines is continued only after the rest of the loop.
        """
        total, may_have_work = 0, self._polling.may_have_work
        while not self._stopping:
            self._halfway.clear()
            room = self._room()  # again each time: a small rest is not worth a claim
            self._polling.is_full = not any(room[kind] for kind in self._intake.kinds.all)
            asks = self._ask(room)
            if self._intake.left is not None:
                asks = _at_most(asks, self._intake.left)
            if not asks:
                break
            lanes = {(queue, needs) for queue, ask in asks.items() for needs in ask.of}
            may_have_work -= lanes  # before the claim: a ring meanwhile must count
            claimed = await self._claim_asked(asks)
            if claimed:
                may_have_work |= self._left_behind(asks, claimed)
            may_have_work |= {lane for lane in lanes if lane[0] in self._halfway}
            total += claimed.total()
            if self._halfway and not claimed:
                break
            if self._environment.monotonic() >= self._polling.look_at():
                break  # slots may come free during every claim: due jobs must not wait for a rest
        return total

    def _ask(self, room: Mapping[Kind, int]) -> dict[str, Ask]:
        """How many jobs of which kind to claim from each queue.

        The room of each kind is divided between the queues that may have such jobs. Queues that
        seem to have none are asked for the rest, if they are asked at all. A job whose kind is not
        known, or is not one of this code, may turn out to be of any kind that its queue has.
        """
        may_have_work, kinds = self._polling.may_have_work, self._intake.kinds
        limits = {queue: self._limit(queue) for queue in {queue for queue, _ in may_have_work}}
        limits = {queue: limit for queue, limit in limits.items() if limit > 0}
        of: dict[str, dict[int, int]] = {queue: {} for queue in limits}
        for kind in kinds.all:
            needs, lanes = NEEDS[kind], dict[str, int]()
            for queue, limit in limits.items():
                if kind not in kinds.of[queue]:  # one at a time, until such a job has come
                    lanes |= {queue: 1} if (queue, needs) in may_have_work else {}
                elif any((queue, each) in may_have_work for each in (needs, *kinds.unsure)):
                    lanes[queue] = limit
            left = room[kind]
            for queue, share in self._shares.divide(kind, lanes, left).items():
                of[queue][needs] = share
                left -= share
            for queue in limits.keys() - lanes.keys():
                if left > 0:
                    of[queue][needs] = min(left, limits[queue], MAX_CLAIM)
                    left -= of[queue][needs]
        asks = {queue: self._ask_of(queue, limits[queue], of[queue]) for queue in limits}
        return {
            queue: ask for queue, ask in asks.items()
            if any((queue, needs) in may_have_work for needs in ask.of)
        }  # fmt: skip

    def _ask_of(self, queue: str, limit: int, of: Mapping[int, int]) -> Ask:
        """How many jobs to claim from one queue: of each known kind, and of unsure ones.

        Unsure jobs come on top, within the room of all kinds. So of one kind more may come than it
        has room for, and they wait: at most as many as other kinds have room for.
        """
        unsure = min(self._most_unsure(queue, of), MAX_CLAIM, limit)
        some = dict.fromkeys(self._intake.kinds.unsure, unsure) if unsure > 0 else {}
        return Ask(min(limit, max(sum(of.values()), unsure)), {**of, **some})

    def _most_unsure(self, queue: str, of: Mapping[int, int]) -> int:
        """If one kind is full, a few jobs more are claimed, to find those of other kinds."""
        kinds, room_to_sort = self._intake.kinds, self._intake.room_to_sort
        room = {kind: of.get(NEEDS[kind], 0) for kind in kinds.of[queue]}
        if any(room.values()):
            room = {kind: room[kind] or room_to_sort(kind) for kind in room}
        return kinds.most_unsure(queue, room)

    def _left_behind(self, asks: Mapping[str, Ask], claimed: "Counter[Lane]") -> set[Lane]:
        """The lanes that gave all that was asked for: there may be more."""
        is_large = self._claimed_kb > self._max_kb - MAX_TICKET_KB  # then bytes may have ended it
        demand = Demand(asks, 0)
        for queue in asks:
            counts = {needs: n for (name, needs), n in claimed.items() if name == queue}
            demand.take_all(queue, counts, 0)
        rest = demand.rest()
        return {
            (queue, needs)
            for queue, ask in asks.items()
            for needs in ask.of
            if is_large or queue not in rest or needs not in rest[queue].of
        }

    def _limit(self, queue: str) -> int:
        """How many jobs its own slots allow, and a few ahead."""
        slots = self._slots.limits.get(queue)
        if slots is None:
            return MAX_BLOCK
        ahead = self._intake.queue_pace.prefetch(queue, slots)
        limit = slots + ahead - self._slots.in_use(queue)
        if self._intake.batches is not None and limit > 0:
            limit += self._intake.batches.room_in(queue)
        return limit

    async def _claim_asked(self, asks: Mapping[str, Ask]) -> "Counter[Lane]":
        got: Counter[Lane] = Counter()
        before_kb = self._leased_jobs.kb
        self._max_kb = MAX_KB_IN_HAND - before_kb
        lengths = {self._settings.lease_of(queue) for queue in asks}
        for lease_seconds in sorted(lengths):
            part = {
                q: ask for q, ask in asks.items() if self._settings.lease_of(q) == lease_seconds
            }
            before = self._environment.monotonic()
            claim = await self._store.claim(
                self._worker, part, lease_seconds=lease_seconds, ahead=self._some_must_wait(part),
                new_permits=self._free(), riders=self._riders(part),
                max_kb=max(0, MAX_KB_IN_HAND - self._leased_jobs.kb), keep=self._settings.keep,
            )  # fmt: skip
            self._halfway |= claim.more
            self._environment.crash_point("after claim")
            self.claims += 1
            self._polling.asked()
            safe_until = before + lease_seconds * (1 - MARGIN)
            for lease in claim:
                self._intake.take_on(lease, claim.permits, lease_seconds, safe_until)
                got.update([(job.queue, job.needs) for job in lease.jobs])
        self._claimed_kb = self._leased_jobs.kb - before_kb
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
        riders = [pace.prefetch(kind, n) / n for kind, n in slots.items() if pace.knows(kind)]
        for queue, n in self._slots.limits.items():
            if queue in queues:
                riders.append(self._intake.queue_pace.prefetch(queue, n) / n)
        return UNSETTLED * min(riders, default=0.0)

    def _free(self) -> int:
        """How many jobs could start at once. Jobs that wait here must not take permits at gates."""
        free = (e.free - self._slots.waiting(kind) for kind, e in self._executors.items())
        return min(MAX_BLOCK, sum(n for n in free if n > 0))

    def _some_must_wait(self, asks: Mapping[str, Ask]) -> bool:
        """Is there a job in this claim that may have to wait for a slot?"""
        return any(not self._has_slots(queue, ask) for queue, ask in asks.items())

    def _has_slots(self, queue: str, ask: Ask) -> bool:
        """Could the first job of each kind start at once? An unsure one is of any kind."""
        slots = self._slots.limits.get(queue)
        if slots is not None and self._slots.in_use(queue) >= slots:
            return False
        kinds = self._intake.kinds
        asked = {KINDS[needs] for needs in ask.of if needs not in kinds.unsure}
        if queue in kinds.with_unsure and any(needs in ask.of for needs in kinds.unsure):
            asked |= kinds.of[queue]
        return all(self._executors[kind].free > 0 for kind in asked)

    async def _after(self, error: StoreError) -> None:
        if isinstance(error, SchemaError):
            raise error  # waiting does not help
        if not self._failing:  # logged once: an outage must not fill the disk
            log.warning("claiming for %s failed, trying again: %s", self._worker, error)
        self._failing = True
        await self._pause()

    async def _pause(self) -> None:
        """Rest during an outage, and look everywhere afterwards."""
        now, polling = self._environment.monotonic, self._polling
        polling.ring()
        until = now() + OUTAGE_PAUSE_SECONDS * (0.5 + self._environment.random())
        while not self._stopping and (left := until - now()) > 0:
            self._round_at = now()
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
            self._file_fails = False
        except OSError as error:
            if not self._file_fails:  # logged once: an outage must not fill the disk
                log.warning("the health file %s cannot be touched: %s", file, error)
            self._file_fails = True

    def _log_recovery(self) -> None:
        if self._failing:
            log.info("claiming for %s works again", self._worker)
        self._failing = False


def _at_most(asks: Mapping[str, Ask], left: int) -> dict[str, Ask]:
    """The same, for this many jobs of all queues together."""
    some = {}
    for queue, ask in asks.items():
        most = min(ask.most, left)
        left -= most
        if most:
            some[queue] = msgspec.structs.replace(ask, most=most)
    return some
