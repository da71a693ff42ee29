"""Where handlers run: coroutines on the loop, threads, or child processes (see children.py).

An executor has a number of slots and a line of jobs that wait for one. It is told of jobs on the
event loop and reports there the end of each attempt. A handler that does not stop when told keeps
its slot: it is stuck, and the worker says so.
"""

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from tenure.client import Client
from tenure.errors import PayloadInvalid
from tenure.rules.job import Claimed
from tenure.rules.lifecycle import Settlement, succeed
from tenure.running import reset_current, set_current
from tenure.tasks import Task
from tenure.worker.environment import Thread, World
from tenure.worker.leases import Holding, Stop
from tenure.worker.running.attempt import Attempt, undecodable
from tenure.worker.running.context import RunningHere, Signals

TURN_JOBS = 8
"""A runner that never has to wait gives the loop a turn after so many jobs. There may be a hundred
runners; with 64 jobs each a whole block ran while claims and settlements waited for the loop."""

log = logging.getLogger("tenure.worker")

Ended = Callable[[Holding, Settlement | None], None]

_forks = 0
"""How many forks lie between the first process and this one. (To ask for the process id after each
job would be a system call.)"""


def _forked() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Executor(ABC):
    """Runs one kind of handler. All methods are called on the event loop."""

    def __init__(self, slots: int, app: Client, worker: str, world: World, ended: Ended) -> None:
        self.slots = slots
        self.in_hand = 0
        """Jobs that run here or wait for a slot."""
        self._app = app
        self._worker = worker
        self._world = world
        self._ended = ended
        self._forks = _forks

    @property
    def free(self) -> int:
        """Slots that nothing runs in or waits for; below zero when more is waiting."""
        return self.slots - self.in_hand

    def submit(self, holdings: list[Holding]) -> None:
        """Take these jobs."""
        self.in_hand += len(holdings)
        self._submit(holdings)

    @abstractmethod
    def _submit(self, holdings: list[Holding]) -> None: ...

    def take_back(self) -> list[Holding]:
        """Give up the jobs that have not started."""
        left = self._take_back()
        self.in_hand -= len(left)
        for holding in left:
            holding.over = True
        return left

    @abstractmethod
    def _take_back(self) -> list[Holding]: ...

    @abstractmethod
    def waits_since(self) -> float | None:
        """When the job at the head of the line was claimed; None when nothing waits."""

    @abstractmethod
    def close(self) -> None:
        """Let the slots go."""

    def leave_if_forked(self) -> None:
        """A handler that forks must not come back here twice: its fork ends, the worker goes on."""
        if _forks != self._forks:
            log.error("a handler forked and its fork returned; the fork ends here")
            self._world.exit_now(70)

    def _attempted(self, holding: Holding) -> Attempt:
        return Attempt(holding.job, holding.task.options_of_task, self._world.random)

    def _over(self, holding: Holding, settlement: Settlement | None) -> None:
        """The handler has ended: its slot is free."""
        self.in_hand -= 1
        holding.over = True
        self._ended(holding, settlement)


