"""One worker process at work: from the first claim to the last settlement.

    claimer -> slots -> executors (coroutines, threads, children) -> settler -> history
    heartbeat thread: renews the leases all the while        services: promote, sweep, prune, fire

Shutdown stops claiming, gives back what has not started, lets the rest finish within a limit,
releases what is left, uncharged, and flushes.
"""

import asyncio
import logging
import math
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from tenure.client import Client
from tenure.errors import JobNotFound, StoreBusy, StoreError, StoreUnavailable
from tenure.rules.job import Lease, WorkerInfo
from tenure.rules.lifecycle import Outcome, Settlement
from tenure.rules.permits import Permits
from tenure.store import Store
from tenure.tasks import Kind, Task, TaskOptions
from tenure.worker.children.minder import Children
from tenure.worker.claiming.claimer import Claimer
from tenure.worker.claiming.gates import AtGates, Line
from tenure.worker.claiming.slots import Pace, Slots, Suspects
from tenure.worker.environment import World
from tenure.worker.events import Teller
from tenure.worker.leases import Held, Holding, Stop
from tenure.worker.running.attempt import Attempt, unknown_task, unstarted
from tenure.worker.running.executors import Coroutines, Executor, Threads
from tenure.worker.settings import WorkerSettings
from tenure.worker.settling.blocked_loop import Beside
from tenure.worker.settling.heartbeat import Heartbeat
from tenure.worker.settling.settler import Settler
from tenure.worker.stores import Stores
from tenure.worker.upkeep.services import Services
from tenure.worker.upkeep.ticker import Ticker

TICK_SECONDS = 0.02
PREFETCH_PATIENCE_SECONDS = 2.0
"""Jobs claimed ahead that have waited so long for a slot go back to the others."""
FLUSH_SECONDS = 5.0
RETIRE_SECONDS = 2.0
OPEN_PAUSE_SECONDS = 1.0
REAP_SECONDS = 1.0
"""So long a child that was killed may take to be gone."""

Tasks = list[asyncio.Task[None]]

log = logging.getLogger("tenure.worker")


def new_name(secret: str) -> str:
    """A worker's identity: random at each process start, with the host's name to look at."""
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c in "-.")[:30]
    return f"{host.lstrip('-.') or 'host'}-{os.getpid()}-{secret}"


def _nobody() -> None:
    """Stands for the handler of a task that this worker does not know."""


_UNKNOWN: Task[..., Any] = Task(_nobody, "unknown", TaskOptions())


