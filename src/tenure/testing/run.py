"""Runs jobs at once, one after the other, in the test's own process.

    claim -> the handler, in the caller's thread or loop -> settle -> read the job

`drain` runs functions in the caller's thread and coroutines on an event loop of its own. On a loop,
`drain_async` runs coroutines right there and functions in a thread, where they may block. There
are no child processes, heartbeats or timeouts.
"""

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from tenure.client import Client
from tenure.control import Control
from tenure.errors import InvalidInput, JobFailed, PayloadInvalid
from tenure.rules import lifecycle
from tenure.rules.claim import Claimed
from tenure.rules.job import Job, State
from tenure.rules.lifecycle import Settlement
from tenure.rules.limits import MIN_PRIORITY, JobId
from tenure.rules.why import last_error
from tenure.running import Flag
from tenure.store import Store
from tenure.store.session import drive
from tenure.tasks import Task
from tenure.testing.clock import Trial
from tenure.worker.environment import Environment
from tenure.worker.events import EventReporter
from tenure.worker.leases import LeasedJob
from tenure.worker.running.attempt import refused, unknown_task
from tenure.worker.running.run import AttemptRunner, confirm_completion
from tenure.worker.settings import WorkerSettings

R = TypeVar("R")

WORKER = "testing"
MAX_JOBS = 10_000
PAGE = 500


def drain(
    app: Client,
    *queues: str,
    raise_errors: bool = True,
    with_scheduled: bool = False,
    most: int = MAX_JOBS,
) -> list[Job]:
    """Run all ready jobs, and the jobs that they enqueue, until no job is ready.

    Without names, in all queues. Returns each job as it was after its run, in order. If a handler
    raises, its error is recorded with its job and then raised here, unless `raise_errors` is off;
    `Retry`, `Snooze`, `Skip` and `Cancel` are not errors. A job that is due later does not run:
    advance the clock, or let `with_scheduled` advance it until no job is scheduled.
    """
    __tracebackhide__ = True
    with _Here(app) as side:
        return drive(
            _drain(
                app, side, queues,
                raise_errors=raise_errors, with_scheduled=with_scheduled, most=most,
            )
        )  # fmt: skip


async def drain_async(
    app: Client,
    *queues: str,
    raise_errors: bool = True,
    with_scheduled: bool = False,
    most: int = MAX_JOBS,
) -> list[Job]:
    """`drain` for tests that run on an event loop."""
    __tracebackhide__ = True
    return await _drain(
        app, _OnLoop(), queues,
        raise_errors=raise_errors, with_scheduled=with_scheduled, most=most,
    )  # fmt: skip


def run_job(app: Client, id: JobId, *, raise_errors: bool = True) -> Job:
    """Run one ready job, before all others. Returns the job as it is after its run."""
    __tracebackhide__ = True
    with _Here(app) as side:
        return drive(_run_job(app, side, id, raise_errors))


async def run_job_async(app: Client, id: JobId, *, raise_errors: bool = True) -> Job:
    """`run_job` for tests that run on an event loop."""
    __tracebackhide__ = True
    return await _run_job(app, _OnLoop(), id, raise_errors)


class _Side(ABC):
    """Where attempts run. Each gets a context of its own, as in a worker."""

    @abstractmethod
    async def run(self, body: Coroutine[Any, Any, R], *, on_loop: bool) -> R:
        """Run a coroutine; without `on_loop` it never suspends, and may block."""