class Coroutines(Executor):
    """`async def` handlers, on long-lived runner coroutines.

    A task per job would cost as much as the job's whole bookkeeping. A runner that a handler has
    stained, by a change of its context variables or by a cancellation, ends after that job.
    """

    def __init__(self, slots: int, app: Client, worker: str, world: World, ended: Ended) -> None:
        super().__init__(slots, app, worker, world, ended)
        self._line: deque[Holding] = deque()
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._runners: dict[asyncio.Task[None], None] = {}  # in order: a simulation repeats it
        self._clean = copy_context()
        self._closed = False

    def _submit(self, holdings: list[Holding]) -> None:
        self._line.extend(holdings)
        for _ in range(min(len(holdings), self.slots)):
            if self._wake_runner():
                continue
            if len(self._runners) >= self.slots:
                break
            self._start_runner()

    def _wake_runner(self) -> bool:
        while self._sleepers:
            sleeper = self._sleepers.popleft()
            if not sleeper.done():  # it is when a handler of long ago has cancelled its runner
                sleeper.set_result(None)
                return True
        return False

    def _start_runner(self) -> None:
        runner = asyncio.create_task(self._run(), context=self._clean.copy())
        self._runners[runner] = None
        runner.add_done_callback(self._runner_ended)

    def _runner_ended(self, runner: "asyncio.Task[None]") -> None:
        self._runners.pop(runner, None)
        if self._line and not self._closed:
            self._start_runner()

    def _take_back(self) -> list[Holding]:
        left = list(self._line)
        self._line.clear()
        return left

    def waits_since(self) -> float | None:
        return self._line[0].taken_at if self._line else None

    def close(self) -> None:
        self._closed = True
        for runner in self._runners:
            runner.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        runner = asyncio.current_task()
        assert runner is not None
        turns = 0
        while not self._closed:
            while not self._line:
                sleeper: asyncio.Future[None] = loop.create_future()
                self._sleepers.append(sleeper)
                await sleeper
                turns = 0
            holding = self._line.popleft()
            settlement = await self._attempt(holding, runner)
            if _forks != self._forks:
                self.leave_if_forked()
            self._over(holding, settlement)
            if runner.cancelling() or self._is_stained():
                return
            turns += 1
            if turns >= TURN_JOBS:
                turns = 0
                await asyncio.sleep(0)

    def _is_stained(self) -> bool:
        """Has a handler left context variables behind? (0.1 microseconds.)"""
        try:
            return copy_context() != self._clean
        except Exception:  # noqa: BLE001 - values that cannot be compared
            return True

    async def _attempt(self, holding: Holding, runner: "asyncio.Task[None]") -> Settlement | None:
        now, job = self._world.monotonic, holding.job
        if holding.stop is not None:
            return self._attempted(holding).stopped(holding.stop, 0.0)
        started = now()
        try:
            fn, args, kwargs, running = prepare(holding.task, job, holding, self._app, self._worker)
            holding.stop_now = runner.cancel
            holding.started_at = started
            before = set_current(running)
            try:
                if self._app.hooks.arounds:
                    with self._app.hooks.around(running):
                        result = await fn(*args, **kwargs)
                else:
                    result = await fn(*args, **kwargs)
            finally:
                reset_current(before)
            if result is None:
                return succeed(job, None, now() - started)
            return self._attempted(holding).returned(result, now() - started)
        except Undecodable as bad:
            return undecodable(job, bad.error)
        except BaseException as error:  # whatever a handler raises is its failure
            if self._closed and isinstance(error, asyncio.CancelledError):
                raise  # the worker itself is being torn down
            return self._attempted(holding).raised(error, now() - started, holding.asked_to())
        finally:
            holding.stop_now = None


