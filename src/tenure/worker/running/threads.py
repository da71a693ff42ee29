"""Executors with a thread per slot; and the executor of `def` handlers.

Each thread takes jobs from the backlog, one after the other, and reports to the event loop.
"""

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from functools import partial

from tenure.client import Client
from tenure.rules.lifecycle import Settlement
from tenure.store.session import drive
from tenure.worker.environment import Environment, Thread
from tenure.worker.leases import LeasedJob, Stop
from tenure.worker.running.attempt import Attempt
from tenure.worker.running.executor import Executor, Forks
from tenure.worker.running.run import AttemptRunner

log = logging.getLogger("tenure.worker")


class InThreads(Executor):
    """An executor with a thread per slot."""

    def __init__(self, slots: int, app: Client, worker: str, environment: Environment) -> None:
        super().__init__(slots, app, worker, environment)
        self._backlog: deque[LeasedJob] = deque()
        self._permits = environment.permits()
        """One for each job in the backlog: a thread takes a permit, then a job."""
        self._threads: list[Thread] = []
        self._ended: deque[tuple[LeasedJob, Settlement | None]] = deque()
        self._loop_woken = False
        self._closed = False
        self._clean = copy_context()
        self._loop = asyncio.get_running_loop()

    def _submit(self, jobs: list[LeasedJob]) -> None:
        self._backlog.extend(jobs)
        for _ in jobs:
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
            return self._backlog[0].taken_at
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
            try:
                settlement = self._clean.copy().run(self._attempt, leased, number)
            except BaseException as error:  # noqa: BLE001 - the thread must not end
                settlement = self._failed(leased, error)
            if Forks.count != self._forks:
                self.exit_if_forked()
            self._report(leased, settlement)

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


class _InThread(AttemptRunner):
    """Attempts of plain functions, in a thread."""

    def raised(self, leased: LeasedJob, error: BaseException, seconds: float) -> Settlement | None:
        # A thread is not told about a shutdown: what it raises then is its own failure.
        stop = leased.stop_reason()
        stop = None if stop is Stop.SHUTDOWN else stop
        return self.attempt(leased).raised(error, seconds, stop)
