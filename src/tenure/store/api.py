"""The store as callers see it, in two colours with the same names: `Store` and `AsyncStore`.

    store = open_store("sqlite:///jobs.db")            # or postgresql://user@host/database
    [job] = store.enqueue([NewJob(task="app.send", args=encode({"to": "me"}))])
    for lease in store.claim("worker-1", {"default": 100}): ...

An operation is an `async def` over a `Scope`. `Operations` lists them all. A `Store` runs one to
its end, an `AsyncStore` awaits it:

    class Operations:                       # the base of `Store` and `AsyncStore`
        get = operation(look.get)           # blocks on a `Store`, a coroutine on an `AsyncStore`

    class Client:
        get, get_async = both(look.get)     # both under one roof

A procedure is an `async def` that runs several operations, such as waiting for a job. It takes a
runner, which is a store of either colour. If the runner blocks, nothing in the procedure suspends,
and `drive` runs it to its end.
"""

import asyncio
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, Self, TypeAlias, cast, overload
from urllib.parse import urlsplit

from tenure.errors import ConfigError, InvalidInput, TenantMismatch
from tenure.rules.limits import MAX_NAME_LENGTH, check_text
from tenure.store.bell import Bell, OnCancel, Ring
from tenure.store.feed import hooks
from tenure.store.feed import readers as feed
from tenure.store.gates import limits
from tenure.store.gates import look as gate_look
from tenure.store.jobs import bulk, named_keys, operate
from tenure.store.jobs import sweep as leases
from tenure.store.jobs.claim import claim, held, peek
from tenure.store.jobs.enqueue import enqueue
from tenure.store.jobs.expire import expire
from tenure.store.jobs.notes import annotate, report_progress, save_checkpoint, start_once
from tenure.store.jobs.replay import replay as replay_job
from tenure.store.jobs.settle import settle
from tenure.store.jobs.steps import record_step
from tenure.store.lending import (
    AsyncTransaction,
    InThread,
    Transaction,
    async_transaction,
    refuse_inside,
    transaction,
)
from tenure.store.look import facts, find, health
from tenure.store.look import jobs as look
from tenure.store.look import workers as presence
from tenure.store.look.idle import is_idle
from tenure.store.prune import prune as prune_store
from tenure.store.schedules import change as schedules
from tenure.store.schedules.fire import fire
from tenure.store.session import P, R, Scope, Session, drive, for_all_tenants
from tenure.store.sqlite.threads import WRITING_THREADS, GatheringScope, Line, Threads, Writer
from tenure.store.statistics import depth as depths
from tenure.store.statistics.look import statistics
from tenure.store.statistics.write import add_statistics
from tenure.store.url import open_session
from tenure.store.workflows import act
from tenure.store.workflows import look as workflow_look
from tenure.store.workflows.add import enqueue_workflow
from tenure.store.workflows.grow import grow_workflow
from tenure.store.workflows.stop import heal_workflows

CLIENT_CONNECTIONS = 4

Operation = Callable[Concatenate[Scope, P], Coroutine[Any, Any, R]]


class BlockingRunner(ABC):
    """Runs operations for callers in threads."""

    @abstractmethod
    def run(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation to its end."""


class AsyncRunner(ABC):
    """Runs operations for callers on an event loop."""

    @abstractmethod
    async def run(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation."""


Runner: TypeAlias = BlockingRunner | AsyncRunner


async def run_on(
    runner: Runner, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """For procedures: run one operation on a store of either colour."""
    if isinstance(runner, AsyncRunner):
        return await runner.run(operation, *args, **kwargs)
    return runner.run(operation, *args, **kwargs)


async def rest_on(runner: Runner, seconds: float) -> None:
    """For procedures: sleep as the callers of this store may."""
    if isinstance(runner, AsyncRunner):
        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)


Body = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
BlockingMethod = Callable[Concatenate[Any, P], R]
AsyncMethod = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)