class InThreads(Executor):
    """A thread per slot takes jobs from the line, one after the other, and tells the loop."""

    def __init__(self, slots: int, app: Client, worker: str, world: World, ended: Ended) -> None:
        super().__init__(slots, app, worker, world, ended)
        self._line: deque[Holding] = deque()
        self._permits = world.permits()
        """One for each job that was put in line: a thread takes a permit, then a job."""
        self._threads: list[Thread] = []
        self._news: deque[tuple[Holding, Settlement | None]] = deque()
        self._told = False
        self._closed = False
        self._clean = copy_context()
        self._loop = asyncio.get_running_loop()

    def _submit(self, holdings: list[Holding]) -> None:
        self._line.extend(holdings)
        for _ in holdings:
            self._permits.put(None)
        while len(self._threads) < min(self.slots, self.in_hand):
            number = len(self._threads)
            body = partial(self._run, number)
            thread = self._world.thread(body, f"tenure-handler-{number}")
            self._threads.append(thread)
            thread.start()

    def _take_back(self) -> list[Holding]:
        left = []
        while (holding := self._next()) is not None:
            left.append(holding)
        return left

    def waits_since(self) -> float | None:
        try:
            return self._line[0].taken_at
        except IndexError:
            return None

    def close(self) -> None:
        self._closed = True
        for _ in self._threads:
            self._permits.put(None)

    def _next(self) -> Holding | None:
        try:
            return self._line.popleft()
        except IndexError:
            return None

    def _run(self, number: int) -> None:
        """The life of one thread."""
        while True:
            self._permits.get()
            if self._closed:
                self._leave(number)
                return
            holding = self._next()
            if holding is not None:  # None: it was taken back
                try:
                    settlement = self._clean.copy().run(self._attempt, holding, number)
                except BaseException as error:  # noqa: BLE001 - the thread must not end
                    settlement = self._failed(holding, error)
                self.leave_if_forked()
                self._report(holding, settlement)

    def _failed(self, holding: Holding, error: BaseException) -> Settlement | None:
        """An error of our own ends the attempt, and never the thread."""
        job = holding.job
        log.error("the worker failed at job %d of %s; it goes on", job.id, job.task, exc_info=error)
        seconds = self._seconds_of(holding)
        return self._attempted(holding).raised(error, seconds, holding.asked_to())

    def _seconds_of(self, holding: Holding) -> float:
        """How long its handler has run."""
        started = holding.started_at
        return 0.0 if started is None else self._world.monotonic() - started

    def _report(self, holding: Holding, settlement: Settlement | None) -> None:
        self._news.append((holding, settlement))
        if not self._told:  # one wake-up for all that ended meanwhile
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._hear)
            except RuntimeError:
                self._closed = True  # the worker has gone; leases bring the jobs back

    def _hear(self) -> None:
        self._told = False
        while self._news:
            self._over(*self._news.popleft())

    @abstractmethod
    def _attempt(self, holding: Holding, number: int) -> Settlement | None:
        """Run one job in this thread."""

    def _leave(self, number: int) -> None:
        """This thread ends."""


class Threads(InThreads):
    """`def` handlers, in threads of their own."""

    def _attempt(self, holding: Holding, number: int) -> Settlement | None:  # noqa: ARG002
        now, job = self._world.monotonic, holding.job
        if holding.stop is not None:
            return self._attempted(holding).stopped(holding.stop, 0.0)
        started = holding.started_at = now()
        try:
            fn, args, kwargs, running = prepare(holding.task, job, holding, self._app, self._worker)
            set_current(running)  # in a context of its own: there is nothing to reset
            if self._app.hooks.arounds:
                with self._app.hooks.around(running):
                    result = fn(*args, **kwargs)
            else:
                result = fn(*args, **kwargs)
            if result is None:
                return succeed(job, None, now() - started)
            return self._attempted(holding).returned(result, now() - started)
        except Undecodable as bad:
            return undecodable(job, bad.error)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
            # Nobody tells a thread of a shutdown: what it raises then is its own failure.
            stop = holding.asked_to()
            stop = None if stop is Stop.SHUTDOWN else stop
            return self._attempted(holding).raised(error, now() - started, stop)


class Undecodable(Exception):
    """The stored arguments do not fit the task in this code."""

    def __init__(self, error: PayloadInvalid) -> None:
        self.error = error


def prepare(
    task: Task[..., Any], job: Claimed, signals: Signals, app: Client, worker: str
) -> tuple[Callable[..., Any], list[Any], dict[str, Any], RunningHere]:
    """The handler, its arguments, decoded where it runs, and the running job."""
    try:
        signature = task.signature
        args, kwargs = signature.unpack(job.args)
    except PayloadInvalid as error:
        raise Undecodable(error) from None
    running = RunningHere(job, signals, app, worker)
    if signature.wants_running:
        args.insert(0, running)
    return task.fn, args, kwargs, running
