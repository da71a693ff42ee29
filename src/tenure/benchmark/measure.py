"""The measurement: rounds of the same work through the public API, each counted in the database.

Whatever happens, nothing is left behind: no process, no schema, no file. Signals end the
measurement once, and never the cleaning up.
"""

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import FrameType

import msgspec

from tenure.benchmark.figures import Figure, percentile, summarise
from tenure.benchmark.scratch import Scratch, scratch_on
from tenure.benchmark.tasks import ARGS, TASKS, app, clock
from tenure.benchmark.workers import Workers
from tenure.errors import ConfigError, MeasurementFailed
from tenure.tasks import Kind

CHUNK_JOBS = 1000
WARM_UP_JOBS = {"async": 2000, "thread": 1000, "process": 100}
DRAIN_SECONDS = 1.0
"""What a drain takes, about, when nobody says how many jobs it has."""
SINGLE_JOBS = 100
PICKUP_JOBS = 30
PICKUP_PAUSE_SECONDS = (0.02, 0.06)
ASK_SECONDS, COMMIT_SECONDS = 0.1, 0.3
STALL_SECONDS = 30.0
CPU_SECONDS = 0.2
"""Of a shorter time nothing can be said: the system counts in hundredths of a second."""
FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.001, 0.05


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured. `jobs` of a drain: None means as many as take about a second."""

    jobs: int | None = None
    rounds: int = 3
    processes: int = 1
    kinds: tuple[Kind, ...] = ("async", "thread")

    @property
    def steps(self) -> int:
        """How many there are, the warm-up among them."""
        return len(self.kinds) + self.rounds * (len(self.kinds) + 2)


def measure(
    url: str, plan: Plan, *, give_up_seconds: float, step: Callable[[], object]
) -> list[Figure]:
    """The figures of all rounds. `step` is called after each of `plan.steps`.

    Raises `MeasurementFailed` when anything else happened than that every job ran once.
    """
    if os.name != "posix":
        raise ConfigError("workers run on Linux and macOS; on Windows Tenure is a client only")
    scratch = scratch_on(url, give_up_seconds=give_up_seconds)
    cleaning = ExitStack()
    signals = _Signals()
    try:
        # Two levels: a signal that strikes in the inner `finally` is the last one that is heard.
        try:
            signals.catch()
            cleaning.callback(scratch.remove)
            scratch.create()
            return _Bench(scratch, plan, step, cleaning).run()
        finally:
            signals.ignore()
    finally:
        try:
            cleaning.close()
        finally:
            signals.restore()


class _Signals:
    """The first one unwinds the stack, as Ctrl-C does; the others are not heard."""

    def __init__(self) -> None:
        self._deaf = False
        self._before = {
            number: signal.getsignal(number)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN  # as nohup does
        }

    def catch(self) -> None:
        for number in self._before:
            signal.signal(number, self._caught)

    def ignore(self) -> None:
        self._deaf = True

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._deaf:
            return
        self._deaf = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


class _Bench:
    """One measurement on one scratch place."""

    def __init__(
        self, scratch: Scratch, plan: Plan, step: Callable[[], object], cleaning: ExitStack
    ) -> None:
        self._scratch = scratch
        self._plan = plan
        self._step = step
        self._workers = Workers(scratch.url, plan.processes, plan.kinds)
        self._rounds: dict[str, list[float]] = defaultdict(list)
        self._jobs: dict[Kind, int] = {}
        self._finished = 0
        cleaning.callback(app.close)
        cleaning.callback(self._workers.stop)

    def run(self) -> list[Figure]:
        """Warm up, then all rounds."""
        app.use_url(self._scratch.url)
        app.migrate()
        self._workers.start()
        for kind in self._plan.kinds:
            self._warm_up(kind)
            self._step()
        self._rounds.clear()
        parts: list[Callable[[], None]] = [partial(self._drain, kind) for kind in self._plan.kinds]
        parts += [self._pick_up, self._limits]
        for _ in range(self._plan.rounds):
            for part in parts:
                part()
                self._step()
        return summarise(self._rounds)

    def _warm_up(self, kind: Kind) -> None:
        """Connections, prepared statements, caches; and how many jobs a drain shall have."""
        wanted = self._plan.jobs
        usual = WARM_UP_JOBS[kind]
        self._jobs[kind] = usual if wanted is None else min(usual, wanted)
        self._drain(kind)
        if wanted is None:
            self._drain(kind)
            rate = self._rounds[f"drain.{kind}"][-1]
            self._jobs[kind] = max(100, round(rate * DRAIN_SECONDS / 100) * 100)
        else:
            self._jobs[kind] = wanted

    def _drain(self, kind: Kind) -> None:
        """Enqueue while the queue is paused, let it go, and wait for the end."""
        jobs, singles = self._jobs[kind], 0
        app.pause(kind)
        if kind == "thread":  # not beside the bulk whose WAL is counted
            singles = min(jobs, SINGLE_JOBS)
            self._enqueue_singly(kind, singles)
        log_before = self._scratch.log_bytes()
        last = self._enqueue_in_bulk(kind, jobs)
        cpu_before, start = self._workers.cpu_seconds(), time.perf_counter()
        app.resume(kind)
        self._wait_for(last)
        seconds = time.perf_counter() - start
        self._note(f"drain.{kind}", (jobs + singles) / seconds)
        if kind == "async":
            self._note_cpu(cpu_before, seconds)
            self._note_log(log_before, jobs)
        self._audit(jobs + singles)

    def _note_cpu(self, before: float | None, seconds: float) -> None:
        after = self._workers.cpu_seconds()
        if before is not None and after is not None and seconds >= CPU_SECONDS:
            self._note("worker.cpu", 100 * (after - before) / seconds / self._plan.processes)

    def _note_log(self, before: int | None, jobs: int) -> None:
        after = self._scratch.log_bytes()
        if before is not None and after is not None:
            self._note("wal", (after - before) / jobs)

    def _enqueue_singly(self, kind: Kind, jobs: int) -> None:
        milliseconds = []
        for _ in range(jobs):
            start = time.perf_counter()
            TASKS[kind].enqueue(**ARGS)
            milliseconds.append(1000 * (time.perf_counter() - start))
        self._note("enqueue.one", percentile(milliseconds, 50))

    def _enqueue_in_bulk(self, kind: Kind, jobs: int) -> int:
        """Answers the id of the last one."""
        task, last = TASKS[kind], 0
        start = time.perf_counter()
        for begun in range(0, jobs, CHUNK_JOBS):
            count = min(CHUNK_JOBS, jobs - begun)
            last = app.enqueue_many([task.call(**ARGS) for _ in range(count)])[-1].id
        seconds = time.perf_counter() - start
        if kind == "async":
            self._note("enqueue.bulk", jobs / seconds)
        return last

    def _wait_for(self, last: int) -> None:
        """Until the last job is finished, and then all. To look seldom costs 2 % at most."""
        start = looked = time.monotonic()
        before = -1
        while not (app.get(last).state.final and _left() == 0):
            self._workers.check()
            now = time.monotonic()
            if now - looked > STALL_SECONDS:
                if (left := _left()) == before:
                    raise MeasurementFailed(f"no job was finished for {STALL_SECONDS:g} s")
                before, looked = left, now
            pause = 0.02 * (now - start)
            time.sleep(min(LAST_LOOK_SECONDS, max(FIRST_LOOK_SECONDS, pause)))

    def _audit(self, jobs: int) -> None:
        """Every job ran once: so say the rows of the database."""
        self._finished += jobs
        found = self._scratch.count()
        if found.live or found.events or not found.finished == found.ran_once == self._finished:
            raise MeasurementFailed(
                f"{self._finished} jobs should have run once, but the database has {found.live} "
                f"live and {found.finished} finished ones, {found.ran_once} at the first attempt"
            )

    def _pick_up(self) -> None:
        """One job at a time for workers that have nothing to do.

        The clock runs from the return of `enqueue` here to the first line of the handler there.
        """
        milliseconds = []
        jobs = min(PICKUP_JOBS, self._plan.jobs or PICKUP_JOBS)
        for _ in range(jobs):
            handle = clock.enqueue()
            committed = time.monotonic()
            time.sleep(random.uniform(*PICKUP_PAUSE_SECONDS))  # not to ask while it starts
            self._wait_for(handle.id)
            milliseconds.append(max(0.0, 1000 * (handle.wait() - committed)))
        self._note("pickup.p50", percentile(milliseconds, 50))
        self._note("pickup.p99", percentile(milliseconds, 99))
        self._audit(jobs)

    def _limits(self) -> None:
        """What the database itself can do, asked from here, while the workers rest."""
        if self._scratch.has_round_trips:
            trips = _timed(self._scratch.ask, ASK_SECONDS)
            self._note("limit.round_trip", 1000 * percentile(trips, 50))
        commits = _timed(self._scratch.commit, COMMIT_SECONDS)
        self._note("limit.commits", 1 / percentile(commits, 50))

    def _note(self, name: str, value: float) -> None:
        self._rounds[name].append(value)


def _left() -> int:
    """How many jobs are not finished."""
    return sum(count.jobs for count in app.count_live())


def _timed(act: Callable[[], None], seconds: float) -> list[float]:
    """How long each of many calls took, in seconds; at least one."""
    taken: list[float] = []
    while not taken or sum(taken) < seconds:
        start = time.perf_counter()
        act()
        taken.append(time.perf_counter() - start)
    return taken
