"""Jobs run here and now, one after the other. To run them is to be a worker for a moment.

    claim -> the handler, where the caller is -> settle -> look at what became of it

`drain` runs functions in the caller's thread and coroutines on an event loop of its own. On a loop,
`drain_async` runs coroutines right there and functions in a thread, where they may block. There
are no child processes, heartbeats or timeouts.
"""

import asyncio
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from tenure.client import Client
from tenure.control import Control
from tenure.errors import InvalidInput, JobFailed, ValueRefused
from tenure.rules import lifecycle
from tenure.rules.codec import encode_error
from tenure.rules.job import Claimed, Job, State
from tenure.rules.lifecycle import Outcome, Settlement
from tenure.rules.limits import MIN_PRIORITY
from tenure.rules.why import told
from tenure.running import Flag, running_as
from tenure.store import Store
from tenure.store.session import drive
from tenure.testing.clock import Trial
from tenure.worker.environment import World
from tenure.worker.events import Teller
from tenure.worker.leases import Holding
from tenure.worker.running.attempt import Attempt, undecodable, unknown_task
from tenure.worker.running.context import RunningHere
from tenure.worker.running.executors import Undecodable, prepare
from tenure.worker.settling.settler import REFUSED

R = TypeVar("R")
Ended = tuple[object, BaseException | None]
"""What a handler returned, or what it raised."""

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
    """Run everything that is ready, also what that enqueues, until nothing is.

    Without names, in all queues. Answers each job as it was after its run, in order. What a handler
    raises is recorded with its job, and then raised here, unless `raise_errors` is off; `Retry` and
    its like are not errors. A job that is due later is not run: advance the clock, or have
    `with_scheduled` do so, as far as it takes until nothing is scheduled any more.
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


def run_job(app: Client, id: int, *, raise_errors: bool = True) -> Job:
    """Run one job that is ready, before all others. Answers what became of it."""
    __tracebackhide__ = True
    with _Here(app) as side:
        return drive(_run_job(app, side, id, raise_errors))


async def run_job_async(app: Client, id: int, *, raise_errors: bool = True) -> Job:
    """`run_job` for tests that run on an event loop."""
    __tracebackhide__ = True
    return await _run_job(app, _OnLoop(), id, raise_errors)


class _Side(ABC):
    """Where handlers run. Each gets a context of its own, as in a worker."""

    @abstractmethod
    async def call(self, handler: Callable[[], object]) -> Ended:
        """Run a function."""

    @abstractmethod
    async def wait(self, handler: Callable[[], Coroutine[Any, Any, object]]) -> Ended:
        """Run a coroutine."""


class _Here(_Side):
    """In the caller's thread, which runs no event loop: so may functions, and async code gets one.

    Nothing here suspends, so `drive` runs a whole body.
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

    async def call(self, handler: Callable[[], object]) -> Ended:
        return copy_context().run(_ended, handler)

    async def wait(self, handler: Callable[[], Coroutine[Any, Any, object]]) -> Ended:
        self._has_loop = True
        return self._runner.run(_ended_async(handler), context=copy_context())


class _OnLoop(_Side):
    """On the running event loop; functions, which may block, in a thread."""

    async def call(self, handler: Callable[[], object]) -> Ended:
        return await asyncio.to_thread(_ended, handler)

    async def wait(self, handler: Callable[[], Coroutine[Any, Any, object]]) -> Ended:
        # A task of its own: a handler that cancels itself does not cancel the test.
        task = asyncio.create_task(_ended_async(handler))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # the test is cancelled, and with it the handler
            task.cancel()
            await asyncio.wait([task])
            raise
        return task.result()


