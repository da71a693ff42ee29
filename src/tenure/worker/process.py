"""One worker process: builds its parts, runs them until it is told to stop, then drains.

    claimer -> intake -> executors (coroutines, threads, children) -> settler
    heartbeat thread: renews the leases       timekeeper: stops attempts
    upkeep: promote, sweep, prune             ticker: fires schedules

A shutdown ends the claims, puts back unstarted jobs, lets running ones finish within a limit, puts
back the rest uncharged, and writes all settlements.
"""

import asyncio
import logging
import math
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from tenure.client import Client
from tenure.errors import StoreBusy, StoreError, StoreUnavailable
from tenure.passwords import absolute_url
from tenure.rules.claim import Kind
from tenure.rules.job import JobWait, WorkerInfo, WorkerLoad
from tenure.store.bell import Bell
from tenure.worker.children.minder import Children
from tenure.worker.claiming.claimer import Claimer
from tenure.worker.claiming.intake import Intake
from tenure.worker.claiming.polling import Polling
from tenure.worker.counting import EndCounter
from tenure.worker.environment import Environment
from tenure.worker.events import EventReporter
from tenure.worker.leases import LeasedJobs, Watchlist
from tenure.worker.protected import start_task
from tenure.worker.running.executors import Coroutines, Executor, Threads
from tenure.worker.settings import WorkerSettings
from tenure.worker.settler import Backlog, Settler
from tenure.worker.stopping.blocked_loop import BlockedLoop
from tenure.worker.stopping.drain import Drain
from tenure.worker.stopping.heartbeat import WAIT_SECONDS, Heartbeat
from tenure.worker.stopping.loop_watch import LoopWatch
from tenure.worker.stopping.timekeeper import Timekeeper
from tenure.worker.stores import Stores
from tenure.worker.upkeep.ticker import Ticker
from tenure.worker.upkeep.upkeep import Upkeep

RETIRE_SECONDS = 2.0
OPEN_PAUSE_SECONDS = 1.0
RATE_SECONDS = 60.0
"""The rate that a worker announces is that of the last minute."""
MAX_WAITS = 100

Tasks = list[asyncio.Task[None]]

log = logging.getLogger("tenure.worker")


def new_name(secret: str) -> str:
    """The name of a worker: random at each start, with the host's name for people to read."""
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c in "-.")[:30]
    return f"{host.lstrip('-.') or 'host'}-{os.getpid()}-{secret}"


