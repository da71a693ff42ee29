"""The executor of `async def` handlers: long-lived runner coroutines on the event loop.

One asyncio task per job would cost as much as all other work for the job. A runner ends after a
handler that has changed its context variables or cancelled it; a new runner replaces it.
"""

import asyncio
from collections import deque
from contextvars import copy_context

from tenure.client import Client
from tenure.rules.lifecycle import Settlement
from tenure.worker.environment import Environment
from tenure.worker.leases import LeasedJob
from tenure.worker.running.executor import Executor, Forks
from tenure.worker.running.run import AttemptRunner

JOBS_WITHOUT_YIELD = 8
"""A runner that never has to wait yields to the event loop after this many jobs. There may be a
hundred runners; with 64 jobs each, a whole block ran before claims and settlements could."""


class _OnLoop(AttemptRunner):
    """Attempts of coroutine functions, on the event loop."""

    awaits = True
    closed = False

    def raised(self, leased: LeasedJob, error: BaseException, seconds: float) -> Settlement | None:
        if self.closed and isinstance(error, asyncio.CancelledError):
            raise error  # the executor is being closed
        return super().raised(leased, error, seconds)


class Coroutines(Executor):
    """Runs `async def` handlers."""

    def __init__(self, slots: int, app: Client, worker: str, environment: Environment) -> None:
        super().__init__(slots, app, worker, environment)
        self._attempts = _OnLoop(app, worker, environment)
        self._backlog: deque[LeasedJob] = deque()
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._runners: dict[asyncio.Task[None], None] = {}  # in order: a simulation repeats it
        self._clean = copy_context()

    def _submit(self, jobs: list[LeasedJob]) -> None:
        self._backlog.extend(jobs)
        for _ in range(min(len(jobs), self.slots)):
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
        return self._backlog[0].taken_at if self._backlog else None

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

    def _has_changed_context(self) -> bool:
        """Has a handler left context variables behind? (Takes 0.1 microseconds.)"""
        try:
            return copy_context() != self._clean
        except Exception:  # noqa: BLE001 - values that cannot be compared
            return True