def _ended(handler: Callable[[], object]) -> Ended:
    try:
        return handler(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
        return None, error


async def _ended_async(handler: Callable[[], Coroutine[Any, Any, object]]) -> Ended:
    try:
        return await handler(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
        return None, error


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


async def _run_job(app: Client, side: _Side, id: int, raise_errors: bool) -> Job:
    __tracebackhide__ = True
    async with _Bench(app, side, raise_errors) as bench:
        before = app.get(id)
        try:
            return await bench.run(bench.claim_one(before))
        finally:
            bench.restore_priority(before)


class _Bench:
    """A worker for a moment: what it claims it runs, and settles."""

    def __init__(self, app: Client, side: _Side, raise_errors: bool) -> None:
        self._app = app
        self._side = side
        self._raise_errors = raise_errors
        self._store = app.whole_store
        self._world = _TestWorld(self._store)
        self._tell = Teller(app.hooks, WORKER, self._world)
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
            await self._side.wait(self._app.hooks.tear_down)

    def claim(self, queues: tuple[str, ...], with_scheduled: bool) -> Claimed | None:
        """The next job, if need be the next one in time."""
        while (job := self._next(queues)) is None:
            if self.promote():
                continue
            due = self._next_due(queues) if with_scheduled else None
            if due is None:
                return None
            _clock_of(self._app).advance_to(due)
        return job

    def promote(self) -> int:
        """Put what has come due at the end of its line. Answers how many."""
        promoted = 0
        while some := self._store.promote():
            promoted += some
        return promoted

    def _next(self, queues: tuple[str, ...]) -> Claimed | None:
        ready = sorted(self._store.oldest_ready(), key=lambda line: (line.since, line.queue))
        for queue in [line.queue for line in ready] + self._at_gates():
            if (not queues or queue in queues) and (job := self._claim(queue)) is not None:
                return job
        return None

    def _claim(self, queue: str) -> Claimed | None:
        """One job, behind however many at gates who cannot pass."""
        more = {queue}
        while more:
            more.clear()
            for lease in self._store.claim(WORKER, {queue: 1}, lease_seconds=3600, more=more):
                return lease.jobs[0]
        return None

    def _at_gates(self) -> list[str]:
        """Queues in which jobs may wait at gates: they are not ready before they pass."""
        if not self._app.declared_gates:
            return []
        counts = self._store.count_live()
        return sorted({count.queue for count in counts if count.state is State.QUEUED})

    def _next_due(self, queues: tuple[str, ...]) -> datetime | None:
        times: list[datetime] = []
        before: int | None = None
        while True:
            page = self._store.list_jobs(states=[State.SCHEDULED], limit=PAGE, before=before)
            times += [
                job.due_at
                for job in page.jobs
                if job.due_at is not None and (not queues or job.queue in queues)
            ]
            before = page.next
            if before is None:
                return min(times, default=None)

    def claim_one(self, job: Job) -> Claimed:
        """This job, whatever stands before it."""
        self.promote()
        id, job = job.id, self._store.get(job.id)
        if job.state is not State.QUEUED or job.held or job.queue_paused:
            why = self._app.why(id, now=self._world.now())
            raise InvalidInput(f"job {id} cannot run now: {why}")
        line = self._store.list_jobs(states=[State.QUEUED], queue=job.queue, limit=2)
        if line.next is not None or len(line.jobs) > 1:
            self._store.move(id, priority=MIN_PRIORITY)
        others = []
        try:
            while True:
                claimed = self._next((job.queue,))
                if claimed is None:
                    why = self._app.why(id, now=self._world.now())
                    raise InvalidInput(f"job {id} cannot run now: {why}")
                if claimed.id == id:
                    return claimed
                others.append(claimed)  # was first before, too
        finally:
            for other in others:
                self.give_back(other)

    def restore_priority(self, before: Job) -> None:
        """A job that was moved to the head of its line, and is to run again, has its own place."""
        now = self._store.get(before.id)
        if not now.state.final and now.priority != before.priority:
            self._store.move(before.id, priority=before.priority)

    def give_back(self, job: Claimed) -> None:
        """Put a job that will not run in line again, uncharged."""
        self._store.settle(WORKER, [lifecycle.release(job, "not run")], done_leases=[job.lease_id])

    async def run(self, job: Claimed) -> Job:
        """Run one job, and record how it ended. Raises what its handler raised, if asked to."""
        __tracebackhide__ = True
        try:
            await self._begin()
            error = await self._run(job)
        except BaseException:  # Ctrl-C, or a test that was cancelled: nothing ended
            self.give_back(job)
            raise
        seen = self._store.get(job.id)
        if self._raise_errors:
            if error is None and seen.state is State.FAILED:
                error = JobFailed(f"failed{told(seen)}", state=seen.state, error=seen.error)
            if error is not None:
                error.add_note(f"in job {job.id} of {job.task}, attempt {job.attempts + 1}")
                raise error
        return seen

    async def _begin(self) -> None:
        if not self._set_up and self._app.hooks.starts:
            _, error = await self._side.wait(self._app.hooks.set_up)
            if error is not None:
                raise error
        self._set_up = True

    async def _run(self, job: Claimed) -> BaseException | None:
        """Answers what the handler raised, unless that is one of its answers."""
        task = self._app.find(job.task)
        if task is None:
            self._store.settle(WORKER, [unknown_task(job)], done_leases=[job.lease_id])
            known = ", ".join(sorted(task.name for task in self._app)) or "none"
            return InvalidInput(f"the application has no task {job.task}; its tasks are {known}")
        holding = Holding(job, task, 0.0)
        holding.cancelled = _Asked(partial(_is_asked_to_stop, self._store, job))
        self._tell.event("started", job)
        started = time.monotonic()
        attempt = Attempt(job, task.options_of_task, self._world.random)
        try:
            fn, args, kwargs, running = prepare(task, job, holding, self._app, WORKER)
        except Undecodable as bad:
            self._settle(holding, undecodable(job, bad.error))
            return bad.error
        handler = partial(fn, *args, **kwargs)
        result, error = await self._call(handler, running, inspect.iscoroutinefunction(fn))
        seconds = time.monotonic() - started
        if error is None:
            settlement = attempt.returned(result, seconds)
        else:
            settlement = attempt.raised(error, seconds)
        if holding.completed:
            settlement = self._confirmed(job, settlement, attempt, seconds)
        self._settle(holding, settlement)
        return None if isinstance(error, Control) else error

    async def _call(
        self, handler: Callable[..., Any], running: RunningHere, is_async: bool
    ) -> Ended:
        hooks = self._app.hooks

        def call() -> object:
            with running_as(running), hooks.around(running):
                return handler()

        async def wait() -> object:
            with running_as(running), hooks.around(running):
                return await handler()

        return await (self._side.wait(wait) if is_async else self._side.call(call))

    def _confirmed(
        self, job: Claimed, settlement: Settlement | None, attempt: Attempt, seconds: float
    ) -> Settlement | None:
        """The handler completed its job in a transaction of its own. Did that commit?"""
        seen = self._store.get(job.id)
        if seen.state.final and seen.token == job.token and seen.worker == WORKER:
            self._tell.event("succeeded", job)
            return None
        if settlement is not None and settlement.outcome is Outcome.SUCCEED:
            return attempt.not_committed(seconds)
        return settlement

    def _settle(self, holding: Holding, settlement: Settlement | None) -> None:
        job, store = holding.job, self._store
        bool(holding.cancelled)  # while it can still be seen
        if holding.progress is not None:
            store.report_progress(WORKER, [(job, *holding.progress)])
        if settlement is None:
            store.settle(WORKER, [], done_leases=[job.lease_id])
            return
        [answer] = store.settle(WORKER, [settlement], done_leases=[job.lease_id])
        self._tell.settled(holding, settlement, answer)
        if answer.error is not None and settlement.reason != REFUSED:
            error = encode_error(ValueRefused(answer.error))
            self._settle(holding, lifecycle.fail(job, error, REFUSED))


class _TestWorld(World):
    """No chance, and the store's time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def random(self) -> float:
        return 0.5

    def now(self) -> datetime:
        return self._store.about().now


class _Asked(Flag):
    """Looks whenever it is looked at: there are no heartbeats that would tell it."""

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look

    def __bool__(self) -> bool:
        if not self._set and self._look():
            self.set()
        return self._set

    def wait(self, timeout_seconds: float | None = None) -> bool:  # noqa: ARG002
        return bool(self)  # nobody else does anything meanwhile


def _is_asked_to_stop(store: Store, job: Claimed) -> bool:
    seen = store.get(job.id)
    return seen.cancel_requested and seen.token == job.token


def _clock_of(app: Client) -> Any:
    if not isinstance(app.watcher, Trial):
        raise InvalidInput(
            "with_scheduled moves the clock: use it within frozen(app) or inline(app)"
        )
    return app.watcher.clock
