"""The client: tasks on one side, a store on the other, and all that users do with jobs.

Every operation exists twice under one name, `get` and `get_async`, made from one body. No database
is touched before the first operation. Inside a handler the client works for the tenant of the
running job.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, cast

from tenure.errors import (
    ConfigError,
    InvalidInput,
    JobFailed,
    PayloadInvalid,
    TenantMismatch,
    WaitTimeout,
)
from tenure.hooks import Hooks
from tenure.rules.codec import decode
from tenure.rules.gates import GateWait, Limits
from tenure.rules.graph import NewWorkflow, OnFailure, WorkflowAdded
from tenure.rules.job import Enqueued, Job, State, WorkerSeen
from tenure.rules.limits import check_seconds
from tenure.rules.why import explain, told
from tenure.running import current
from tenure.schedules import Schedules
from tenure.sides import AwaitingSide, BlockingSide, Body, Operation, Side
from tenure.store import AsyncStore, Store, open_async_store, open_store
from tenure.store import prune as pruning
from tenure.store.api import check_scheme
from tenure.store.gates import limits
from tenure.store.gates import look as gate_looks
from tenure.store.jobs import operate
from tenure.store.jobs import replay as replaying
from tenure.store.jobs.enqueue import enqueue
from tenure.store.look import jobs as inspect
from tenure.store.look import workers as presence
from tenure.store.proxy import Watcher
from tenure.store.session import drive
from tenure.store.workflows import add as stored
from tenure.store.workflows import look as workflow_looks
from tenure.tasks import Call, Task, TaskSet
from tenure.workflow import Workflow, WorkflowRun

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.002, 0.25


def _blocking(operation: Operation[P, R]) -> "Callable[Concatenate[Client, P], R]":
    @wraps(operation)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> R:
        _refuse_handles(args)
        return self.store.run(operation, *args, **kwargs)

    return method


def _awaiting(
    operation: Operation[P, R],
) -> "Callable[Concatenate[Client, P], Coroutine[Any, Any, R]]":
    @wraps(operation)
    async def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> R:
        _refuse_handles(args)
        return await self.async_store.run(operation, *args, **kwargs)

    return method


def _blocking_body(body: Body[P, R]) -> "Callable[Concatenate[Client, P], R]":
    @wraps(body)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> R:
        _refuse_handles(args)
        return drive(body(BlockingSide(self.store), *args, **kwargs))

    return method


def _awaiting_body(
    body: Body[P, R],
) -> "Callable[Concatenate[Client, P], Coroutine[Any, Any, R]]":
    @wraps(body)
    async def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> R:
        _refuse_handles(args)
        return await body(AwaitingSide(self.async_store), *args, **kwargs)

    return method


def _refuse_handles(args: tuple[object, ...]) -> None:
    for each in args:
        if isinstance(each, Handle):
            raise InvalidInput(f"jobs are named by their id: give handle.id, which is {each.id}")


async def _wait(side: Side, id: int, *, timeout_seconds: float | None = None) -> Job:
    """The job, once it is finished. Raises `WaitTimeout` when that takes too long."""
    if timeout_seconds is not None:
        check_seconds("timeout_seconds", timeout_seconds)
    started, pause = time.monotonic(), FIRST_LOOK_SECONDS
    while True:
        job = await side.do(inspect.get, id)
        if job.state.final:
            return job
        if timeout_seconds is not None:
            left = timeout_seconds - (time.monotonic() - started)
            if left <= 0:
                why = await _why(side, id)
                raise WaitTimeout(f"job {id} is not finished after {timeout_seconds:g} s: {why}")
            pause = min(pause, left)
        await side.rest(pause)
        pause = min(pause * 1.5, LAST_LOOK_SECONDS)


async def _why(side: Side, id: int, *, now: datetime | None = None) -> str:
    """Where the job is, and why it does not run, in words."""
    job = await side.do(inspect.get, id, now=now)
    workers, paused, wait = None, None, None
    if job.queue_paused:
        queues = await side.do(inspect.paused_queues, now=now)
        paused = next((queue.reason for queue in queues if queue.name == job.queue), None)
    elif job.state in (State.SCHEDULED, State.QUEUED):
        workers = await _workers(side, now)
        wait = await _gate_wait(side, id, now) if job.gate is not None else None
    if now is None and job.state is State.SCHEDULED:
        now = (await side.do(inspect.about)).now  # due by the store's clock
    return explain(job, now or datetime.now(UTC), workers=workers, paused=paused, wait=wait)


async def _workers(side: Side, now: datetime | None) -> list[WorkerSeen] | None:
    """The workers, if the caller may see them: a tenant may not."""
    try:
        return await side.do(presence.workers, now=now)
    except TenantMismatch:
        return None


async def _gate_wait(side: Side, id: int, now: datetime | None) -> GateWait | None:
    """How it stands at its gate, if the caller may see that: others stand there, too."""
    try:
        return await side.do(gate_looks.gate_wait, id, now=now)
    except TenantMismatch:
        return None


class Handle(Generic[R_co]):
    """An enqueued job. `created` is False when a unique key was already held by this job."""

    __slots__ = ("_app", "_task", "created", "id", "same_args")

    def __init__(self, app: "Client", task: Task[..., R_co], enqueued: Enqueued) -> None:
        self.id = enqueued.id
        self.created = enqueued.created
        self.same_args = enqueued.same_args
        self._app = app
        self._task = task

    def __repr__(self) -> str:
        return f"<Handle of {self._task.name} {self.id}>"

    def wait(self, *, timeout_seconds: float | None = None) -> R_co:
        """The typed result. Raises `JobFailed` or `WaitTimeout`."""
        return self._result(self._app.wait(self.id, timeout_seconds=timeout_seconds))

    async def wait_async(self, *, timeout_seconds: float | None = None) -> R_co:
        """The typed result. Raises `JobFailed` or `WaitTimeout`."""
        return self._result(await self._app.wait_async(self.id, timeout_seconds=timeout_seconds))

    def _result(self, job: Job) -> R_co:
        if job.state is not State.SUCCEEDED:
            because = f" ({job.reason})" if job.reason else ""
            raise JobFailed(
                f"job {job.id} of {job.task} is {job.state}{because}{told(job)}",
                state=job.state,
                error=job.error,
            )
        try:
            return cast(R_co, decode(job.result or "null", self._task.signature.result_type))
        except PayloadInvalid as error:
            raise PayloadInvalid(
                f"job {job.id} of {job.task} succeeded, but its result is not what the task's "
                f"annotation says: {error}"
            ) from error


class Client(TaskSet):
    """Tasks and the database on which their jobs live. Safe to share between threads and loops.

    With `tenant`, everything enqueued is stamped with it and only its jobs are seen.
    """

    def __init__(
        self, url: str | None = None, *, tenant: str | None = None, give_up_seconds: float = 10.0
    ) -> None:
        super().__init__()
        if not (url is None or isinstance(url, str)):
            raise ConfigError(f"the URL of the database is a text, not {url!r:.60}")
        if url:
            check_scheme(url)
        if tenant == "":
            raise ConfigError("tenant is empty; leave it out for an application of all tenants")
        self._url = url
        self.tenant = tenant
        self._give_up_seconds = give_up_seconds
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._shared_async_store: AsyncStore | None = None
        self._async_stores: dict[asyncio.AbstractEventLoop, AsyncStore] = {}
        self._workers = 0
        self._undeclared: dict[str, Limits] = {}
        """What the database has not been told of gates, except by workers."""
        self.hooks = Hooks()
        self.watcher: Watcher | None = None
        """Sees every operation of this application. Set it before the first one."""

    get = _blocking(inspect.get)
    get_async = _awaiting(inspect.get)
    list_jobs = _blocking(inspect.list_jobs)
    list_jobs_async = _awaiting(inspect.list_jobs)
    timeline = _blocking(inspect.timeline)
    timeline_async = _awaiting(inspect.timeline)
    progress = _blocking(inspect.progress)
    progress_async = _awaiting(inspect.progress)
    steps = _blocking(inspect.steps)
    steps_async = _awaiting(inspect.steps)
    why = _blocking_body(_why)
    why_async = _awaiting_body(_why)
    wait = _blocking_body(_wait)
    wait_async = _awaiting_body(_wait)
    cancel = _blocking(operate.cancel)
    cancel_async = _awaiting(operate.cancel)
    replay = _blocking(replaying.replay)
    replay_async = _awaiting(replaying.replay)
    delete = _blocking(operate.delete)
    delete_async = _awaiting(operate.delete)
    hold = _blocking(operate.hold)
    hold_async = _awaiting(operate.hold)
    unhold = _blocking(operate.unhold)
    unhold_async = _awaiting(operate.unhold)
    move = _blocking(operate.move)
    move_async = _awaiting(operate.move)
    pause = _blocking(operate.pause)
    pause_async = _awaiting(operate.pause)
    resume = _blocking(operate.resume)
    resume_async = _awaiting(operate.resume)
    prune = _blocking(pruning.prune)
    prune_async = _awaiting(pruning.prune)
    count_live = _blocking(inspect.count_live)
    count_live_async = _awaiting(inspect.count_live)
    count_finished = _blocking(inspect.count_finished)
    count_finished_async = _awaiting(inspect.count_finished)
    oldest_ready = _blocking(inspect.oldest_ready)
    oldest_ready_async = _awaiting(inspect.oldest_ready)
    paused_queues = _blocking(inspect.paused_queues)
    paused_queues_async = _awaiting(inspect.paused_queues)
    about = _blocking(inspect.about)
    about_async = _awaiting(inspect.about)
    gates = _blocking(gate_looks.gates)
    gates_async = _awaiting(gate_looks.gates)
    gate_lines = _blocking(gate_looks.gate_lines)
    gate_lines_async = _awaiting(gate_looks.gate_lines)
    set_gate = _blocking(limits.set_gate)
    set_gate_async = _awaiting(limits.set_gate)
    reset_gate = _blocking(limits.reset_gate)
    reset_gate_async = _awaiting(limits.reset_gate)
    workflows = _blocking(workflow_looks.list_workflows)
    workflows_async = _awaiting(workflow_looks.list_workflows)
    workflow_of = _blocking(workflow_looks.workflow_of)
    workflow_of_async = _awaiting(workflow_looks.workflow_of)
    workers = _blocking(presence.workers)
    workers_async = _awaiting(presence.workers)

    def migrate(self) -> int:
        """Bring the schema up to date, one process at a time. A SQLite file does so by itself."""
        return self.whole_store.migrate()

    async def migrate_async(self) -> int:
        """Bring the schema up to date, one process at a time. A SQLite file does so by itself."""
        return await self.whole_async_store.migrate()

    def enqueue_many(
        self, calls: Iterable[Call[R]], *, on: object | None = None
    ) -> list[Handle[R]]:
        """Enqueue all of these calls, or none, in one transaction; one handle each, in order."""
        calls = _checked(calls)
        if self._undeclared and on is None:
            self._declare_gates()
        return self._handles(calls, self.store.run(enqueue, [c.job for c in calls], on=on))

    async def enqueue_many_async(
        self, calls: Iterable[Call[R]], *, on: object | None = None
    ) -> list[Handle[R]]:
        """Enqueue all of these calls, or none, in one transaction; one handle each, in order."""
        calls = _checked(calls)
        if self._undeclared and on is None:
            await self._declare_gates_async()
        enqueued = await self.async_store.run(enqueue, [c.job for c in calls], on=on)
        return self._handles(calls, enqueued)

    def _enqueue(self, call: Call[R], on: object | None) -> Handle[R]:
        """For a task: one call that it has just made."""
        if self._undeclared and on is None:
            self._declare_gates()
        [enqueued] = self.store.run(enqueue, [call.job], on=on)
        return Handle(self, call.task, enqueued)

    async def _enqueue_async(self, call: Call[R], on: object | None) -> Handle[R]:
        if self._undeclared and on is None:
            await self._declare_gates_async()
        [enqueued] = await self.async_store.run(enqueue, [call.job], on=on)
        return Handle(self, call.task, enqueued)

    def _declare_gates(self) -> None:
        """Before its first enqueue. Not in a caller's transaction, which may last for hours."""
        self.whole_store.declare_gates(self._undeclared)
        self._undeclared = {}

    async def _declare_gates_async(self) -> None:
        await self.whole_async_store.declare_gates(self._undeclared)
        self._undeclared = {}

    def _handles(self, calls: list[Call[R]], enqueued: list[Enqueued]) -> list[Handle[R]]:
        return [
            Handle(self, call.task, answer) for call, answer in zip(calls, enqueued, strict=True)
        ]

    def workflow(
        self,
        name: str,
        *,
        key: str | None = None,
        on_failure: OnFailure | Literal["finish", "stop"] = OnFailure.FINISH,
        finaliser: Call[Any] | None = None,
        tenant: str | None = None,
    ) -> Workflow:
        """A workflow to be filled with `add`, and then enqueued as one.

        While one of this name and key has not ended, to enqueue another one gives the first.
        `on_failure`: "finish" what does not depend on a failed node, or "stop" the rest.
        `finaliser` is a call that runs once all others have ended, however they did.
        """
        return Workflow(
            self, name, key=key, on_failure=on_failure, finaliser=finaliser, tenant=tenant
        )

    def workflow_run(self, id: int) -> WorkflowRun:
        """A workflow that was enqueued before, to wait for it, look at it or act on it."""
        return WorkflowRun(self, WorkflowAdded(id))

    def _add_workflow(self, new: NewWorkflow, on: object | None) -> WorkflowAdded:
        """For a workflow: what it has just been filled with."""
        if self._undeclared and on is None:
            self._declare_gates()
        return self.store.run(stored.enqueue_workflow, new, on=on)

    async def _add_workflow_async(self, new: NewWorkflow, on: object | None) -> WorkflowAdded:
        """For a workflow: what it has just been filled with."""
        if self._undeclared and on is None:
            await self._declare_gates_async()
        return await self.async_store.run(stored.enqueue_workflow, new, on=on)

    def handle(self, task: Task[..., R], id: int) -> Handle[R]:
        """The handle of a job that was enqueued elsewhere."""
        return Handle(self, task, Enqueued(id))

    def include(self, tasks: TaskSet) -> None:
        """Take in tasks and schedules that were declared without an application."""
        if not isinstance(tasks, TaskSet):
            raise InvalidInput(f"include takes a TaskSet, not {tasks!r:.60}")
        self._take_in(tasks)

    @property
    def schedules(self) -> Schedules:
        """Schedules: those of the code, and those that are added while it runs."""
        return Schedules(self)

    def add(self, task: Task[..., Any]) -> None:
        super().add(task)
        task.bind(self)
        self._undeclared = self.declared_gates.copy()

    @property
    def url(self) -> str:
        """The store's URL: the argument, or TENURE_URL."""
        url = self._url or os.environ.get("TENURE_URL")
        if not url:
            raise ConfigError(
                "no database is named: use Tenure('sqlite:///jobs.db') or set TENURE_URL"
            )
        return url

    def use_url(self, url: str) -> None:
        """Work on another database than the one named before; only while nothing is open."""
        if self._store is not None or len(self._async_stores):
            raise InvalidInput(
                "the database is open already; choose another one before its first use"
            )
        self._url = url

    @property
    def store(self) -> Store:
        """The store for callers in threads, as the tenant at hand may see it."""
        tenant = self._tenant_at_hand()
        return self.whole_store if tenant is None else self.whole_store.for_tenant(tenant)

    @property
    def async_store(self) -> AsyncStore:
        """The store for callers on the running event loop, as the tenant at hand may see it."""
        tenant = self._tenant_at_hand()
        store = self.whole_async_store
        return store if tenant is None else store.for_tenant(tenant)

    @property
    def whole_store(self) -> Store:
        """The store of all tenants for callers in threads, opened when first asked for."""
        if (open_already := self._store) is not None:
            return open_already
        with self._lock:
            if self._store is None:
                store = open_store(self.url, give_up_seconds=self._give_up_seconds)
                self._store = self.watcher.watch(store) if self.watcher else store
                self._undeclared = self.declared_gates.copy()
            return self._store

    @property
    def whole_async_store(self) -> AsyncStore:
        """The store of all tenants for callers on the running event loop.

        A SQLite file is opened once for both colours; PostgreSQL connections belong to one loop.
        """
        if (shared := self._shared_async_store) is not None:
            return shared
        if self.is_local:
            store = self.whole_store
            with self._lock:
                if self._shared_async_store is None:
                    self._shared_async_store = store.in_threads()
                return self._shared_async_store
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._async_stores:
                self._close_ended_loops()
                opened = open_async_store(self.url, give_up_seconds=self._give_up_seconds)
                opened = self.watcher.watch_async(opened) if self.watcher else opened
                self._async_stores[loop] = opened
                self._undeclared = self.declared_gates.copy()
            return self._async_stores[loop]

    def _close_ended_loops(self) -> None:
        """Close the connections of loops that ended without doing so, such as `asyncio.run`'s."""
        for loop in [loop for loop in self._async_stores if loop.is_closed()]:
            drive(self._async_stores.pop(loop).close())  # does not suspend on PostgreSQL

    @contextmanager
    def on_trial(self, watcher: Watcher, url: str | None = None) -> Iterator[None]:
        """For tests: all stores pass through a watcher, on another database if one is named.

        Closed before and after: the application is then as it was.
        """
        self.close()
        before = (self.watcher, self._url, self._async_stores)
        self.watcher, self._url, self._async_stores = watcher, url or self._url, {}
        try:
            yield
        finally:
            self.close()
            for store in self._async_stores.values():
                drive(store.close())  # does not suspend on PostgreSQL
            self.watcher, self._url, self._async_stores = before

    @property
    def is_local(self) -> bool:
        """Do the jobs live in a SQLite file?"""
        return self.url.startswith("sqlite:")

    def _tenant_at_hand(self) -> str | None:
        job = current()
        if job is None:
            return self.tenant
        theirs = job.tenant
        if theirs and self.tenant not in (None, theirs):
            raise TenantMismatch(
                f"a job of tenant {theirs!r} cannot use an application of tenant {self.tenant!r}"
            )
        return theirs or self.tenant

    @contextmanager
    def in_use_by_worker(self) -> Iterator[None]:
        """While a worker uses this application it cannot be closed, least of all by a handler."""
        self._workers += 1
        try:
            yield
        finally:
            self._workers -= 1

    def _refuse_if_in_use(self) -> None:
        if self._workers:
            raise InvalidInput("a worker of this application is at work; stop it first")

    def close(self) -> None:
        """Close the connections of callers in threads. The next operation opens new ones.

        A SQLite file is closed for all; on PostgreSQL a running event loop closes its own.
        """
        self._refuse_if_in_use()
        with self._lock:
            store, self._store = self._store, None
            self._shared_async_store = None
            self._close_ended_loops()
        if store is not None:
            store.close()

    async def close_async(self) -> None:
        """Close the connections of callers on this event loop, and of those in threads."""
        self._refuse_if_in_use()
        with self._lock:
            shared, self._shared_async_store = self._shared_async_store, None
        if shared is not None:
            await shared.close()
        await self.close_loop()
        self.close()

    async def close_loop(self) -> None:
        """Close the connections that belong to this event loop, before it ends."""
        with self._lock:
            store = self._async_stores.pop(asyncio.get_running_loop(), None)
        if store is not None:
            await store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close_async()


_CALLS = frozenset({Call})


def _checked(calls: Iterable[Call[R]]) -> list[Call[R]]:
    if isinstance(calls, Call):
        raise InvalidInput("enqueue_many takes a list of calls; put this one in brackets")
    calls = list(calls)
    if _CALLS.issuperset(map(type, calls)):
        return calls
    for call in calls:
        if not isinstance(call, Call):
            raise InvalidInput(
                f"enqueue_many takes calls such as task.call(...), not {type(call).__name__}"
            )
    return calls
