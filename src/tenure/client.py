"""The client: tasks, the store of their jobs, and everything that users do with jobs.

Every operation exists as `get` and as `get_async`, made from one body. The first operation opens
the database. Inside a handler the client works for the tenant of the running job.
"""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar

from tenure.blocking import warn_of_blocking
from tenure.errors import (
    ConfigError,
    InvalidInput,
    JobGone,
    JobNotFound,
    NoSuchMethod,
    TenantMismatch,
)
from tenure.feed import follow_feed, follow_feed_async
from tenure.handle import Handle
from tenure.hooks import Hooks
from tenure.passwords import shown_url
from tenure.rules.ends import Ended
from tenure.rules.gates import Limits
from tenure.rules.graph import NewWorkflow, OnFailure, WorkflowAdded
from tenure.rules.job import Enqueued, Job
from tenure.rules.limits import JobId, Timeout, check_id, id_of, seconds_of
from tenure.rules.retention import Keep
from tenure.running import current, waiting_for
from tenure.schedules import Schedules
from tenure.store import AsyncStore, Store, open_async_store, open_store
from tenure.store.api import READERS, Operation, Runner, both, run_on
from tenure.store.feed import hooks as stored_hooks
from tenure.store.feed import readers as feed
from tenure.store.gates import limits
from tenure.store.gates import look as gate_look
from tenure.store.jobs import named_keys, operate
from tenure.store.jobs.enqueue import enqueue
from tenure.store.jobs.replay import replay as replay_job
from tenure.store.lending import AsyncTransaction, Transaction
from tenure.store.look import facts, find
from tenure.store.look import jobs as look
from tenure.store.look import workers as presence
from tenure.store.proxy import StoreWrapper
from tenure.store.prune import prune as prune_store
from tenure.store.session import drive, for_all_tenants
from tenure.store.sqlite.inspect_file import refuse_other_program, require_schema
from tenure.store.statistics import depth as depths
from tenure.store.statistics.look import statistics
from tenure.store.url import check_scheme, sqlite_driver, sqlite_path
from tenure.store.workflows import look as workflow_look
from tenure.store.workflows.add import enqueue_workflow
from tenure.tasks import Call, Task, TaskSet
from tenure.waiting import Rests, wait_until
from tenure.workflow import Workflow, WorkflowRun

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("tenure.client")

_ENQUEUE = ("add_job", "defer", "delay", "enqueue", "enqueue_async", "send", "send_task", "submit")
"""What other job queues call it."""
RESTS = Rests(first_seconds=0.002, longest_seconds=0.25)


async def _wait(runner: Runner, id: int, timeout_seconds: Timeout) -> Job:
    if timeout_seconds is not None:
        timeout_seconds = seconds_of(timeout_seconds)

    async def late() -> str:
        why = await run_on(runner, facts.why, id)
        return f"job {id} is not finished after {timeout_seconds:g} s: {why}"

    async def see() -> Job:
        try:
            return await run_on(runner, look.get, id)
        except JobNotFound:
            if not await run_on(runner, look.was_issued, id):
                raise
            raise JobGone(
                f"job {id} is no longer stored: it was pruned or deleted, or it has finished, and "
                "finished jobs of its task are not kept. To wait for such jobs, keep them: "
                "keep_succeeded_seconds and keep_other_seconds must not be 0"
            ) from None

    with waiting_for(id):
        return await wait_until(
            runner, see, lambda job: job.state.final,
            rests=RESTS, timeout_seconds=timeout_seconds, late=late,
        )  # fmt: skip