async def _cancel(tasks: Tasks) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Shift:
    """Works for one application until told to stop."""

    def __init__(self, app: Client, settings: WorkerSettings, world: World) -> None:
        self.app = app
        self.settings = settings
        self.world = world
        self.name = new_name(world.secret())
        self.held = Held()
        self._tell = Teller(app.hooks, self.name, world)
        self.ready = asyncio.Event()
        self._slots = Slots(settings.queues)
        self._at_gates = AtGates(
            lambda kind: self._executors[kind].slots, self._slots.waiting_kinds
        )
        self._suspects = Suspects()
        self._pace, self._queue_pace = Pace(), Pace()
        self._stopping = asyncio.Event()
        # Kept in order, so that a simulation can be repeated.
        self._timed: dict[Holding, None] = {}
        self._asked: dict[Holding, None] = {}
        self._stuck: set[Holding] = set()
        self._confirming: set[asyncio.Task[None]] = set()
        self._ticked_at = world.monotonic()
        self._something_in_hand = asyncio.Event()
        """So that nothing ticks in an idle worker."""

    def stop(self) -> None:
        """Begin to shut down: from here on nothing starts. Called on the event loop."""
        self._stopping.set()
        if self.ready.is_set():
            self._claimer.stop()
            self._return_unstarted()

    async def run(self) -> None:
        """Work until `stop` is called, then drain. Raises what keeps the worker from working."""
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as ends:
            stores = await self._open_stores()
            ends.push_async_callback(stores.close)
            self._build(stores)
            await self._declare_gates()
            await self.app.hooks.set_up()
            ends.push_async_callback(self.app.hooks.tear_down)
            ends.push_async_callback(self._retire, stores)
            heartbeat = self._start_heartbeat(stores)
            ends.push_async_callback(self._end_heartbeat, heartbeat)
            ends.callback(self._close_executors)
            background = self._start_background(heartbeat)
            ends.push_async_callback(_cancel, background)
            self._bell.start()
            ends.callback(self._bell.stop)
            self._say_what_it_serves()
            await self._work(background)
        log.info("worker %s stopped", self.name)

    async def _open_stores(self) -> Stores:
        """Whoever holds the file or keeps the server from us now will not do so for ever."""
        while True:
            try:
                return Stores(self.app, self.settings, self.world)
            except StoreUnavailable as error:
                if self._stopping.is_set():
                    raise
                log.warning("worker %s cannot begin, trying again: %s", self.name, error)
                await asyncio.sleep(OPEN_PAUSE_SECONDS)

    async def _declare_gates(self) -> None:
        """What the code says of gates counts from here on, unless somebody has set them by hand."""
        while self.app.declared_gates and not self._stopping.is_set():
            try:
                await self._store.declare_gates(self.app.declared_gates)
                return
            except (StoreUnavailable, StoreBusy) as error:
                log.warning("worker %s cannot begin, trying again: %s", self.name, error)
                await asyncio.sleep(OPEN_PAUSE_SECONDS)

    def _build(self, stores: Stores) -> None:
        self._store = stores.settling
        self._executors = self._make_executors()
        self._bell = stores.beating.bell(lambda: self._from_thread(self._ring))
        self._services = Services(stores.claiming, self.settings, self.world, self._ring)
        self._ticker = Ticker(stores.claiming, self.app, self.settings, self.world, ring=self._ring)
        self._claimer = Claimer(
            stores.claiming, self.name, self.app, self.settings, self.world,
            executors=self._executors, slots=self._slots, pace=self._pace,
            queue_pace=self._queue_pace, take_on=self._take_on, saw=self._services.saw,
            announced_seconds=lambda: self._bell.ahead_seconds, is_stuck=self._is_stuck,
        )  # fmt: skip
        self._settler = Settler(
            stores.settling, self.name, self.held, self.world, self._tell,
            gates_opened=self._claimer.ring,
        )  # fmt: skip
        self._beside = Beside(
            self.name,
            self._tell,
            self._from_thread,
            write=self._write_taken,
            stuck=self._note_stuck,
        )

    def _start_heartbeat(self, stores: Stores) -> Heartbeat:
        heartbeat = Heartbeat(
            stores.beating, self.name, self.held, self.settings, self.world,
            tell=lambda lost, cancelled: self._from_thread(self._told, lost, cancelled),
            announce=lambda: stores.beating.announce(self._info()),
            beside=lambda: self._time_out_if_blocked(stores.beating),
        )  # fmt: skip
        heartbeat.start()
        return heartbeat

    async def _end_heartbeat(self, heartbeat: Heartbeat) -> None:
        """In a thread of its own: handlers may have filled the loop's with what does not return."""
        over = asyncio.Event()

        def end() -> None:
            heartbeat.stop()
            self._from_thread(over.set)

        self.world.thread(end, "tenure-heartbeat-end").start()
        await over.wait()

    def _start_background(self, heartbeat: Heartbeat) -> Tasks:
        return [
            asyncio.create_task(self._settler.run(), name="tenure-settler"),
            asyncio.create_task(self._keep_time(heartbeat), name="tenure-timekeeper"),
            asyncio.create_task(self._services.promote(), name="tenure-promote"),
            asyncio.create_task(self._services.sweep(), name="tenure-sweep"),
            asyncio.create_task(self._services.prune(), name="tenure-prune"),
            asyncio.create_task(self._services.heal(), name="tenure-heal"),
            asyncio.create_task(self._ticker.run(), name="tenure-ticker"),
        ]

    async def _work(self, background: Tasks) -> None:
        """Claim until told to stop, then drain. A loop that fails ends the whole shift, loudly."""
        claiming = asyncio.create_task(self._claimer.run(), name="tenure-claimer")
        if self._stopping.is_set():
            self._claimer.stop()
        self.ready.set()
        try:
            await asyncio.wait([claiming, *background], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancel([claiming])
            raise
        failed = [task for task in [claiming, *background] if task.done() and task.exception()]
        for task in failed:
            log.critical("worker %s cannot go on: %s", self.name, task.exception())
        self._claimer.stop()
        await asyncio.wait([claiming])
        await self._drain()
        for task in failed:
            task.result()

    def _say_what_it_serves(self) -> None:
        log.info("worker %s serves %s", self.name, ", ".join(self.settings.queues))
        known = {task.options_of_task.queue for task in self.app}
        for queue in self.settings.queues:
            if known and queue not in known:
                log.warning(
                    "worker %s serves queue %s, to which no task of its application goes; its "
                    "tasks go to %s", self.name, queue, ", ".join(sorted(known)),
                )  # fmt: skip

    def _close_executors(self) -> None:
        for executor in self._executors.values():
            executor.close()

    def _make_executors(self) -> dict[Kind, Executor]:
        s, common = self.settings, (self.app, self.name, self.world, self._ended)
        return {
            "async": Coroutines(s.async_slots, *common),
            "thread": Threads(s.thread_slots, *common),
            "process": Children(s.process_slots, *common, kill_seconds=s.kill_seconds),
        }

    def _info(self) -> WorkerInfo:
        return WorkerInfo(
            name=self.name, host=socket.gethostname(), pid=os.getpid(),
            queues=dict(self.settings.queues), tasks=tuple(sorted(task.name for task in self.app)),
            settings={"lease_seconds": self.settings.lease_seconds},
            counts={"in hand": len(self.held.all()), "stuck": len(self._stuck)},
        )  # fmt: skip

    async def _retire(self, stores: Stores) -> None:
        try:
            async with asyncio.timeout(RETIRE_SECONDS):
                await stores.settling.retire(self.name)
        except (StoreError, TimeoutError) as error:
            why = str(error) or f"no answer for {RETIRE_SECONDS:g} s"
            log.warning("worker %s could not sign off: %s", self.name, why)

    # --- taking on -------------------------------------------------------------------------------

    def _take_on(
        self, lease: Lease, permits: Sequence[Permits], lease_seconds: float, safe_until: float
    ) -> None:
        now = self._ticked_at = self.world.monotonic()
        self._something_in_hand.set()
        if now >= safe_until:  # the answer came late: others may have these jobs by now
            log.warning("worker %s was too slow for a lease; its jobs go back", self.name)
            self._at_gates.lower(permits)
            late = [Holding(job, _UNKNOWN, now) for job in lease.jobs]
            self._put_back(late, "claimed too late")
            return
        find = self.app.find
        known: list[Holding] = []
        unknown: list[Holding] = []
        for job in lease.jobs:
            task = find(job.task)
            if task is None:
                unknown.append(Holding(job, _UNKNOWN, now))
                continue
            holding = Holding(job, task, now)
            known.append(holding)
            if job.timeout_seconds is not None:
                self._timed[holding] = None
        self.held.add(lease, known + unknown, lease_seconds, safe_until)
        for holding in unknown:
            self._tell.say(logging.WARNING, holding.job, "no handler here for this task; put back")
            self._settler.add(holding, unknown_task(holding.job))
        if self._stopping.is_set():  # the claim was under way when the stop came
            self._put_back(known, "shutdown")
        elif len(known) == 1 and not self._suspects.may_run(known[0]):
            self._put_back(known, "another job is tried alone here", self.world.random())
        else:
            if permits:
                known = self._at_gates.admit(known, permits)
            self._start(self._slots.admit(known))

    def _start(self, holdings: Sequence[Holding]) -> None:
        by_kind: dict[Kind, list[Holding]] = {}
        for holding in holdings:
            by_kind.setdefault(holding.task.kind, []).append(holding)
        for kind, some in by_kind.items():
            self._claimer.learn({holding.job.queue for holding in some}, kind)
            self._executors[kind].submit(some)
        if self.app.hooks.listeners:
            for holding in holdings:
                self._tell.event("started", holding.job)

    # --- the end of attempts ---------------------------------------------------------------------

    def _ended(self, holding: Holding, settlement: Settlement | None) -> None:
        """A handler has ended; its slot is free."""
        self._free_slot(holding)
        if holding.started_at is not None:
            self._learn(holding, settlement)
        lost = bool(holding.lost)
        if not self._finish(holding, None if lost else settlement):
            self._tell.say(
                logging.WARNING, holding.job, "ended after it was given up; not recorded"
            )
        elif lost:
            self._tell.say(
                logging.WARNING, holding.job, "ended after its lease was lost; not recorded"
            )

    def _learn(self, holding: Holding, settlement: Settlement | None) -> None:
        """Learn how long jobs take. How long the news of a thread took to get here is not it."""
        seconds = None if settlement is None else settlement.duration_seconds
        if seconds is None:
            seconds = self._seconds(holding)
        self._pace.learn(holding.task.kind, seconds)
        if holding.job.queue in self._slots.limits:
            self._queue_pace.learn(holding.job.queue, seconds)

    def _finish(self, holding: Holding, settlement: Settlement | None) -> bool:
        """Hand over the end of an attempt, once. Answers whether this was the first one."""
        timed = holding.job.timeout_seconds is not None  # if not, only the loop ends it
        if not holding.take_end() if timed else holding.done:
            return False
        holding.done = True
        if holding.completed and not holding.lost:
            self._confirm_soon(holding, settlement)
        else:
            self._settler.add(holding, settlement)
        return True

    def _write_taken(self, holding: Holding, settlement: Settlement | None) -> None:
        """Hand over an end that was taken beside the loop; its handler was told that it is lost."""
        if holding.completed:
            self._confirm_soon(holding, settlement)
        else:
            self._settler.add(holding, settlement)

    def _free_slot(self, holding: Holding) -> None:
        if holding.job.timeout_seconds is not None:
            self._timed.pop(holding, None)
        if holding.stop is not None:
            self._asked.pop(holding, None)
            self._stuck.discard(holding)
        if holding is self._suspects.tried:
            self._suspects.ended(holding)
        following = self._slots.ended(holding)
        if following is not None:
            self._start([following])
        if holding.line is not None:
            self._free_place(holding, holding.line)
        if self._claimer.resting:
            self._claimer.slot_came_free()

    def _free_place(self, holding: Holding, line: Line) -> None:
        """It has ended, or was given up: its place at a gate is free for the next one here."""
        holding.line = None
        line.running -= 1
        if line.waiting or not line.running:
            following = self._at_gates.freed(line)
            if following:
                self._start(self._slots.admit(following))

    def _confirm_soon(self, holding: Holding, settlement: Settlement | None) -> None:
        task = self._loop.create_task(self._confirm_or_let_go(holding, settlement))
        self._confirming.add(task)
        task.add_done_callback(self._confirming.discard)

    async def _confirm_or_let_go(self, holding: Holding, settlement: Settlement | None) -> None:
        try:
            await self._confirm(holding, settlement)
        except Exception:
            log.exception("job %d: cannot see whether it landed; let go", holding.job.id)
            self._settler.add(holding, None)  # unless it has landed, its lease brings it back

    async def _confirm(self, holding: Holding, settlement: Settlement | None) -> None:
        """The handler completed its job in a transaction of its own. Did that commit?"""
        if await self._has_landed(holding):
            if settlement is None or settlement.outcome is not Outcome.SUCCEED:
                self._tell.say(logging.ERROR, holding.job, "failed after it had completed itself")
            self._settler.add(holding, None)
            self._tell.event("succeeded", holding.job)
            return
        if not self.held.has(holding):
            settlement = None
        elif settlement is not None and settlement.outcome is Outcome.SUCCEED:
            settlement = self._attempt(holding).not_committed(self._seconds(holding))
        self._settler.add(holding, settlement)

    async def _has_landed(self, holding: Holding) -> bool:
        while self.held.has(holding):
            try:
                job = await self._store.get(holding.job.id)
            except JobNotFound:
                return True  # finished, and deleted since
            except StoreError:
                log.debug("job %d: cannot see whether it landed", holding.job.id, exc_info=True)
                await asyncio.sleep(1.0)
                continue
            return job.state.final and job.token == holding.job.token and job.worker == self.name
        return False

    # --- being told ------------------------------------------------------------------------------

    def _told(self, lost: Sequence[int], cancelled: Sequence[tuple[int, int]]) -> None:
        """News from the heartbeat."""
        for lease_id in lost:
            for holding in self.held.drop(lease_id):
                if not holding.done:
                    self._tell.say(
                        logging.WARNING, holding.job, "lease lost; the attempt is stopped"
                    )
                    self._tell.event("lost", holding.job)
                self._stop(holding, Stop.LOST)
        wanted = set(cancelled)
        for holding in self.held.all() if wanted else ():
            if (holding.job.id, holding.job.token) in wanted:
                self._stop(holding, Stop.CANCELLED)

    def _stop(self, holding: Holding, why: Stop) -> None:
        holding.ask_to_stop(why, self.world.monotonic())
        reported = holding in self._stuck and why is not Stop.TIMEOUT  # after which it is given up
        if holding.started_at is not None and not holding.over and not reported:
            self._asked[holding] = None

    def _ring(self) -> None:
        """There may be new work."""
        self._claimer.ring()

    def _from_thread(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            log.debug("worker %s has gone already", self.name)

    # --- time ------------------------------------------------------------------------------------

    async def _keep_time(self, heartbeat: Heartbeat) -> None:
        """Stop what runs too long, give up what does not stop, return what waits too long."""
        while True:
            await self._something_in_hand.wait()
            await asyncio.sleep(TICK_SECONDS)
            now = self._ticked_at = self.world.monotonic()
            if not self.held.leases and not self._asked:
                self._something_in_hand.clear()
            for holding in self._overdue(now):
                limit = holding.job.timeout_seconds
                self._tell.say(logging.WARNING, holding.job, f"runs longer than {limit:g} s")
                self._stop(holding, Stop.TIMEOUT)
                if holding.task.kind == "thread":
                    self._give_up(holding)
            for holding in list(self._asked):
                if now - holding.asked_at >= self.settings.kill_seconds:
                    self._report_stuck(holding)
            heartbeat.give_up_expired()
            self._return_the_patient(now)

    def _overdue(self, at: float) -> list[Holding]:
        """Running jobs that were to be stopped by this time and have not been, except by request.

        (A child that was asked to stop is killed anyway.)
        """
        return [
            holding
            for holding in list(self._timed)
            if holding.started_at is not None
            and at - holding.started_at >= (holding.job.timeout_seconds or 0.0)
            and holding.stop in (None, Stop.CANCELLED)
            and not (holding.done or (holding.stop and holding.task.kind == "process"))
        ]

    def _deaf(self, at: float) -> list[Holding]:
        """Those whose time was over by then, who were told so and go on."""
        return [
            holding
            for holding in list(self._asked)
            if holding.stop is Stop.TIMEOUT and holding.asked_at <= at and not holding.done
        ]

    def _time_out_if_blocked(self, store: Store) -> None:
        """Called by the heartbeat's thread: a handler that blocks the event loop ends nothing here,

        so its job is settled from there, and others may try it. Those that wait for the loop go on.
        """
        now = self.world.monotonic()
        at = now - self.settings.kill_seconds
        late = [*self._overdue(at), *self._deaf(at)] if self._ticked_at < at else []
        for holding in late:
            settlement = self._attempt(holding).stopped(Stop.TIMEOUT, self._seconds(holding))
            if holding.task.kind == "async" and settlement is not None:
                self._beside.take(holding, settlement, now)
        self._beside.write(store)

    def _report_stuck(self, holding: Holding) -> None:
        self._asked.pop(holding, None)
        if holding.over or holding.task.kind == "process":
            return
        if holding.stop is Stop.TIMEOUT:
            self._give_up(holding)
        else:
            self._note_stuck(holding)

    def _note_stuck(self, holding: Holding) -> None:
        if holding not in self._stuck:
            self._stuck.add(holding)
            self._tell.say(logging.ERROR, holding.job, "does not stop; its slot is stuck")

    def _is_stuck(self) -> bool:
        """Are all slots of a kind, or of a queue, taken by handlers that were given up?"""
        given_up = [holding for holding in self._stuck if holding.lost]
        kinds = Counter(holding.task.kind for holding in given_up)
        queues = Counter(holding.job.queue for holding in given_up)
        return any(n >= self._executors[kind].slots for kind, n in kinds.items()) or any(
            n >= self._slots.limits.get(queue, math.inf) for queue, n in queues.items()
        )

    def _give_up(self, holding: Holding) -> None:
        """End the attempt although its handler goes on. The slot stays taken until it ends."""
        if holding.over or holding.stop is None:
            return
        settlement = self._attempt(holding).stopped(holding.stop, self._seconds(holding))
        if self._finish(holding, settlement):
            self._note_stuck(holding)
            holding.lost.set()

    def _attempt(self, holding: Holding) -> Attempt:
        return Attempt(holding.job, holding.task.options_of_task, self.world.random)

    def _seconds(self, holding: Holding) -> float:
        """How long its handler has run."""
        now = self.world.monotonic()
        return now - (now if holding.started_at is None else holding.started_at)

    def _return_the_patient(self, now: float) -> None:
        """Give back what was claimed ahead and has waited too long for a slot, or a place."""
        for kind, executor in self._executors.items():
            waits_since = executor.waits_since()
            if waits_since is None or now - waits_since < PREFETCH_PATIENCE_SECONDS:
                continue
            left = executor.take_back()
            self._pace.slow_down(kind)
            self._release(left, "waited too long for a slot")
        since = now - PREFETCH_PATIENCE_SECONDS
        at_gates = self._at_gates.take_back_waiting(since=since)
        for holding in at_gates:
            self._pace.slow_down(holding.task.kind)
        self._put_back(at_gates, "waited too long for a place at its gate")
        patient = self._slots.take_back_waiting(since=since)
        for holding in patient:
            self._queue_pace.slow_down(holding.job.queue)
        self._put_back(patient, "waited too long for a slot")

    def _release(self, holdings: Sequence[Holding], reason: str) -> None:
        self._slots.take_back(holdings)
        self._put_back(holdings, reason)

    def _put_back(self, holdings: Sequence[Holding], reason: str, spread: float = 0.0) -> None:
        for holding in holdings:
            holding.over = True
            self._timed.pop(holding, None)
            self._suspects.ended(holding)
            if holding.line is not None:
                self._free_place(holding, holding.line)
            self._settler.add(holding, unstarted(holding.job, holding.stop, reason, spread=spread))

    # --- shutdown --------------------------------------------------------------------------------

    def _return_unstarted(self) -> None:
        self._put_back(self._at_gates.take_back_waiting(), "shutdown")
        self._put_back(self._slots.take_back_waiting(), "shutdown")
        for executor in self._executors.values():
            self._release(executor.take_back(), "shutdown")

    async def _drain(self) -> None:
        self._return_unstarted()
        log.info(
            "worker %s is draining; still running: %d, for at most %g s",
            self.name, len(self._unfinished()), self.settings.drain_seconds,
        )  # fmt: skip
        await self._until_finished(self.settings.drain_seconds)
        for holding in self._unfinished():
            self._stop(holding, Stop.SHUTDOWN)
        await self._until_finished(self.settings.kill_seconds + REAP_SECONDS)
        for holding in self._unfinished():
            self._give_up(holding)
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                while self._confirming:
                    await asyncio.wait(self._confirming)
                await self._settler.drained()
        except TimeoutError:
            await _cancel(list(self._confirming))
            log.error(
                "worker %s could not write its last results; leases bring them back", self.name
            )

    async def _until_finished(self, seconds: float) -> None:
        deadline = self.world.monotonic() + seconds
        while self._unfinished() and self.world.monotonic() < deadline:  # noqa: ASYNC110 - by clock
            await asyncio.sleep(TICK_SECONDS / 2)

    def _unfinished(self) -> list[Holding]:
        return [h for h in self.held.all() if not h.done and not h.over]
