"""Executors: run attempts in slots, and keep the jobs that wait for a slot.

    Coroutines   `async def` handlers, on the event loop
    Threads      `def` handlers, in threads
    Children     handlers with `isolation="process"`, in child processes: children/minder.py

An executor gets jobs on the event loop and reports there when an attempt has ended. A handler that
does not stop when told keeps its slot: it is stuck, and the worker logs that.
"""

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial

from tenure.client import Client
from tenure.errors import WorkerStopping
from tenure.rules.lifecycle import Settlement
from tenure.store.session import drive
from tenure.worker.environment import Environment, Thread
from tenure.worker.leases import LeasedJob, Stop
from tenure.worker.protected import misused_since
from tenure.worker.running.attempt import Attempt
from tenure.worker.running.batch import Ended, run_batch, stop_when_all_must
from tenure.worker.running.run import AttemptRunner

JOBS_WITHOUT_YIELD = 8
"""A runner that never has to wait yields to the event loop after this many jobs. There may be a
hundred runners; with 64 jobs each, a whole block ran before claims and settlements could."""

log = logging.getLogger("tenure.worker")

OnEnd = Callable[[LeasedJob, Settlement | None], None]


class Forks:
    """Counts the forks between the first process and this one.

    (To ask for the process id after each job would be a system call.)
    """

    count = 0

    @classmethod
    def note(cls) -> None:
        """This process is a fork."""
        cls.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Forks.note)