class Client(TaskSet):
    """Tasks and the database on which their jobs live. Safe to share between threads and loops.

    With `tenant`, every new job belongs to that tenant, and jobs of other tenants are not visible.
    """

    def __init__(
        self, url: str | None = None, *, tenant: str | None = None, give_up_seconds: float = 10.0
    ) -> None:
        super().__init__()
        if not (url is None or isinstance(url, str)):
            raise ConfigError(f"url must be a string, not {url!r:.60}")
        if url:
            check_scheme(url)
        if tenant == "":
            raise ConfigError("tenant is empty; leave it out for an application of all tenants")
        self._url = url
        self.url_in_code = url
        """The address that the code gives; TENURE_URL counts only without one."""
        self._warned = False
        self._tenant = tenant
        self._give_up_seconds = give_up_seconds
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._shared_async_store: AsyncStore | None = None
        self._async_stores: dict[asyncio.AbstractEventLoop, AsyncStore] = {}
        self._workers = 0
        self._undeclared: dict[str, Limits] = {}
        """The gates that this application still has to declare in the database."""
        self.module: str | None = None
        """The module that `tenure worker` was told to import: child processes import it too."""
        self.hooks = Hooks()
        self.keep: Mapping[str, Keep] | None = None
        """How long the worker that runs this application keeps finished jobs, by queue."""
        self.wrapper: StoreWrapper | None = None
        """Puts a proxy in front of each store. Set it before the first operation."""

    if not TYPE_CHECKING:  # type checkers find this mistake themselves

        def __getattr__(self, name: str) -> object:
            if name in _ENQUEUE:
                raise NoSuchMethod(
                    f"an application has no method {name!r}; write task.enqueue(...), or "
                    "app.enqueue_many([task.call(...), ...]) for many"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    get, get_async = both(look.get)
    list_jobs, list_jobs_async = both(find.list_jobs)
    timeline, timeline_async = both(look.timeline)
    attempts, attempts_async = both(look.attempts)
    progress, progress_async = both(look.progress)
    steps, steps_async = both(look.steps)
    why, why_async = both(facts.why)
    cancel, cancel_async = both(operate.cancel)
    replay, replay_async = both(replay_job)
    delete, delete_async = both(operate.delete)
    get_by_key, get_by_key_async = both(named_keys.get_by_key)
    free_key, free_key_async = both(named_keys.free_key)
    hold, hold_async = both(operate.hold)
    unhold, unhold_async = both(operate.unhold)
    move, move_async = both(operate.move)
    pause, pause_async = both(operate.pause)
    resume, resume_async = both(operate.resume)
    prune, prune_async = both(prune_store)
    count_live, count_live_async = both(look.count_live)
    count_finished, count_finished_async = both(look.count_finished)
    oldest_ready, oldest_ready_async = both(look.oldest_ready)
    paused_queues, paused_queues_async = both(look.paused_queues)
    statistics, statistics_async = both(statistics)
    depth, depth_async = both(depths.depth)
    sample_depth, sample_depth_async = both(depths.sample_depth)
    about, about_async = both(look.about)
    gates, gates_async = both(gate_look.gates)
    gate_lines, gate_lines_async = both(gate_look.gate_lines)
    set_gate, set_gate_async = both(limits.set_gate)
    reset_gate, reset_gate_async = both(limits.reset_gate)
    workflows, workflows_async = both(workflow_look.list_workflows)
    workflow_of, workflow_of_async = both(workflow_look.workflow_of)
    workers, workers_async = both(presence.workers)
    add_reader, add_reader_async = both(feed.add_reader)
    read_feed, read_feed_async = both(feed.read_feed)
    move_reader, move_reader_async = both(feed.move_reader)
    remove_reader, remove_reader_async = both(feed.remove_reader)
    readers, readers_async = both(feed.readers)
    failure_hooks, failure_hooks_async = both(stored_hooks.failure_hooks)
    remove_hook, remove_hook_async = both(stored_hooks.remove_hook)

    def _run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._store is None and operation in READERS:
            self._refuse_foreign_file()
        return self.store.run(operation, *args, **kwargs)

    async def _run_async(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._store is None and operation in READERS:
            self._refuse_foreign_file()
        return await self.async_store.run(operation, *args, **kwargs)

    def _refuse_foreign_file(self) -> None:
        """Before a look opens a SQLite file that has content: it must have Tenure's schema.

        To open it as a store would create tables in it. A missing or empty file is created.
        """
        if self.is_local:
            path = sqlite_path(self.url)
            if Path(path).is_file() and Path(path).stat().st_size:
                require_schema(path, sqlite_driver(self.url))

    def wait(self, id: JobId, *, timeout_seconds: Timeout = None) -> Job:
        """The job, once it is finished. Raises `WaitTimeout` when that takes too long, and
        `JobGone` if finished jobs of its task are not kept."""
        return drive(_wait(self.store, id_of(id), timeout_seconds))

    async def wait_async(self, id: JobId, *, timeout_seconds: Timeout = None) -> Job:
        """The job, once it is finished. Raises `WaitTimeout` when that takes too long, and
        `JobGone` if finished jobs of its task are not kept."""
        return await _wait(self.async_store, id_of(id), timeout_seconds)

    def feed(self, name: str, *, follow: bool = True, limit: int = 100) -> Iterator[Ended]:
        """The ends of jobs for this reader of the feed, in order, as they come.

        A reader that does not exist is added, and gets what ends from now on. It moves on after
        each page of up to `limit` ends: after a crash, those of the last page come again. Without
        `follow`, the loop ends when there is no more.
        """
        yield from follow_feed(lambda: self.store, name, wait=follow, limit=limit)

    async def feed_async(
        self, name: str, *, follow: bool = True, limit: int = 100
    ) -> AsyncIterator[Ended]:
        """The ends of jobs for this reader of the feed, in order, as they come.

        A reader that does not exist is added, and gets what ends from now on. It moves on after
        each page of up to `limit` ends: after a crash, those of the last page come again. Without
        `follow`, the loop ends when there is no more.
        """
        ends = follow_feed_async(lambda: self.async_store, name, wait=follow, limit=limit)
        async for end in ends:
            yield end

    def migrate(self) -> int:
        """Bring the schema up to date, one process at a time.

        A SQLite file of Tenure migrates itself. To a file of another program, this adds the tables.
        """
        return self._open(on_purpose=True).migrate()

    async def migrate_async(self) -> int:
        """Bring the schema up to date, one process at a time.

        A SQLite file of Tenure migrates itself. To a file of another program, this adds the tables.
        """
        if self.is_local:
            self._open(on_purpose=True)
        return await self._opened_async_store.migrate()

    def enqueue_many(
        self, calls: Iterable[Call[R]], *, on: object | None = None
    ) -> list[Handle[R]]:
        """Enqueue all of these calls in one transaction. Returns one handle per call, in order."""
        calls = _checked(calls)
        if self._undeclared and on is None:
            self._declare_gates()
        return self._handles(calls, self.store.run(enqueue, [c.job for c in calls], on=on))

    async def enqueue_many_async(
        self, calls: Iterable[Call[R]], *, on: object | None = None
    ) -> list[Handle[R]]:
        """Enqueue all of these calls in one transaction. Returns one handle per call, in order."""
        calls = _checked(calls)
        if self._undeclared and on is None:
            await self._declare_gates_async()
        enqueued = await self.async_store.run(enqueue, [c.job for c in calls], on=on)
        return self._handles(calls, enqueued)

    def _enqueue(self, call: Call[R], on: object | None) -> Handle[R]:
        """Enqueue one call of a task."""
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
        """Before the first enqueue; never in a caller's transaction, which may last for hours."""
        self._opened_store.declare_gates(self._undeclared)
        self._undeclared = {}

    async def _declare_gates_async(self) -> None:
        await self._opened_async_store.declare_gates(self._undeclared)
        self._undeclared = {}

    def _handles(self, calls: list[Call[R]], enqueued: list[Enqueued]) -> list[Handle[R]]:
        return [Handle(self, call.task, each) for call, each in zip(calls, enqueued, strict=True)]

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction on the database of this application, for rows of your own and jobs alike.

        Run statements of your own with `execute`, and pass it as `on=` to enqueue or to finish jobs
        in it. Commits at the end of the `with` block, and rolls back when an error leaves it.
        """
        if self._undeclared:
            self._declare_gates()
        with self._opened_store.transaction() as opened:
            yield opened

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[AsyncTransaction]:
        """`transaction` for async callers: `async with`, and await its methods."""
        if self._undeclared:
            await self._declare_gates_async()
        async with self._opened_async_store.transaction() as opened:
            yield opened

    def workflow(
        self,
        name: str,
        *,
        key: str | None = None,
        on_failure: OnFailure | Literal["finish", "stop"] = OnFailure.FINISH,
        finaliser: Call[Any] | None = None,
        tenant: str | None = None,
    ) -> Workflow:
        """A new workflow: fill it with `add`, then enqueue it as a whole.

        While a workflow with this name and key is unfinished, `enqueue` returns that workflow.
        `on_failure`: after a node has failed, "finish" the nodes that do not depend on it, or
        "stop" all others. `finaliser` is a call that runs after all other nodes have finished.
        """
        return Workflow(
            self, name, key=key, on_failure=on_failure, finaliser=finaliser, tenant=tenant
        )

    def workflow_run(self, id: int) -> WorkflowRun:
        """A workflow that was enqueued before: wait for it, inspect it or act on it."""
        check_id("the id of a workflow", id)
        return WorkflowRun(self, WorkflowAdded(id))

    def _add_workflow(self, new: NewWorkflow, on: object | None) -> WorkflowAdded:
        """Enqueue a workflow."""
        if self._undeclared and on is None:
            self._declare_gates()
        return self.store.run(enqueue_workflow, new, on=on)

    async def _add_workflow_async(self, new: NewWorkflow, on: object | None) -> WorkflowAdded:
        """Enqueue a workflow."""
        if self._undeclared and on is None:
            await self._declare_gates_async()
        return await self.async_store.run(enqueue_workflow, new, on=on)

    def handle(self, task: Task[..., R], id: JobId) -> Handle[R]:
        """The handle of a job that was enqueued before, perhaps by another process."""
        return Handle(self, task, Enqueued(id_of(id)))

    def include(self, tasks: TaskSet) -> None:
        """Add the tasks and schedules of a `TaskSet`, which knows no application."""
        if not isinstance(tasks, TaskSet):
            raise InvalidInput(f"include takes a TaskSet, not {tasks!r:.60}")
        self._take_in(tasks)

    @property
    def schedules(self) -> Schedules:
        """All schedules: those declared in code and those added at run time."""
        return Schedules(self)

    def add(self, task: Task[..., Any]) -> None:
        super().add(task)
        task.bind(self)
        self._undeclared = self.declared_gates.copy()

    @property
    def url(self) -> str:
        """The store's URL: that of `use_url` or the argument, else TENURE_URL."""
        named = os.environ.get("TENURE_URL")
        url = self._url or named
        if named and url and url != named and url == self.url_in_code and not self._warned:
            self._warned = True
            log.warning(
                "TENURE_URL names %s, but the code names %s, and the code wins; write Tenure() to "
                "use TENURE_URL", shown_url(named), shown_url(url),
            )  # fmt: skip
        if not url:
            raise ConfigError(
                "no database is given: use Tenure('sqlite:///jobs.db') or set TENURE_URL"
            )
        return url

    def use_url(self, url: str) -> None:
        """Use another database. Allowed only before the first operation, or after `close`."""
        if self._store is not None or len(self._async_stores):
            raise InvalidInput(
                "the database is already open; call use_url before the first operation"
            )
        self._url = url

    @property
    def store(self) -> Store:
        """The store for callers in threads, limited to the current tenant."""
        if asyncio._get_running_loop() is not None:
            warn_of_blocking()
        tenant = self._current_tenant()
        return self._opened_store if tenant is None else self._opened_store.for_tenant(tenant)

    @property
    def async_store(self) -> AsyncStore:
        """The store for callers on the running event loop, limited to the current tenant."""
        tenant = self._current_tenant()
        store = self._opened_async_store
        return store if tenant is None else store.for_tenant(tenant)

    @property
    def tenant(self) -> str | None:
        """The tenant that this application works for; None: for all tenants."""
        return self._tenant

    @property
    def whole_store(self) -> Store:
        """The store of all tenants for callers in threads. An application of one has none."""
        for_all_tenants("whole_store", self._tenant)
        return self._opened_store

    @property
    def whole_async_store(self) -> AsyncStore:
        """The store of all tenants for callers on the running event loop. An application of one
        tenant has none."""
        for_all_tenants("whole_async_store", self._tenant)
        return self._opened_async_store

    @property
    def _opened_store(self) -> Store:
        """The store of all tenants. The first access opens it."""
        if (open_already := self._store) is not None:
            return open_already
        return self._open()

    def _open(self, *, on_purpose: bool = False) -> Store:
        """Open the store. `on_purpose`: it may be a new file, or a file of another program."""
        with self._lock:
            if self._store is None:
                file = Path(sqlite_path(self.url)).absolute() if self.is_local else None
                is_new = file is not None and not file.exists()
                if not on_purpose:
                    self._refuse_other_program()
                store = open_store(self.url, give_up_seconds=self._give_up_seconds)
                self._store = self.wrapper.wrap(store) if self.wrapper else store
                self._undeclared = self.declared_gates.copy()
                if is_new and not (on_purpose or self._workers or self.wrapper):
                    log.warning("created %s, because there was no such file", file)
            return self._store

    def _refuse_other_program(self) -> None:
        if self.is_local:
            refuse_other_program(sqlite_path(self.url), sqlite_driver(self.url))

    @property
    def _opened_async_store(self) -> AsyncStore:
        """The store of all tenants for the running event loop.

        A SQLite file is opened once for both colours; PostgreSQL connections belong to one loop.
        """
        if (shared := self._shared_async_store) is not None:
            return shared
        if self.is_local:
            store = self._opened_store
            with self._lock:
                if self._shared_async_store is None:
                    self._shared_async_store = store.in_threads()
                return self._shared_async_store
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._async_stores:
                self._close_ended_loops()
                opened = open_async_store(self.url, give_up_seconds=self._give_up_seconds)
                opened = self.wrapper.wrap_async(opened) if self.wrapper else opened
                self._async_stores[loop] = opened
                self._undeclared = self.declared_gates.copy()
            return self._async_stores[loop]

    def _close_ended_loops(self) -> None:
        """Close the connections of event loops that have ended, such as those of `asyncio.run`."""
        for loop in [loop for loop in self._async_stores if loop.is_closed()]:
            drive(self._async_stores.pop(loop).close())  # does not suspend on PostgreSQL

    @contextmanager
    def on_trial(self, wrapper: StoreWrapper, url: str | None = None) -> Iterator[None]:
        """For tests: use wrapped stores, on another database if `url` is given.

        Closes the application before and after. Afterwards it is as it was before.
        """
        self.close()
        before = (self.wrapper, self._url, self._async_stores)
        self.wrapper, self._url, self._async_stores = wrapper, url or self._url, {}
        try:
            yield
        finally:
            self.close()
            for store in self._async_stores.values():
                drive(store.close())  # does not suspend on PostgreSQL
            self.wrapper, self._url, self._async_stores = before

    @property
    def is_local(self) -> bool:
        """Is the database a SQLite file?"""
        return self.url.startswith("sqlite:")

    def _current_tenant(self) -> str | None:
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
        """While a worker runs, nothing can close this application: no handler either."""
        self._workers += 1
        try:
            yield
        finally:
            self._workers -= 1

    def _refuse_if_in_use(self) -> None:
        if self._workers:
            raise InvalidInput("a worker of this application is running; stop it first")

    def close(self) -> None:
        """Close the connections of callers in threads. The next operation opens new ones.

        A SQLite file is closed for event loops too; on PostgreSQL each event loop closes its own
        connections.
        """
        self._refuse_if_in_use()
        with self._lock:
            store, self._store = self._store, None
            shared, self._shared_async_store = self._shared_async_store, None
            self._close_ended_loops()
        if store is None:
            return
        try:
            store.close()
        except BaseException:  # it is open, such as inside of transaction()
            with self._lock:
                if self._store is None:
                    self._store, self._shared_async_store = store, shared
            raise

    async def close_async(self) -> None:
        """Close the connections of this event loop and of callers in threads."""
        self._refuse_if_in_use()
        with self._lock:
            shared, self._shared_async_store = self._shared_async_store, None
        if shared is not None:
            await shared.close()
        await self.close_loop()
        self.close()

    async def close_loop(self) -> None:
        """Close the connections that belong to this event loop, before it ends."""
        loop = asyncio.get_running_loop()
        with self._lock:
            store = self._async_stores.pop(loop, None)
        if store is None:
            return
        try:
            await store.close()
        except BaseException:  # it is open, such as inside of transaction_async()
            with self._lock:
                self._async_stores.setdefault(loop, store)
            raise

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
        raise InvalidInput("enqueue_many takes a list of calls; put this call in brackets")
    calls = list(calls)
    if _CALLS.issuperset(map(type, calls)):
        return calls
    for call in calls:
        if not isinstance(call, Call):
            raise InvalidInput(
                f"enqueue_many takes calls such as task.call(...), not {type(call).__name__}"
            )
    return calls
