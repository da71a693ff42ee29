"""One run: processes come and go, faults strike, then they stop, and all must be well.

producers    enqueue, with keys, delays, priorities, parents, tenants; operators interfere
workers      the real ones; killed, paused, cut off, replaced; users are hit as well, now and then
the end      faults stop, the backlog empties, every lease is given back
one blow     one worker is killed while nothing else goes on: how long until its jobs run again?
good night   the workers shut down
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from tenure.app import Tenure
from tenure.client import Client
from tenure.running import Flag
from tenure.tasks import Call
from tenure.testing.recorder import Started
from tenure.worker import settler
from tenure.worker.claiming import claimer
from tenure.worker.worker import Worker
from tests.simulation import handlers
from tests.simulation.environment import VirtualEnvironment
from tests.simulation.faults import CALM, Faults
from tests.simulation.hub import Hub, Process, virtual_wait
from tests.simulation.loop import VirtualLoop
from tests.simulation.plan import Plan
from tests.simulation.steps import Steps
from tests.simulation.store import Session, VirtualStore
from tests.simulation.users import LARGEST_KB, Users
from tests.support import audit
from tests.support.books import Blow
from tests.support.plain import Plain

QUEUES = {"default": 0, "narrow": 2, "threads": 0}
AUDIT_SECONDS = 1.5
IDLE_POLL_SECONDS = 0.5
USERS_SHARE = 0.15
"""So many of the blows fall on a producer or an operator."""
ASTRAY_SECONDS = 2.5 * 86_400
"""So far the wall clock is wrong at most: workers prune what has finished a week ago by that clock,
and the checker wants to see it."""
PATIENCE_SECONDS = 300.0
"""So much virtual time may pass after the faults until the backlog is empty."""


@contextmanager
def _small_hands(kb: int) -> Iterator[None]:
    """The bounds of a worker in bytes, so small that a few kilobytes reach them."""
    with (
        patch.object(claimer, "MAX_KB_IN_HAND", kb),
        patch.object(claimer, "MAX_TICKET_KB", LARGEST_KB),
        patch.object(settler, "MAX_BATCH_KB", kb // 4),
    ):
        yield


class NotQuiet(AssertionError):
    """After the faults something goes on for ever."""


class Stage:
    """Everything that one seed makes happen."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        self.hub = Hub(self.random)
        self.faults = Faults(self.random, CALM)
        self.session = Session(
            self.hub, self.faults, repeats=plan.repeats, threads=plan.threads
        )  # fmt: skip
        self.environments: list[VirtualEnvironment] = []
        self.apps: dict[int, Client] = {}
        self.working: dict[int, Worker] = {}
        self.producers: list[Process] = []
        self.operators: list[Process] = []
        self.is_calm = False
        self.quiet_at = float("inf")
        self.last_blow: Blow | None = None
        """After the faults: whatever this has hit must run again in time."""
        self.recoveries: list[float] = []
        self.only_starts: Counter[int] = Counter()
        """How often the handlers of jobs that start at most once have started."""
        """How long beyond the length of a lease that took, in seconds."""
        self.users = Users(self)
        self.steps_taken = Steps(self.session)
        self.story: list[tuple[float, str]] = []
        # A thread that waits for a flag in real time would stop the clock of all processes.
        self._flags = patch.object(Flag, "wait", virtual_wait(self.hub))
        self._flags.start()

    # --- what is there ---------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Operations of the store that were answered, and go to the checker."""
        return sum(environment.log.steps for environment in self.environments)

    def app_here(self) -> Client:
        """The application in the process whose turn it is."""
        return self.apps[self.hub.here().pid]

    def tell(self, what: str) -> None:
        """Note what was done to the processes."""
        self.story.append((self.hub.now, what))

    def process(
        self, name: str, main: Callable[[Client, VirtualEnvironment], Coroutine[Any, Any, None]]
    ) -> Process:
        """Start a process with an event loop."""
        pid = 1 + len(self.environments)
        process = Process(self.hub, pid, f"{name} {pid}")
        environment = VirtualEnvironment(self.session, process, self._crash_point)
        self.environments.append(environment)
        app = Tenure("sqlite:///simulation.db")
        app.include(handlers.tasks)
        app._store = environment.wrap(VirtualStore(self.session))
        app.hooks.arounds.append(environment.log.around)
        self.apps[pid] = app
        loop = VirtualLoop(self.hub, process)

        def run() -> None:
            asyncio._set_running_loop(None)  # it sets itself
            loop.run_until_complete(main(app, environment))
            process.ended = True

        self.hub.spawn(process, run, loop)
        return process

    def start_worker(self) -> Process:
        """A new worker process."""
        plan = self.plan

        async def work(app: Client, environment: VirtualEnvironment) -> None:
            worker = Worker(
                app, QUEUES, environment=environment, async_slots=plan.slots, thread_slots=2,
                process_slots=1, lease_seconds=plan.lease_seconds,
                heartbeat_seconds=plan.lease_seconds / 3.5, sweep_seconds=0.3,
                promote_seconds=0.1, idle_poll_seconds=IDLE_POLL_SECONDS, busy_poll_seconds=0.05,
                schedule_seconds=1.0, drain_seconds=plan.lease_seconds, kill_seconds=0.5,
            )  # fmt: skip
            self.working[environment.process.pid] = worker
            await worker.serve()

        process = self.process("worker", work)
        process.is_worker = True
        self.tell(f"{process} starts")
        return process

    def workers(self) -> list[Process]:
        """Those that are neither dead nor at their end."""
        processes = [environment.process for environment in self.environments]
        return [p for p in processes if p.is_worker and not (p.dead or p.ended)]

    def start_missing_workers(self, wanted: int) -> None:
        """Those that were told to stop are on their way out."""
        while sum(not process.stopping for process in self.workers()) < wanted:
            self.start_worker()

    # --- the play --------------------------------------------------------------------------------

    def play(self, first: Sequence[Call[Any]] = ()) -> None:
        """From the first process to the last. A test may say what is enqueued first."""
        handlers.now.stage = self
        self._follow()
        try:
            if first:
                self.process("client", lambda app, _: self.users.enqueue(app, [*first]))
            with _small_hands(self.plan.hand_kb):
                self._storm()
                self._calm()
            self._strike_once_more()  # from here on each worker has room for all jobs
            self._shut_down()
        finally:
            for task in handlers.tasks:
                task._clients.clear()

    def _follow(self) -> None:
        """A reader that never moves: the feed has every end. Wrong clocks do not make it lost."""
        far = 2**62
        self.session.memory.execute("insert into tenure_feed_end values ('feed', 0)")
        self.session.memory.execute(
            "insert into tenure_feed_reader values ('', 'judge', 0, 0, ?, null, 0)", (far,)
        )

    def close(self) -> None:
        """Take everything down."""
        for environment in self.environments:
            self.hub.clear(environment.process)
        self._flags.stop()
        self.session.memory.close()
        # Whatever still knows this stage would be there for ever: frozen before the next run.
        handlers.now.leave(self)
        sys.set_asyncgen_hooks(firstiter=None, finalizer=None)  # loops that took turns left theirs

    def _storm(self) -> None:
        plan = self.plan
        self.faults.weather = plan.weather
        for _ in range(plan.workers):
            self.start_worker()
        for _ in range(plan.producers):
            self.producers.append(self.process("producer", self.users.produce))
        for _ in range(plan.operators):
            self.operators.append(self.process("operator", self.users.operate))
        self._soon(self._strike)
        self.hub.at(AUDIT_SECONDS, self._audit)
        users, hub = self.users, self.hub
        least = hub.now + plan.least_seconds
        hub.run_until(lambda: users.are_done and hub.now >= least, plan.storm_seconds)

    def _calm(self) -> None:
        """Faults stop. Whoever was paused or blocked goes on; what was delayed arrives."""
        hub = self.hub
        self.is_calm = True
        self.faults.weather = CALM
        self.quiet_at = hub.now
        self.tell("faults stop")
        for environment in self.environments:
            process = environment.process
            process.cut_until = 0.0
            if not process.dead:
                stalls = [until for _, until in process.stalls]
                self.quiet_at = max(self.quiet_at, process.paused_until, *stalls)
        self.quiet_at = max(self.quiet_at, self.session.delayed_until)
        clock = self.session.clock
        clock.ahead_seconds = clock.furthest_seconds
        self.start_missing_workers(2)
        self.process("housekeeper", self.users.keep_house)
        self._come_to_rest()

    def _come_to_rest(self) -> None:
        if not self._until(self.is_quiet):
            raise NotQuiet(f"seed {self.plan.seed}: {self._what_is_left()}")
        if not self._until(lambda: not self._slots_in_use()):
            raise NotQuiet(f"seed {self.plan.seed}: {self._slots_in_use()} are used by nobody")

    def _slots_in_use(self) -> dict[str, dict[str, int]]:
        """Of each worker that lives, the slots that are taken, by queue: where nothing runs, none.

        A handler that was given up has its slot until it ends.
        """
        used: dict[str, dict[str, int]] = {}
        for process in self.workers():
            worker = self.working.get(process.pid)
            at_work = worker._process if worker else None
            slots = at_work.intake.slots._used if at_work else {}
            taken = {queue: n for queue, n in slots.items() if n}
            if taken:
                used[str(process)] = taken
        return used

    def _strike_once_more(self) -> None:
        """A worker dies with jobs in its hands, and another one has free slots for all of them."""
        plan, hub = self.plan, self.hub
        known = len(self.users.ids)
        before = [len(environment.log.lines) for environment in self.environments]
        calls = [handlers.long.call(2 * plan.lease_seconds) for _ in range(min(3, plan.slots))]
        self.process("client", lambda app, _: self.users.enqueue(app, calls))

        def holders() -> list[Process]:
            ids = self.users.ids[known:]
            return [
                each.process for each, seen in zip(self.environments, before, strict=False)
                if any(isinstance(x, Started) and x.id in ids for x in each.log.lines[seen:])
            ]  # fmt: skip

        if not hub.run_until(lambda: bool(holders()), PATIENCE_SECONDS):
            raise NotQuiet(f"seed {plan.seed}: {self.users.ids[known:]} do not start")
        hub.run_until(lambda: False, plan.lease_seconds * self.random.random())
        victim = self.random.choice(holders())
        self._kill(victim)
        self.last_blow = Blow(victim.pid, hub.now, "kill")
        self.start_missing_workers(2)
        self._come_to_rest()

    def _shut_down(self) -> None:
        for pid, worker in self.working.items():
            if not self.environments[pid - 1].process.dead:
                worker.stop()
        self.tell("workers are told to stop")
        if not self._until(lambda: not self.workers()):
            raise NotQuiet(f"seed {self.plan.seed}: {self.workers()} do not end")

    def _until(self, is_so: Callable[[], bool]) -> bool:
        deadline = self.hub.now + PATIENCE_SECONDS
        while not is_so():
            if self.hub.now > deadline:
                return False
            self.hub.run_until(lambda: False, 0.5)
        return True

    def is_quiet(self) -> bool:
        """Is nothing live any more, and every lease given back?"""
        [(left,)] = self.session.memory.execute(
            "select (select count(*) from tenure_job) + (select count(*) from tenure_lease)"
        )
        return left == 0 and self.users.are_done and self.hub.now > self.quiet_at

    def held(self) -> list[int]:
        """The jobs that an operator holds back."""
        return [id for (id,) in self.session.memory.execute("select id from tenure_job where held")]

    def paused_flows(self) -> list[int]:
        """The workflows that an operator holds back."""
        return [
            id for (id,) in self.session.memory.execute(
                "select id from tenure_workflow where paused_at is not null and ended_at is null"
            )
        ]  # fmt: skip

    def _audit(self) -> None:
        """In the middle of it all, every job stands in exactly one place."""
        audit.check(Plain.over(self.session.memory))
        if not self.is_calm:
            self.hub.at(AUDIT_SECONDS, self._audit)

    def _what_is_left(self) -> str:
        execute = self.session.memory.execute
        jobs = list(
            execute("select id, token, task, queue, parked, due_at, reason from tenure_job")
        )
        leases = list(execute("select id, worker, jobs from tenure_lease"))
        return f"still live after {PATIENCE_SECONDS:g} s: jobs {jobs[:5]}, leases {leases[:5]}"

    # --- faults ----------------------------------------------------------------------------------

    def _soon(self, call: Callable[[], None]) -> None:
        self.hub.at(self.plan.strike_seconds * 2 * self.random.random(), call)

    def _strike(self) -> None:
        """One of the things that can happen to a process, and then the next one."""
        if self.is_calm:
            return
        hits_users = self.random.random() < USERS_SHARE
        candidates = [*self.producers, *self.operators] if hits_users else self.workers()
        victims = [process for process in candidates if process.is_running]
        what = self.random.choices(list(self.plan.strikes), list(self.plan.strikes.values()))[0]
        if victims:
            victim = self.random.choice(victims)
            self.faults.count(what)
            getattr(self, f"_{what}")(victim)
        self.start_missing_workers(self.plan.workers)
        self._soon(self._strike)

    def _kill(self, victim: Process) -> None:
        self.hub.kill(victim)
        self.tell(f"{victim} is killed")

    def _pause(self, victim: Process) -> None:
        seconds = self.plan.lease_seconds * 2.5 * self.random.random()
        victim.trouble(seconds)
        victim.stall(seconds)
        victim.paused_until = self.hub.now + seconds
        self.tell(f"{victim} is paused for {seconds:.3f} s")

    def _cut(self, victim: Process) -> None:
        seconds = self.plan.lease_seconds * 2 * self.random.random()
        victim.trouble(seconds)
        victim.cut_until = self.hub.now + seconds
        self.tell(f"{victim} is cut off for {seconds:.3f} s")

    def _jump(self, _: Process) -> None:
        seconds = self.random.choice((-1, 1)) * self.random.choice((0.5, 5, 60, 3600, 86400))
        if abs(self.session.clock.ahead_seconds + seconds) > ASTRAY_SECONDS:
            seconds = -seconds
        self.session.clock.jump(seconds)
        self.tell(f"the wall clock jumps by {seconds:g} s")

    def _stop(self, victim: Process) -> None:
        worker = self.working.get(victim.pid)
        if worker is not None:
            victim.stopping = True
            worker.stop()
            self.tell(f"{victim} is told to stop")

    def _crash_point(self, process: Process, name: str) -> None:
        if not self.is_calm and self.random.random() < self.plan.crash_share:
            self.faults.count("crash point")
            self.hub.kill(process)
            self.tell(f"{process} dies {name}")
