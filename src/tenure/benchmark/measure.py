"""The measurement: rounds of the same work through the public API, each checked in the database.

No process, schema or file is left behind in any case. The first signal ends the measurement; no
signal interrupts the clean-up.
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
from tenure.rules.claim import Kind

CHUNK_JOBS = 1000
WARM_UP_JOBS = {"async": 2000, "thread": 1000, "process": 100}
DRAIN_SECONDS = 1.0
"""The approximate time of a drain if the number of jobs is not given."""
SINGLE_JOBS = 100
PICKUP_JOBS = 30
PICKUP_PAUSE_SECONDS = (0.02, 0.06)
ASK_SECONDS, COMMIT_SECONDS = 0.1, 0.3
STALL_SECONDS = 30.0
CPU_SECONDS = 0.2
"""The shortest usable time: the system counts CPU time in hundredths of a second."""
FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.001, 0.05


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `jobs` per drain; None means about one second of work."""

    jobs: int | None = None
    rounds: int = 3
    processes: int = 1
    kinds: tuple[Kind, ...] = ("async", "thread")

    @property
    def steps(self) -> int:
        """How many steps there are, including the warm-up."""
        return len(self.kinds) + self.rounds * (len(self.kinds) + 2)


def measure(
    url: str, plan: Plan, *, give_up_seconds: float, step: Callable[[], object]
) -> list[Figure]:
    """The figures of all rounds. `step` is called after each of `plan.steps`.

    Raises `MeasurementFailed` unless every job ran exactly once.
    """
    if os.name != "posix":
        raise ConfigError("workers run on Linux and macOS; on Windows Tenure is a client only")
    scratch = scratch_on(url, give_up_seconds=give_up_seconds)
    cleaning = ExitStack()
    signals = _Signals()
    try:
        # Two levels: a signal during the inner `finally` is the last signal that has an effect.
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
    """The first signal unwinds the stack, as Ctrl-C does; further signals are ignored."""

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
    """One measurement on one scratch schema or folder."""

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
        """Fill connections, statements and caches; choose the number of jobs per drain."""
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
        """Enqueue while the queue is paused, resume it, and wait until all jobs are finished."""
        jobs, singles = self._jobs[kind], 0
        app.pause(kind)
        if kind == "thread":  # not with "async", whose WAL is counted
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
        """Returns the id of the last job."""
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
        """Wait for the last job, then for all. The growing pause adds 2 % at most."""
        start = looked = time.monotonic()
        before = -1
        while not (app.get(last).state.final and _left() == 0):
            self._workers.check()
            now = time.monotonic()
            if now - looked > STALL_SECONDS:
                if (left := _left()) == before:
                    raise MeasurementFailed(f"no job finished for {STALL_SECONDS:g} s")
                before, looked = left, now
            pause = 0.02 * (now - start)
            time.sleep(min(LAST_LOOK_SECONDS, max(FIRST_LOOK_SECONDS, pause)))

    def _audit(self, jobs: int) -> None:
        """Check in the database that every job ran exactly once."""
        self._finished += jobs
        found = self._scratch.count()
        if found.live or found.events or not found.finished == found.ran_once == self._finished:
            raise MeasurementFailed(
                f"{self._finished} jobs should have run once, but the database has {found.live} "
                f"live and {found.finished} finished ones, {found.ran_once} at the first attempt"
            )

    def _pick_up(self) -> None:
        """Measure one job at a time while the workers are idle.

        The time is from the return of `enqueue` in this process to the first line of the handler.
        """
        milliseconds = []
        jobs = min(PICKUP_JOBS, self._plan.jobs or PICKUP_JOBS)
        for _ in range(jobs):
            handle = clock.enqueue()
            committed = time.monotonic()
            time.sleep(random.uniform(*PICKUP_PAUSE_SECONDS))  # do not poll while it starts
            self._wait_for(handle.id)
            milliseconds.append(max(0.0, 1000 * (handle.wait() - committed)))
        self._note("pickup.p50", percentile(milliseconds, 50))
        self._note("pickup.p99", percentile(milliseconds, 99))
        self._audit(jobs)

    def _limits(self) -> None:
        """Measure the bare database from this process while the workers are idle."""
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