class _Here(_Side):
    """In the caller's thread, which runs no event loop. Coroutine functions get a loop.

    This side never suspends its caller, so `drive` can run a whole drain.
    """

    def __init__(self, app: Client) -> None:
        self._app = app
        self._runner = asyncio.Runner()
        self._has_loop = False

    def __enter__(self) -> Self:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self
        raise InvalidInput(
            "an event loop runs here: use drain_async, run_job_async or enqueue_async"
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._has_loop:
            with self._runner:
                self._runner.run(self._app.close_loop())

    async def run(self, body: Coroutine[Any, Any, R], *, on_loop: bool) -> R:
        if not on_loop:
            return copy_context().run(drive, body)
        self._has_loop = True
        return _result(*self._runner.run(_caught(body), context=copy_context()))


class _OnLoop(_Side):
    """On the running event loop; functions, which may block, in a thread."""

    async def run(self, body: Coroutine[Any, Any, R], *, on_loop: bool) -> R:
        if not on_loop:
            return await asyncio.to_thread(drive, body)
        # A task of its own: a handler that cancels itself does not cancel the test.
        task = asyncio.create_task(_caught(body))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # the test is cancelled, and with it the handler
            task.cancel()
            await asyncio.wait([task])
            raise
        return _result(*task.result())


async def _caught(body: Coroutine[Any, Any, R]) -> tuple[R | None, BaseException | None]:
    """Keep SystemExit and the like from ending the event loop."""
    try:
        return await body, None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - raised by `_result`
        return None, error


def _result(result: R | None, error: BaseException | None) -> R:
    if error is not None:
        raise error
    return cast(R, result)


class _InTest(AttemptRunner):
    """Runs one attempt in a test, and keeps its error for the test."""

    def __init__(self, app: Client, task: Task[..., Any], environment: Environment) -> None:
        super().__init__(app, WORKER, environment)
        self.awaits = inspect.iscoroutinefunction(task.fn)
        self.error: BaseException | None = None

    def raised(self, leased: LeasedJob, error: BaseException, seconds: float) -> Settlement | None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        if not isinstance(error, Control):
            self.error = error
        return super().raised(leased, error, seconds)

    def undecodable(self, leased: LeasedJob, error: PayloadInvalid) -> Settlement:
        self.error = error
        return super().undecodable(leased, error)


async def _drain(
    app: Client,
    side: _Side,
    queues: tuple[str, ...],
    *,
    raise_errors: bool,
    with_scheduled: bool,
    most: int,
) -> list[Job]:
    __tracebackhide__ = True
    seen: list[Job] = []
    async with _Bench(app, side, raise_errors) as bench:
        bench.promote()
        while (job := bench.claim(queues, with_scheduled)) is not None:
            if len(seen) == most:
                bench.give_back(job)
                raise InvalidInput(
                    f"{most} jobs have run and there are more; does one enqueue itself for ever?"
                )
            seen.append(await bench.run(job))
    return seen


async def _run_job(app: Client, side: _Side, id: JobId, raise_errors: bool) -> Job:
    __tracebackhide__ = True
    async with _Bench(app, side, raise_errors) as bench:
        before = app.get(id)
        try:
            return await bench.run(bench.claim_one(before))
        finally:
            bench.restore_priority(before)


class _Bench:
    """Claims jobs, runs them, and settles them, like a worker."""

    def __init__(self, app: Client, side: _Side, raise_errors: bool) -> None:
        self._app = app
        self._side = side
        self._raise_errors = raise_errors
        self._store = app.whole_store
        self._environment = _TestEnvironment(self._store)
        settings = WorkerSettings(log_errors="type", log_successes=False)
        self._reporter = EventReporter(app.hooks, WORKER, settings, self._environment)
        self._set_up = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._set_up and self._app.hooks.stops:
            await self._side.run(self._app.hooks.tear_down(), on_loop=True)

    def claim(self, queues: tuple[str, ...], with_scheduled: bool) -> Claimed | None:
        """The next ready job; with `with_scheduled`, advance the clock to the next due one."""
        while (job := self._next(queues)) is None:
            if self.promote():
                continue
            due = self._next_due(queues) if with_scheduled else None
            if due is None:
                return None
            _clock_of(self._app).advance_to(due)
        return job

    def promote(self) -> int:
        """Make due jobs ready. Returns how many."""
        promoted = 0
        while some := self._store.promote():
            promoted += some
        return promoted

    def _next(self, queues: tuple[str, ...]) -> Claimed | None:
        ready = sorted(self._store.oldest_ready(), key=lambda oldest: (oldest.since, oldest.queue))
        for queue in [oldest.queue for oldest in ready] + self._at_gates():
            if (not queues or queue in queues) and (job := self._claim(queue)) is not None:
                return job
        return None

    def _claim(self, queue: str) -> Claimed | None:
        """One job. Claims again while jobs at gates that may not pass hide others."""
        more = True
        while more:
            claim = self._store.claim(WORKER, {queue: 1}, lease_seconds=3600)
            for lease in claim:
                return lease.jobs[0]
            more = queue in claim.more
        return None

    def _at_gates(self) -> list[str]:
        """Queues in which jobs may wait at gates; those are not ready until they pass."""
        if not self._app.declared_gates:
            return []
        counts = self._store.count_live()
        return sorted({count.queue for count in counts if count.state is State.QUEUED})

    def _next_due(self, queues: tuple[str, ...]) -> datetime | None:
        times: list[datetime] = []
        after: str | None = None
        while True:
            page = self._store.list_jobs(states=[State.SCHEDULED], limit=PAGE, after=after)
            times += [
                job.due_at
                for job in page.jobs
                if job.due_at is not None and (not queues or job.queue in queues)
            ]
            after = page.next
            if after is None:
                return min(times, default=None)

    def claim_one(self, job: Job) -> Claimed:
        """This job, even if others are before it in its queue."""
        self.promote()
        id, job = job.id, self._store.get(job.id)
        if job.state is not State.QUEUED or job.held or job.queue_paused:
            why = self._app.why(id, now=self._environment.now())
            raise InvalidInput(f"job {id} cannot run now: {why}")
        queued = self._store.list_jobs(states=[State.QUEUED], queue=job.queue, limit=2)
        if queued.next is not None or len(queued.jobs) > 1:
            self._store.move(id, priority=MIN_PRIORITY)
        others = []
        try:
            while True:
                claimed = self._next((job.queue,))
                if claimed is None:
                    why = self._app.why(id, now=self._environment.now())
                    raise InvalidInput(f"job {id} cannot run now: {why}")
                if claimed.id == id:
                    return claimed
                others.append(claimed)  # has the same priority and came first
        finally:
            for other in others:
                self.give_back(other)

    def restore_priority(self, before: Job) -> None:
        """Undo the move to the head of the queue, for a job that will run again."""
        now = self._store.get(before.id)
        if not now.state.final and now.priority != before.priority:
            self._store.move(before.id, priority=before.priority)

    def give_back(self, job: Claimed) -> None:
        """Put back a job that will not run, uncharged."""
        self._store.settle(WORKER, [lifecycle.release(job, "not run")], done_leases=[job.lease_id])

    async def run(self, job: Claimed) -> Job:
        """Run one job and settle it. With `raise_errors`, raises the error of its handler."""
        __tracebackhide__ = True
        try:
            await self._begin()
            error = await self._run(job)
        except BaseException:  # Ctrl-C, or the test was cancelled: the attempt did not end
            self.give_back(job)
            raise
        seen = self._store.get(job.id)
        if self._raise_errors:
            if error is None and seen.state is State.FAILED:
                error = JobFailed(f"failed{last_error(seen)}", state=seen.state, error=seen.error)
            if error is not None:
                error.add_note(f"in job {job.id} of {job.task}, attempt {job.attempts + 1}")
                raise error
        return seen

    async def _begin(self) -> None:
        if not self._set_up:
            tasks = [task.name for task in self._app]
            self._store.declare_hooks(self._app.declared_hooks(), tasks=tasks)
        if not self._set_up and self._app.hooks.starts:
            await self._side.run(self._app.hooks.set_up(), on_loop=True)
        self._set_up = True

    async def _run(self, job: Claimed) -> BaseException | None:
        """Returns the error of the handler, except `Retry`, `Snooze`, `Skip` and `Cancel`."""
        task = self._app.find(job.task)
        if task is None:
            self._store.settle(WORKER, [unknown_task(job)], done_leases=[job.lease_id])
            known = ", ".join(sorted(task.name for task in self._app)) or "none"
            return InvalidInput(f"the application has no task {job.task}; its tasks are {known}")
        leased = LeasedJob(job, task, 0.0)
        leased.cancelled = _CancelRequested(partial(_is_cancel_requested, self._store, job))
        self._reporter.event("started", job)
        attempts = _InTest(self._app, task, self._environment)
        settlement = await self._side.run(attempts.run(leased), on_loop=attempts.awaits)
        if leased.completed:
            _, settlement = await confirm_completion(
                leased, settlement, look=self._look, worker=WORKER, reporter=self._reporter,
                environment=self._environment,
            )  # fmt: skip
        self._settle(leased, settlement)
        return attempts.error

    async def _look(self, id: int) -> Job:
        return self._store.get(id)

    def _settle(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        job, store = leased.job, self._store
        bool(leased.cancelled)  # look now: later the job has another token
        if settlement is None:
            store.settle(WORKER, [], done_leases=[job.lease_id])
            return
        told = leased.with_unsent(settlement)
        [answer] = store.settle(WORKER, [told], done_leases=[job.lease_id])
        self._reporter.settled(leased, settlement, answer)
        failure = refused(job, settlement, answer)
        if failure is not None:
            self._settle(leased, failure)


class _TestEnvironment(Environment):
    """No randomness, and the time of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def random(self) -> float:
        return 0.5

    def now(self) -> datetime:
        return self._store.about().now


class _CancelRequested(Flag):
    """Reads the job each time: there are no heartbeats that would set it."""

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look

    def __bool__(self) -> bool:
        if not self._set and self._look():
            self.set()
        return self._set

    def wait(self, timeout_seconds: float | None = None) -> bool:  # noqa: ARG002
        return bool(self)  # no other code runs meanwhile


def _is_cancel_requested(store: Store, job: Claimed) -> bool:
    seen = store.get(job.id)
    return seen.cancel_requested and seen.token == job.token


def _clock_of(app: Client) -> Any:
    if not isinstance(app.wrapper, Trial):
        raise InvalidInput(
            "with_scheduled moves the clock: use it within frozen(app) or inline(app)"
        )
    return app.wrapper.clock