class Executor(ABC):
    """Runs one kind of handler. All methods are called on the event loop."""

    on_end: OnEnd
    """Called with each attempt that has ended. Set before the first job is submitted."""

    def __init__(self, slots: int, app: Client, worker: str, environment: Environment) -> None:
        self.slots = slots
        self.job_count = 0
        """How many jobs run here or wait for a slot."""
        self._app = app
        self._worker = worker
        self._environment = environment
        self._forks = Forks.count
        self._backlog: deque[LeasedJob] = deque()

    @property
    def free(self) -> int:
        """How many slots are free; below zero when jobs wait."""
        return self.slots - self.job_count

    def submit(self, jobs: list[LeasedJob], *, first: bool = False) -> None:
        """Run these jobs as slots come free; with `first`, before those that wait."""
        self.job_count += len(jobs)
        if first:
            self._backlog.extendleft(reversed(jobs))
        else:
            self._backlog.extend(jobs)
        self._submitted(len(jobs))

    @abstractmethod
    def _submitted(self, count: int) -> None:
        """There are more jobs in the backlog."""

    def take_back(self) -> list[LeasedJob]:
        """Remove and return the jobs that have not started."""
        unstarted = self._take_back()
        self.job_count -= len(unstarted)
        for leased in unstarted:
            leased.slot_freed = True
        return unstarted

    @abstractmethod
    def _take_back(self) -> list[LeasedJob]: ...

    @abstractmethod
    def waits_since(self) -> float | None:
        """Since when the job at the head of the backlog waits; None if no job does."""

    @abstractmethod
    def close(self) -> None:
        """End the coroutines or threads of the slots."""

    def exit_if_forked(self) -> None:
        """End a fork of this process that returned from a handler; the worker itself continues."""
        if Forks.count != self._forks:
            log.error("a handler forked and its fork returned; the fork ends here")
            self._environment.exit_now(70)

    def _end(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        """The handler has ended: its slot is free. A batch has one slot."""
        if leased.batch is None or leased.batch[0] is leased:
            self.job_count -= 1
        leased.slot_freed = True
        self.on_end(leased, settlement)


# --- coroutines ----------------------------------------------------------------------------------


class _OnLoop(AttemptRunner):
    """Attempts of coroutine functions, on the event loop."""

    awaits = True
    closed = False

    def raised(self, leased: LeasedJob, error: BaseException, seconds: float) -> Settlement | None:
        if self.closed and isinstance(error, asyncio.CancelledError):
            raise error  # the executor is being closed
        if isinstance(error, asyncio.CancelledError) and leased.stop is None:
            culprit = misused_since(leased.started_at or 0.0)
            if culprit not in (None, leased.job.id):
                return self.attempt(leased).cancelled_by(culprit)
        return super().raised(leased, error, seconds)


class Coroutines(Executor):
    """Runs `async def` handlers in long-lived runner coroutines.

    One asyncio task per job would cost as much as all other work for the job. A runner ends after a
    handler that has changed its context variables or cancelled it; a new runner replaces it.
    """

    def __init__(self, slots: int, app: Client, worker: str, environment: Environment) -> None:
        super().__init__(slots, app, worker, environment)
        self._attempts = _OnLoop(app, worker, environment)
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._runners: dict[asyncio.Task[None], None] = {}  # in order: a simulation repeats it
        self._clean = copy_context()

    def _submitted(self, count: int) -> None:
        for _ in range(min(count, self.slots)):
            if self._wake_runner():
                continue
            if len(self._runners) >= self.slots:
                break
            self._start_runner()

    def _wake_runner(self) -> bool:
        while self._sleepers:
            sleeper = self._sleepers.popleft()
            if not sleeper.done():  # done if an earlier handler has cancelled its runner
                sleeper.set_result(None)
                return True
        return False

    def _start_runner(self) -> None:
        runner = asyncio.create_task(self._run(), context=self._clean.copy())
        self._runners[runner] = None
        runner.add_done_callback(self._runner_ended)

    def _runner_ended(self, runner: "asyncio.Task[None]") -> None:
        self._runners.pop(runner, None)
        if self._backlog and not self._attempts.closed:
            self._start_runner()

    def _take_back(self) -> list[LeasedJob]:
        unstarted = list(self._backlog)
        self._backlog.clear()
        return unstarted

    def waits_since(self) -> float | None:
        return self._backlog[0].waits_since if self._backlog else None

    def close(self) -> None:
        self._attempts.closed = True
        for runner in self._runners:
            runner.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        runner = asyncio.current_task()
        assert runner is not None
        attempts, jobs = self._attempts, 0
        while not attempts.closed:
            while not self._backlog:
                sleeper: asyncio.Future[None] = loop.create_future()
                self._sleepers.append(sleeper)
                await sleeper
                jobs = 0
            leased = self._backlog.popleft()
            if leased.batch is not None:
                await self._run_batch(leased.batch, runner.cancel)
            else:
                leased.stop_now = runner.cancel
                try:
                    settlement = await attempts.run(leased)
                finally:
                    leased.stop_now = None
                if Forks.count != self._forks:
                    self.exit_if_forked()
                self._end(leased, settlement)
            if runner.cancelling() or self._has_changed_context():
                return
            jobs += 1
            if jobs >= JOBS_WITHOUT_YIELD:
                jobs = 0
                await asyncio.sleep(0)

    async def _run_batch(self, members: list[LeasedJob], stop_now: Callable[[], object]) -> None:
        stop_when_all_must(members, stop_now)
        try:
            ended = await run_batch(
                self._attempts, members, app=self._app, worker=self._worker,
                monotonic=self._environment.monotonic,
            )  # fmt: skip
        finally:
            for leased in members:
                leased.stop_now = None
        if Forks.count != self._forks:
            self.exit_if_forked()
        for leased, settlement in ended:
            self._end(leased, settlement)

    def _has_changed_context(self) -> bool:
        """Has a handler left context variables behind? (Takes 0.1 microseconds.)"""
        try:
            return copy_context() != self._clean
        except Exception:  # noqa: BLE001 - values that cannot be compared
            return True


# --- threads -------------------------------------------------------------------------------------


class InThreads(Executor):
    """An executor with a thread per slot.

    Each thread takes jobs from the backlog, one after the other, and reports to the event loop.
    """

    def __init__(self, slots: int, app: Client, worker: str, environment: Environment) -> None:
        super().__init__(slots, app, worker, environment)
        self._permits = environment.permits()
        """One for each job in the backlog: a thread takes a permit, then a job."""
        self._threads: list[Thread] = []
        self._ended: deque[tuple[LeasedJob, Settlement | None]] = deque()
        self._loop_woken = False
        self._closed = False
        self._clean = copy_context()
        self._loop = asyncio.get_running_loop()

    def _submitted(self, count: int) -> None:
        for _ in range(count):
            self._permits.put(None)
        while len(self._threads) < min(self.slots, self.job_count):
            number = len(self._threads)
            body = partial(self._run, number)
            thread = self._environment.thread(body, f"tenure-handler-{number}")
            self._threads.append(thread)
            thread.start()

    def _take_back(self) -> list[LeasedJob]:
        unstarted = []
        with suppress(IndexError):  # the threads take jobs meanwhile
            while True:
                unstarted.append(self._backlog.popleft())
        return unstarted

    def waits_since(self) -> float | None:
        try:
            return self._backlog[0].waits_since
        except IndexError:
            return None

    def close(self) -> None:
        self._closed = True
        for _ in self._threads:
            self._permits.put(None)

    def _run(self, number: int) -> None:
        """The body of one thread."""
        while True:
            self._permits.get()
            if self._closed:
                self._thread_ends(number)
                return
            try:
                leased = self._backlog.popleft()
            except IndexError:
                continue  # it was taken back
            if leased.batch is not None:
                self._run_batch(leased.batch)
                continue
            try:
                settlement = self._clean.copy().run(self._attempt, leased, number)
            except BaseException as error:  # noqa: BLE001 - the thread must not end
                settlement = self._failed(leased, error)
            if Forks.count != self._forks:
                self.exit_if_forked()
            self._report(leased, settlement)

    def _run_batch(self, members: list[LeasedJob]) -> None:
        try:
            ended = self._clean.copy().run(self._batch, members)
        except BaseException as error:  # noqa: BLE001 - the thread must not end
            ended = [(leased, self._failed(leased, error)) for leased in members]
        if Forks.count != self._forks:
            self.exit_if_forked()
        for leased, settlement in ended:
            self._report(leased, settlement)

    def _batch(self, members: list[LeasedJob]) -> list[Ended]:
        """Run a batch in this thread."""
        raise NotImplementedError  # tasks with isolation="process" have no batches

    def _failed(self, leased: LeasedJob, error: BaseException) -> Settlement | None:
        """An error of the worker itself ends the attempt, but not the thread."""
        job = leased.job
        log.error(
            "the worker failed at job %d of %s; it continues", job.id, job.task, exc_info=error
        )
        seconds = leased.seconds_run(self._environment.monotonic())
        attempt = Attempt.of(leased, self._environment.random)
        return attempt.raised(error, seconds, leased.stop_reason())

    def _report(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        self._ended.append((leased, settlement))
        if not self._loop_woken:  # one wake-up for all attempts that end until the loop runs
            self._loop_woken = True
            try:
                self._loop.call_soon_threadsafe(self._hear)
            except RuntimeError:
                self._closed = True  # the event loop is closed; the jobs' leases will expire

    def _hear(self) -> None:
        self._loop_woken = False
        while self._ended:
            self._end(*self._ended.popleft())

    @abstractmethod
    def _attempt(self, leased: LeasedJob, number: int) -> Settlement | None:
        """Run one job in this thread."""

    def _thread_ends(self, number: int) -> None:
        """Called in each thread before it ends."""


class Threads(InThreads):
    """Runs `def` handlers."""

    def __init__(self, slots: int, app: Client, worker: str, environment: Environment) -> None:
        super().__init__(slots, app, worker, environment)
        self._attempts = _InThread(app, worker, environment)

    def _attempt(self, leased: LeasedJob, number: int) -> Settlement | None:  # noqa: ARG002
        return drive(self._attempts.run(leased))

    def _batch(self, members: list[LeasedJob]) -> list[Ended]:
        return drive(
            run_batch(
                self._attempts, members, app=self._app, worker=self._worker,
                monotonic=self._environment.monotonic,
            )
        )  # fmt: skip


class _InThread(AttemptRunner):
    """Attempts of plain functions, in a thread."""

    def raised(self, leased: LeasedJob, error: BaseException, seconds: float) -> Settlement | None:
        # A thread is not interrupted by a shutdown. What it raises then is its own failure, unless
        # it asked whether to stop.
        stop = leased.stop_reason()
        if stop is Stop.SHUTDOWN and not isinstance(error, WorkerStopping):
            stop = None
        return self.attempt(leased).raised(error, seconds, stop)