def _methods(
    body: Body[P, R], run: str, run_async: str
) -> tuple[BlockingMethod[P, R], AsyncMethod[P, R]]:
    """Methods with the parameters and the docstring of `body`, which they hand to `self`'s method
    of this name."""

    signature = inspect.signature(body)
    _, *params = signature.parameters.values()
    shown = signature.replace(parameters=[_SELF, *params])

    @wraps(body)
    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        returned: R = getattr(self, run)(body, *args, **kwargs)
        return returned

    @wraps(body)
    async def awaiting(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        returned: R = await getattr(self, run_async)(body, *args, **kwargs)
        return returned

    for method in (blocking, awaiting):
        vars(method)["__signature__"] = shown  # callers have `self` where `body` has its scope
    return blocking, awaiting


def both(body: Body[P, R]) -> tuple[BlockingMethod[P, R], AsyncMethod[P, R]]:
    """The methods `x` and `x_async` of a class that has `_run` and `_run_async`."""
    return _methods(body, "_run", "_run_async")


class operation(Generic[P, R]):  # noqa: N801 - in a class it reads like `property`
    """A method of both kinds of store: it blocks on a `Store`; on an `AsyncStore` it is awaited.

    `reads`: the operation writes nothing.
    """

    def __init__(self, body: Operation[P, R], *, reads: bool = False) -> None:
        self.__doc__ = body.__doc__
        self.body = body
        self.reads = reads
        self._blocking, self._awaiting = _methods(body, "run", "run")

    @overload
    def __get__(self, runner: BlockingRunner, owner: type[Any]) -> Callable[P, R]: ...
    @overload
    def __get__(
        self, runner: AsyncRunner, owner: type[Any]
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, runner: None, owner: type[BlockingRunner]) -> BlockingMethod[P, R]: ...
    @overload
    def __get__(self, runner: None, owner: type[AsyncRunner]) -> AsyncMethod[P, R]: ...
    def __get__(self, runner: Runner | None, owner: type[Any]) -> Any:
        method: Any = self._awaiting if issubclass(owner, AsyncRunner) else self._blocking
        return method.__get__(runner, owner)


# --- all operations -------------------------------------------------------------------------------


async def _migrate(scope: Scope) -> int:
    """Bring the schema up to date, one process at a time. Returns its version."""
    return await scope.session.migrate()


class Operations:
    """What `Store` and `AsyncStore` can do."""

    enqueue = operation(enqueue)
    claim = operation(claim)
    held = operation(held, reads=True)
    extend = operation(leases.extend)
    settle = operation(settle)
    report_progress = operation(report_progress)
    save_checkpoint = operation(save_checkpoint)
    annotate = operation(annotate)
    start_once = operation(start_once)
    record_step = operation(record_step)
    peek = operation(peek, reads=True)
    is_idle = operation(is_idle, reads=True)
    promote = operation(leases.promote)
    sweep = operation(leases.sweep)
    expire = operation(expire)

    cancel = operation(operate.cancel)
    hold = operation(operate.hold)
    unhold = operation(operate.unhold)
    move = operation(operate.move)
    replay = operation(replay_job)
    delete = operation(operate.delete)
    get_by_key = operation(named_keys.get_by_key, reads=True)
    free_key = operation(named_keys.free_key)
    cancel_many = operation(bulk.cancel_many)
    hold_many = operation(bulk.hold_many)
    unhold_many = operation(bulk.unhold_many)
    move_many = operation(bulk.move_many)
    replay_many = operation(bulk.replay_many)
    delete_many = operation(bulk.delete_many)
    pause = operation(operate.pause)
    resume = operation(operate.resume)
    prune = operation(prune_store)

    get = operation(look.get, reads=True)
    list_jobs = operation(find.list_jobs, reads=True)
    timeline = operation(look.timeline, reads=True)
    attempts = operation(look.attempts, reads=True)
    progress = operation(look.progress, reads=True)
    progress_many = operation(look.progress_many, reads=True)
    steps = operation(look.steps, reads=True)
    count_live = operation(look.count_live, reads=True)
    count_finished = operation(look.count_finished, reads=True)
    oldest_ready = operation(look.oldest_ready, reads=True)
    paused_queues = operation(look.paused_queues, reads=True)
    about = operation(look.about, reads=True)
    missing_tables = operation(look.missing_tables, reads=True)
    why = operation(facts.why, reads=True)
    gate_wait = operation(facts.gate_wait, reads=True)
    health_facts = operation(health.health_facts, reads=True)
    storage_trouble = operation(health.storage_trouble, reads=True)

    add_statistics = operation(add_statistics)
    statistics = operation(statistics, reads=True)
    sample_depth = operation(depths.sample_depth)
    depth = operation(depths.depth, reads=True)

    announce = operation(presence.announce)
    retire = operation(presence.retire)
    workers = operation(presence.workers, reads=True)

    declare_gates = operation(limits.declare_gates)
    set_gate = operation(limits.set_gate)
    reset_gate = operation(limits.reset_gate)
    gates = operation(gate_look.gates, reads=True)
    gate_lines = operation(gate_look.gate_lines, reads=True)
    heal_gates = operation(limits.heal_gates)

    fire = operation(fire)
    declare_schedules = operation(schedules.declare_schedules)
    add_schedule = operation(schedules.add_schedule)
    edit_schedule = operation(schedules.edit_schedule)
    pause_schedule = operation(schedules.pause_schedule)
    resume_schedule = operation(schedules.resume_schedule)
    trigger_schedule = operation(schedules.trigger_schedule)
    remove_schedule = operation(schedules.remove_schedule)
    get_schedule = operation(schedules.get_schedule, reads=True)
    list_schedules = operation(schedules.list_schedules, reads=True)
    schedule_runs = operation(schedules.schedule_runs, reads=True)

    enqueue_workflow = operation(enqueue_workflow)
    grow_workflow = operation(grow_workflow)
    get_workflow = operation(workflow_look.get_workflow, reads=True)
    list_workflows = operation(workflow_look.list_workflows, reads=True)
    list_nodes = operation(workflow_look.list_nodes, reads=True)
    node_named = operation(workflow_look.node_named, reads=True)
    parent_ends = operation(workflow_look.parent_ends, reads=True)
    workflow_of = operation(workflow_look.workflow_of, reads=True)
    cancel_workflow = operation(act.cancel_workflow)
    pause_workflow = operation(act.pause_workflow)
    resume_workflow = operation(act.resume_workflow)
    heal_workflows = operation(heal_workflows)

    add_reader = operation(feed.add_reader)
    read_feed = operation(feed.read_feed)
    move_reader = operation(feed.move_reader)
    remove_reader = operation(feed.remove_reader)
    readers = operation(feed.readers, reads=True)
    declare_hooks = operation(hooks.declare_hooks)
    failure_hooks = operation(hooks.failure_hooks, reads=True)
    remove_hook = operation(hooks.remove_hook)

    migrate = operation(_migrate)


READERS = frozenset(
    each.body for each in vars(Operations).values() if isinstance(each, operation) and each.reads
) | {workflow_look.has_ended, look.was_issued}
"""The operations that write nothing."""


# --- the two stores -------------------------------------------------------------------------------


async def _close(scope: Scope) -> None:
    """Close every connection."""
    await scope.session.aclose()


_GATHERED: frozenset[Callable[..., Any]] = frozenset({enqueue})
"""Only the transaction of these goes to a thread, together with those of other tasks."""


def _line_of(operation: Callable[..., Any]) -> Line:
    return "reading" if operation in READERS or operation is _close else "writing"


class Store(Operations, BlockingRunner):
    """Jobs on one database, for callers in threads. Safe to share between threads."""

    def __init__(self, session: Session, tenant: str | None = None) -> None:
        self._scope = Scope(session, tenant)

    def run(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation of `tenure.store` to its end."""
        session = self._scope.session
        if session.lent and kwargs.get("on") is None and operation not in READERS:
            refuse_inside(session)
        return drive(operation(self._scope, *args, **kwargs))

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction of the store, with a connection for statements of your own.

        Commits at the end of the `with` block, and rolls back when an error leaves it. Pass it as
        `on=` to operations that shall be part of it.
        """
        session = self._scope.session
        return transaction(session, session.lend)

    def close(self) -> None:
        """Close every connection. A store that is closed twice stays closed."""
        self.run(_close)

    def in_threads(self, *, most: int = WRITING_THREADS, owns_session: bool = True) -> "AsyncStore":
        """The same store for callers on an event loop: its operations run in threads.

        At most `most` threads write. Closing the new store closes this one too, unless
        `owns_session` is False.
        """
        session = self._scope.session
        threads = Threads(cast(Writer, session), most)
        return AsyncStore(session, self._scope.tenant, threads, owns_session=owns_session)

    def bell(self, ring: Ring, on_cancel: OnCancel | None = None) -> Bell:
        """A bell that calls `ring`, from its own thread, when there may be new work.

        It calls `on_cancel` with the ids of running jobs that were asked to stop, or with None for
        perhaps any job. Both are hints: poll as well. Start it, and stop it before you close the
        store.
        """
        return _bell(self._scope, ring, on_cancel)

    def for_tenant(self, tenant: str) -> "Store":
        """The same store for one tenant: it may use its own jobs and read global ones.

        A store of one tenant cannot become that of another one: `TenantMismatch`.
        """
        return Store(self._scope.session, _checked_tenant(tenant, self._scope.tenant))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncStore(Operations, AsyncRunner):
    """Jobs on one database, for callers on an event loop."""

    def __init__(
        self,
        session: Session,
        tenant: str | None = None,
        threads: Threads | None = None,
        *,
        owns_session: bool = True,
    ) -> None:
        self._scope = Scope(session, tenant, suspends=True)
        self._threads = threads
        self._gathering = None if threads is None else GatheringScope(self._scope, threads)
        self._owns_session = owns_session

    async def run(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation of `tenure.store`."""
        on, session = kwargs.get("on"), self._scope.session
        if session.lent and on is None and operation not in READERS:
            refuse_inside(session)
        if operation in _GATHERED and self._gathering is not None and on is None:
            return await operation(self._gathering, *args, **kwargs)
        pool = None if self._threads is None else self._threads.of(_line_of(operation))
        if pool is None and not self._owns_session:
            raise InvalidInput("this store is closed; open another one")
        if pool is None or on is not None:  # the caller's thread owns `on`
            return await operation(self._scope, *args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            pool, lambda: drive(operation(self._scope, *args, **kwargs))
        )

    def transaction(self) -> AbstractAsyncContextManager[AsyncTransaction]:
        """A transaction of the store, with a connection for statements of your own.

        Commits at the end of the `async with` block, and rolls back when an error leaves it. Pass
        it as `on=` to operations that shall be part of it.
        """
        session, threads = self._scope.session, self._threads
        if threads is None:
            return async_transaction(session, session.lend)
        if threads.of("writing") is None:
            raise InvalidInput("this store is closed; open another one")
        return async_transaction(session, lambda: InThread(session.lend()))

    async def close(self) -> None:
        """Close every connection. A store that is closed twice stays closed."""
        if self._owns_session:
            await self.run(_close)  # in the reading thread: not behind operations that write
        if self._threads is not None:
            self._threads.end()

    def bell(self, ring: Ring, on_cancel: OnCancel | None = None) -> Bell:
        """A bell that calls `ring`, from its own thread, when there may be new work.

        It calls `on_cancel` with the ids of running jobs that were asked to stop, or with None for
        perhaps any job. Both are hints: poll as well. Start it, and stop it before you close the
        store.
        """
        return _bell(self._scope, ring, on_cancel)

    def for_tenant(self, tenant: str) -> "AsyncStore":
        """The same store for one tenant: it may use its own jobs and read global ones.

        A store of one tenant cannot become that of another one: `TenantMismatch`.
        """
        tenant = _checked_tenant(tenant, self._scope.tenant)
        return AsyncStore(
            self._scope.session, tenant, self._threads, owns_session=self._owns_session
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def open_store(
    url: str, *, connections: int = CLIENT_CONNECTIONS, give_up_seconds: float = 10.0
) -> Store:
    """Open `sqlite:///file.db` or `postgresql://...` for callers in threads."""
    return Store(open_session(url, "sync", connections, give_up_seconds))


def open_async_store(
    url: str, *, connections: int = CLIENT_CONNECTIONS, give_up_seconds: float = 10.0
) -> AsyncStore:
    """Open `sqlite:///file.db` or `postgresql://...` for callers on an event loop.

    Operations on SQLite run in threads of the store.
    """
    session = open_session(url, "async", connections, give_up_seconds)
    local = urlsplit(url).scheme == "sqlite"
    return AsyncStore(session, None, Threads(cast(Writer, session)) if local else None)


def _bell(scope: Scope, ring: Ring, on_cancel: OnCancel | None) -> Bell:
    for_all_tenants("bell", scope.tenant)
    return scope.session.bell(ring, on_cancel)


def _checked_tenant(tenant: str, bound: str | None) -> str:
    """A tenant that a store bound to `bound` (None: to no tenant) may be limited to."""
    check_text("tenant", tenant, MAX_NAME_LENGTH)
    if not tenant:
        raise ConfigError("tenant is empty; for global jobs use the store without for_tenant")
    if bound not in (None, tenant):
        raise TenantMismatch(
            f"this store works for tenant {bound!r} alone, not for {tenant!r}; use the store that "
            "it was made from"
        )
    return tenant