class WorkerProcess:
    """Works for one application until told to stop."""

    def __init__(self, app: Client, settings: WorkerSettings, environment: Environment) -> None:
        self.app = app
        self.settings = settings
        self.environment = environment
        self.name = new_name(environment.secret())
        self.ready = asyncio.Event()
        self.reporter = EventReporter(app.hooks, self.name, settings, environment)
        self.leased_jobs = LeasedJobs()
        self.counter = EndCounter(self.leased_jobs, environment)
        self.watchlist = Watchlist(environment.monotonic())
        self._samples: deque[tuple[float, dict[tuple[str, Kind], int]]] = deque()
        """How many attempts had ended, at heartbeats of the last minute."""
        self._backlog = Backlog(self.leased_jobs)
        self._stopping = asyncio.Event()
        self._by_signal = False
        self._start_error = ""

    def stop(self, *, by_signal: bool = False) -> None:
        """Begin to shut down: no job starts from now on. Called on the event loop."""
        self._by_signal = by_signal
        self._stopping.set()
        if self.ready.is_set():
            self.claimer.stop()
            self.intake.stop()
            self.intake.put_back_unstarted()

    @property
    def reached_max_jobs(self) -> bool:
        """Has it ended because it has run as many jobs as `max_jobs` says?"""
        return self.ready.is_set() and self.claimer.reached_max_jobs

    async def run(self) -> None:
        """Work until `stop` is called, then drain. Raises errors that prevent it from working."""
        self._loop = asyncio.get_running_loop()
        self.app.keep = self.settings.keep
        async with AsyncExitStack() as ends:
            stores = await self._open_stores()
            ends.push_async_callback(stores.close)
            bell = self._build(stores)
            await self._declare_gates(stores)
            await self._declare_hooks(stores)
            await self.app.hooks.set_up()
            ends.push_async_callback(self.app.hooks.tear_down)
            ends.push_async_callback(self._retire, stores)
            self._heartbeat.start()
            ends.push_async_callback(self._end_heartbeat)
            ends.callback(self._close_executors)
            background = self._start_background()
            ends.push_async_callback(_cancel, background)
            bell.start()
            ends.callback(bell.stop)
            self._log_queues()
            await self._work(background)
        self.reporter.end_second(math.inf)
        log.info("worker %s stopped", self.name)

    # --- starting --------------------------------------------------------------------------------

    async def _open_stores(self) -> Stores:
        """Open the stores. A database that cannot be reached or is locked is tried again."""
        while True:
            try:
                return Stores(self.app, self.settings, self.environment)
            except StoreUnavailable as error:
                if self._stopping.is_set():
                    raise
                await self._pause_after(error)

    async def _declare_gates(self, stores: Stores) -> None:
        """Write the limits that the code declares, except for gates that an operator has set."""
        while self.app.declared_gates and not self._stopping.is_set():
            try:
                await stores.settling.declare_gates(self.app.declared_gates)
                return
            except (StoreUnavailable, StoreBusy) as error:
                await self._pause_after(error)

    async def _declare_hooks(self, stores: Stores) -> None:
        """Write which tasks the code wants to be called for failures."""
        hooks, tasks = self.app.declared_hooks(), [task.name for task in self.app]
        while (hooks or tasks) and not self._stopping.is_set():
            try:
                await stores.settling.declare_hooks(hooks, tasks=tasks)
                return
            except (StoreUnavailable, StoreBusy) as error:
                await self._pause_after(error)

    async def _pause_after(self, error: StoreError) -> None:
        if str(error) != self._start_error:  # logged once: an outage must not fill the disk
            log.warning("worker %s cannot start, trying again: %s", self.name, error)
        self._start_error = str(error)
        await asyncio.sleep(OPEN_PAUSE_SECONDS)

    def _build(self, stores: Stores) -> Bell:
        """Make the parts. Each part is made after the parts that it uses."""
        polling = Polling(self.settings, self.environment)
        self._build_claiming(stores, polling)
        self._build_settling_and_stopping(stores, polling)
        polling.bell = bell = stores.beating.bell(
            lambda: self._post(polling.ring), self._heartbeat.cancel_requested
        )
        self.intake.on_progress = self._heartbeat.progress_reported
        for executor in self.executors.values():
            executor.on_end = self.settler.ended
        self.claimer.can_finish = self._can_finish
        self._upkeep.before_sweep = self.settler.catch_up
        return bell

    def _build_claiming(self, stores: Stores, polling: Polling) -> None:
        store, settings, environment = stores.claiming, self.settings, self.environment
        self._upkeep = Upkeep(store, settings, environment, polling.ring)
        self._upkeep.counter, self._upkeep.worker = self.counter, self.name
        self._ticker = Ticker(store, self.app, settings, environment, ring=polling.ring)
        self.executors = self._make_executors()
        self.intake = Intake(
            self.app, self.name, settings, environment, executors=self.executors, polling=polling,
            backlog=self._backlog, leased_jobs=self.leased_jobs, watchlist=self.watchlist,
            reporter=self.reporter,
        )  # fmt: skip
        self.claimer = Claimer(
            store, self.name, settings, environment,
            intake=self.intake, polling=polling, upkeep=self._upkeep, leased_jobs=self.leased_jobs,
        )  # fmt: skip

    def _build_settling_and_stopping(self, stores: Stores, polling: Polling) -> None:
        name, settings, environment = self.name, self.settings, self.environment
        leased_jobs, reporter = self.leased_jobs, self.reporter
        self.settler = Settler(
            stores.settling, name, environment, backlog=self._backlog, leased_jobs=leased_jobs,
            reporter=reporter, counter=self.counter, ring=polling.ring,
            freed=polling.slot_came_free, keep=settings.keep,
        )  # fmt: skip
        self.settler.free_slot = self.intake.free_slot
        blocked_loop = BlockedLoop(
            name, settler=self.settler, watchlist=self.watchlist, reporter=reporter,
            post=self._post, keep=settings.keep,
        )  # fmt: skip
        self.timekeeper = Timekeeper(
            settings, environment, intake=self.intake, settler=self.settler,
            blocked_loop=blocked_loop, leased_jobs=leased_jobs, watchlist=self.watchlist,
            reporter=reporter, post=self._post,
        )  # fmt: skip
        self._heartbeat = Heartbeat(
            stores.beating, name, settings, environment, leased_jobs=leased_jobs,
            timekeeper=self.timekeeper, info=self._info,
            loop_watch=LoopWatch(name, environment, self.watchlist, reporter),
        )  # fmt: skip
        self._drain = Drain(
            name, settings, environment, intake=self.intake, settler=self.settler,
            timekeeper=self.timekeeper, leased_jobs=leased_jobs,
        )  # fmt: skip

    def _can_finish(self) -> bool:
        return self._heartbeat.works() and not self.settler.failing()

    def _make_executors(self) -> dict[Kind, Executor]:
        s, common = self.settings, (self.app, self.name, self.environment)
        return {
            "async": Coroutines(s.async_slots, *common),
            "thread": Threads(s.thread_slots, *common),
            "process": Children(
                s.process_slots, *common, kill_seconds=s.kill_seconds,
                max_jobs=s.max_jobs_per_child,
            ),
        }  # fmt: skip

    def _start_background(self) -> Tasks:
        return [
            start_task(self.settler.run(), "tenure-settler"),
            start_task(self.timekeeper.run(), "tenure-timekeeper"),
            start_task(self._upkeep.promote(), "tenure-promote"),
            start_task(self._upkeep.sweep(), "tenure-sweep"),
            start_task(self._upkeep.prune(), "tenure-prune"),
            start_task(self._upkeep.expire(), "tenure-expire"),
            start_task(self._upkeep.heal(), "tenure-heal"),
            start_task(self._ticker.run(), "tenure-ticker"),
            start_task(self._upkeep.statistics(), "tenure-statistics"),
        ]

    def _log_queues(self) -> None:
        slots = (f"{executor.slots} {kind}" for kind, executor in self.executors.items())
        tasks = sum(1 for _ in self.app)
        log.info(
            "worker %s serves %s on %s; tasks: %d; slots: %s", self.name,
            ", ".join(self.settings.queues), absolute_url(self.app.url), tasks, ", ".join(slots),
        )  # fmt: skip
        if not tasks:
            log.warning(
                "worker %s knows no task: let the module of the application import the modules "
                "that define tasks, or use app.include(tasks)", self.name,
            )  # fmt: skip
        known = {task.options_of_task.queue for task in self.app}
        for queue in self.settings.queues:
            if known and queue not in known:
                log.warning(
                    "worker %s serves queue %s, but no task of its application uses that queue; "
                    "its tasks use %s", self.name, queue, ", ".join(sorted(known)),
                )  # fmt: skip

    def _info(self) -> WorkerInfo:
        return WorkerInfo(
            name=self.name, host=socket.gethostname(), pid=os.getpid(),
            queues=dict(self.settings.queues), tasks=tuple(sorted(task.name for task in self.app)),
            settings={
                "lease_seconds": self.settings.lease_seconds,
                "heartbeat_seconds": self.settings.heartbeat_seconds,
            },
            counts={
                "stuck": len(self.watchlist.stuck),
                "seconds since a claim": self.claimer.idle_seconds(),
            },
            load=self._load(),
        )  # fmt: skip

    def _load(self) -> WorkerLoad:
        """Called in the heartbeat thread."""
        now = self.environment.monotonic()
        self._samples.append((now, dict(self.intake.ended)))
        while len(self._samples) > 2 and now - self._samples[1][0] >= RATE_SECONDS:
            self._samples.popleft()
        since, before = self._samples[0]
        finished: dict[str, dict[str, int]] = {}
        for (queue, kind), total in self._samples[-1][1].items():
            if total > before.get((queue, kind), 0):
                finished.setdefault(queue, {})[kind] = total - before.get((queue, kind), 0)
        waits = [
            JobWait(leased.job.id, leased.job.task, id, round(seconds, 1))
            for leased, id, seconds in self.leased_jobs.waits(now)
            if seconds >= WAIT_SECONDS
        ]
        return WorkerLoad(
            slots={kind: executor.slots for kind, executor in self.executors.items()},
            kinds={task.name: task.kind for task in self.app},
            finished=finished, seconds=now - since,
            waits=tuple(waits[:MAX_WAITS]),
        )  # fmt: skip

    # --- working ---------------------------------------------------------------------------------

    async def _work(self, background: Tasks) -> None:
        """Claim until told to stop, then drain. A loop that fails ends the whole worker."""
        claiming = start_task(self.claimer.run(), "tenure-claimer")
        if self._stopping.is_set():
            self.claimer.stop()
            self.intake.stop()
        self.ready.set()
        try:
            await asyncio.wait([claiming, *background], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancel([claiming])
            raise
        failed = [task for task in [claiming, *background] if task.done() and task.exception()]
        for task in failed:
            log.critical("worker %s cannot continue: %s", self.name, task.exception())
        self.claimer.stop()
        await asyncio.wait([claiming])
        await self._drain.run(by_signal=self._by_signal)
        for task in failed:
            task.result()

    def _post(self, call: Callable[..., None], *args: Any) -> None:
        """Call a function on the event loop. Used by other threads."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            log.debug("worker %s has ended already", self.name)

    # --- ending ----------------------------------------------------------------------------------

    def _close_executors(self) -> None:
        for executor in self.executors.values():
            executor.close()

    async def _end_heartbeat(self) -> None:
        """Wait in a thread of its own: handlers may have filled the loop's thread pool."""
        ended = asyncio.Event()

        def end() -> None:
            self._heartbeat.stop()
            self._post(ended.set)

        self.environment.thread(end, "tenure-heartbeat-end").start()
        await ended.wait()

    async def _retire(self, stores: Stores) -> None:
        if why := await _trouble(self._upkeep.write_statistics):
            log.warning("worker %s could not write its last statistics: %s", self.name, why)
        if why := await _trouble(partial(stores.settling.retire, self.name)):
            log.warning("worker %s could not sign off: %s", self.name, why)


async def _trouble(deed: Callable[[], Awaitable[None]]) -> str:
    """Do something at the end. Returns what was wrong; empty: nothing."""
    try:
        async with asyncio.timeout(RETIRE_SECONDS):
            await deed()
    except (StoreError, TimeoutError) as error:
        return str(error) or f"no response for {RETIRE_SECONDS:g} s"
    return ""


async def _cancel(tasks: Tasks) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
