"""The store as callers see it, in two colours with the same names: `Store` and `AsyncStore`.

    store = open_store("sqlite:///jobs.db")            # or postgresql://user@host/database
    [job] = store.enqueue([NewJob(task="app.send", args=encode({"to": "me"}))])
    for lease in store.claim("worker-1", {"default": 100}): ...

Every method is one of the operations of this package, bound to a session.
"""

import asyncio
import re
from collections.abc import Callable, Container, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Literal, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from tenure.errors import ConfigError, InvalidInput
from tenure.rules.limits import MAX_NAME_LENGTH, check_int, check_seconds, check_text
from tenure.store.bell import Bell
from tenure.store.gates.limits import declare_gates, heal_gates, reset_gate, set_gate
from tenure.store.gates.look import gate_lines, gate_wait, gates
from tenure.store.jobs.claim import claim
from tenure.store.jobs.enqueue import enqueue
from tenure.store.jobs.notes import report_progress, save_checkpoint
from tenure.store.jobs.operate import cancel, delete, hold, move, pause, resume, unhold
from tenure.store.jobs.replay import replay
from tenure.store.jobs.settle import settle
from tenure.store.jobs.steps import record_step
from tenure.store.jobs.sweep import extend, peek, promote, sweep
from tenure.store.look.jobs import (
    about,
    count_finished,
    count_live,
    get,
    list_jobs,
    oldest_ready,
    paused_queues,
    progress,
    steps,
    timeline,
)
from tenure.store.look.workers import announce, retire, workers
from tenure.store.prune import prune
from tenure.store.schedules.change import (
    add_schedule,
    declare_schedules,
    edit_schedule,
    get_schedule,
    list_schedules,
    pause_schedule,
    remove_schedule,
    resume_schedule,
    schedule_runs,
    trigger_schedule,
)
from tenure.store.schedules.fire import fire
from tenure.store.session import P, R, Scope, Session, drive, for_all_tenants
from tenure.store.sqlite.threads import WRITING_THREADS, GatheringScope, Line, Threads, Writer
from tenure.store.workflows.act import cancel_workflow, pause_workflow, resume_workflow
from tenure.store.workflows.add import enqueue_workflow
from tenure.store.workflows.grow import grow_workflow
from tenure.store.workflows.look import (
    get_workflow,
    list_nodes,
    list_workflows,
    node_named,
    parent_ends,
    workflow_of,
)
from tenure.store.workflows.stop import heal_workflows

Call = Callable[Concatenate[Scope, P], Coroutine[Any, Any, R]]

CLIENT_CONNECTIONS = 4
MAX_CONNECTIONS = 1000


def _blocking(call: Call[P, R]) -> "Callable[Concatenate[Store, P], R]":
    @wraps(call)
    def method(self: "Store", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.run(call, *args, **kwargs)

    return method


def _awaiting(call: Call[P, R]) -> "Callable[Concatenate[AsyncStore, P], Coroutine[Any, Any, R]]":
    @wraps(call)
    async def method(self: "AsyncStore", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.run(call, *args, **kwargs)

    return method


async def _migrate(scope: Scope) -> int:
    """Bring the schema up to date, one process at a time. Answers its version."""
    return await scope.session.migrate()


async def _close(scope: Scope) -> None:
    """Close every connection. A store that is closed twice stays closed."""
    await scope.session.aclose()


_READERS = frozenset(
    {about, get, list_jobs, timeline, progress, steps, workers, peek, gates, gate_lines, gate_wait,
     count_live, count_finished, oldest_ready, paused_queues, get_schedule, list_schedules,
     schedule_runs, get_workflow, list_workflows, list_nodes, node_named, parent_ends, workflow_of}
)  # fmt: skip

_GATHERED: frozenset[Callable[..., Any]] = frozenset({enqueue})
"""Of these only the transaction goes to a thread, with those of other tasks."""


def _line_of(call: Callable[..., Any]) -> Line:
    return "reading" if call in _READERS or call is _close else "writing"


class Store:
    """Jobs on one database, for callers in threads. Safe to share between threads."""

    def __init__(self, session: Session, tenant: str | None = None) -> None:
        self._scope = Scope(session, tenant)

    def run(self, call: Call[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation of this package to its end."""
        return drive(call(self._scope, *args, **kwargs))

    enqueue = _blocking(enqueue)
    claim = _blocking(claim)
    extend = _blocking(extend)
    settle = _blocking(settle)
    report_progress = _blocking(report_progress)
    save_checkpoint = _blocking(save_checkpoint)
    record_step = _blocking(record_step)
    peek = _blocking(peek)
    promote = _blocking(promote)
    sweep = _blocking(sweep)
    cancel = _blocking(cancel)
    hold = _blocking(hold)
    unhold = _blocking(unhold)
    move = _blocking(move)
    replay = _blocking(replay)
    delete = _blocking(delete)
    pause = _blocking(pause)
    resume = _blocking(resume)
    prune = _blocking(prune)
    get = _blocking(get)
    list_jobs = _blocking(list_jobs)
    timeline = _blocking(timeline)
    progress = _blocking(progress)
    steps = _blocking(steps)
    count_live = _blocking(count_live)
    count_finished = _blocking(count_finished)
    oldest_ready = _blocking(oldest_ready)
    paused_queues = _blocking(paused_queues)
    about = _blocking(about)
    announce = _blocking(announce)
    retire = _blocking(retire)
    workers = _blocking(workers)
    declare_gates = _blocking(declare_gates)
    set_gate = _blocking(set_gate)
    reset_gate = _blocking(reset_gate)
    gates = _blocking(gates)
    gate_lines = _blocking(gate_lines)
    gate_wait = _blocking(gate_wait)
    heal_gates = _blocking(heal_gates)
    fire = _blocking(fire)
    declare_schedules = _blocking(declare_schedules)
    add_schedule = _blocking(add_schedule)
    edit_schedule = _blocking(edit_schedule)
    pause_schedule = _blocking(pause_schedule)
    resume_schedule = _blocking(resume_schedule)
    trigger_schedule = _blocking(trigger_schedule)
    remove_schedule = _blocking(remove_schedule)
    get_schedule = _blocking(get_schedule)
    list_schedules = _blocking(list_schedules)
    schedule_runs = _blocking(schedule_runs)
    enqueue_workflow = _blocking(enqueue_workflow)
    grow_workflow = _blocking(grow_workflow)
    get_workflow = _blocking(get_workflow)
    list_workflows = _blocking(list_workflows)
    list_nodes = _blocking(list_nodes)
    node_named = _blocking(node_named)
    parent_ends = _blocking(parent_ends)
    workflow_of = _blocking(workflow_of)
    cancel_workflow = _blocking(cancel_workflow)
    pause_workflow = _blocking(pause_workflow)
    resume_workflow = _blocking(resume_workflow)
    heal_workflows = _blocking(heal_workflows)
    migrate = _blocking(_migrate)
    close = _blocking(_close)

    def in_threads(self, *, most: int = WRITING_THREADS, lent: bool = False) -> "AsyncStore":
        """The same store for callers on an event loop: its operations run in threads.

        At most so many write at once. To close it closes this store too, unless it is only lent.
        """
        session = self._scope.session
        threads = Threads(cast(Writer, session), most)
        return AsyncStore(session, self._scope.tenant, threads, lent=lent)

    def bell(self, ring: Callable[[], None]) -> Bell:
        """A bell that calls `ring`, from a thread of its own, when there may be new work.

        It is a hint: poll as well. Start it, and stop it before the store is closed.
        """
        return _bell(self._scope, ring)

    def for_tenant(self, tenant: str) -> "Store":
        """The same store as one tenant may see it: its own jobs, and global ones to read."""
        return Store(self._scope.session, _checked_tenant(tenant))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncStore:
    """Jobs on one database, for callers on an event loop."""

    def __init__(
        self,
        session: Session,
        tenant: str | None = None,
        threads: Threads | None = None,
        *,
        lent: bool = False,
    ) -> None:
        self._scope = Scope(session, tenant, suspends=True)
        self._threads = threads
        self._gathering = None if threads is None else GatheringScope(self._scope, threads)
        self._lent = lent

    async def run(self, call: Call[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation of this package."""
        on = kwargs.get("on")
        if call in _GATHERED and self._gathering is not None and on is None:
            return await call(self._gathering, *args, **kwargs)
        pool = None if self._threads is None else self._threads.of(_line_of(call))
        if pool is None and self._lent:
            raise InvalidInput("this store is closed; open another one")
        if pool is None or on is not None:  # the caller's thread owns `on`
            return await call(self._scope, *args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, lambda: drive(call(self._scope, *args, **kwargs)))

    enqueue = _awaiting(enqueue)
    claim = _awaiting(claim)
    extend = _awaiting(extend)
    settle = _awaiting(settle)
    report_progress = _awaiting(report_progress)
    save_checkpoint = _awaiting(save_checkpoint)
    record_step = _awaiting(record_step)
    peek = _awaiting(peek)
    promote = _awaiting(promote)
    sweep = _awaiting(sweep)
    cancel = _awaiting(cancel)
    hold = _awaiting(hold)
    unhold = _awaiting(unhold)
    move = _awaiting(move)
    replay = _awaiting(replay)
    delete = _awaiting(delete)
    pause = _awaiting(pause)
    resume = _awaiting(resume)
    prune = _awaiting(prune)
    get = _awaiting(get)
    list_jobs = _awaiting(list_jobs)
    timeline = _awaiting(timeline)
    progress = _awaiting(progress)
    steps = _awaiting(steps)
    count_live = _awaiting(count_live)
    count_finished = _awaiting(count_finished)
    oldest_ready = _awaiting(oldest_ready)
    paused_queues = _awaiting(paused_queues)
    about = _awaiting(about)
    announce = _awaiting(announce)
    retire = _awaiting(retire)
    workers = _awaiting(workers)
    declare_gates = _awaiting(declare_gates)
    set_gate = _awaiting(set_gate)
    reset_gate = _awaiting(reset_gate)
    gates = _awaiting(gates)
    gate_lines = _awaiting(gate_lines)
    gate_wait = _awaiting(gate_wait)
    heal_gates = _awaiting(heal_gates)
    fire = _awaiting(fire)
    declare_schedules = _awaiting(declare_schedules)
    add_schedule = _awaiting(add_schedule)
    edit_schedule = _awaiting(edit_schedule)
    pause_schedule = _awaiting(pause_schedule)
    resume_schedule = _awaiting(resume_schedule)
    trigger_schedule = _awaiting(trigger_schedule)
    remove_schedule = _awaiting(remove_schedule)
    get_schedule = _awaiting(get_schedule)
    list_schedules = _awaiting(list_schedules)
    schedule_runs = _awaiting(schedule_runs)
    enqueue_workflow = _awaiting(enqueue_workflow)
    grow_workflow = _awaiting(grow_workflow)
    get_workflow = _awaiting(get_workflow)
    list_workflows = _awaiting(list_workflows)
    list_nodes = _awaiting(list_nodes)
    node_named = _awaiting(node_named)
    parent_ends = _awaiting(parent_ends)
    workflow_of = _awaiting(workflow_of)
    cancel_workflow = _awaiting(cancel_workflow)
    pause_workflow = _awaiting(pause_workflow)
    resume_workflow = _awaiting(resume_workflow)
    heal_workflows = _awaiting(heal_workflows)
    migrate = _awaiting(_migrate)

    async def close(self) -> None:
        """Close every connection. A store that is closed twice stays closed."""
        if not self._lent:
            await _awaiting(_close)(self)  # not behind those that wait to write
        if self._threads is not None:
            self._threads.end()

    def bell(self, ring: Callable[[], None]) -> Bell:
        """A bell that calls `ring`, from a thread of its own, when there may be new work.

        It is a hint: poll as well. Start it, and stop it before the store is closed.
        """
        return _bell(self._scope, ring)

    def for_tenant(self, tenant: str) -> "AsyncStore":
        """The same store as one tenant may see it: its own jobs, and global ones to read."""
        tenant = _checked_tenant(tenant)
        return AsyncStore(self._scope.session, tenant, self._threads, lent=self._lent)

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
    return Store(_session(url, "sync", connections, give_up_seconds))


def open_async_store(
    url: str, *, connections: int = CLIENT_CONNECTIONS, give_up_seconds: float = 10.0
) -> AsyncStore:
    """Open the same for callers on an event loop.

    SQLite operations run in threads of the store, each as a whole.
    """
    session = _session(url, "async", connections, give_up_seconds)
    local = urlsplit(url).scheme == "sqlite"
    return AsyncStore(session, None, Threads(cast(Writer, session)) if local else None)


def _bell(scope: Scope, ring: Callable[[], None]) -> Bell:
    for_all_tenants("bell", scope.tenant)
    return scope.session.bell(ring)


def _checked_tenant(tenant: str) -> str:
    check_text("tenant", tenant, MAX_NAME_LENGTH)
    if not tenant:
        raise ConfigError("a tenant scope needs a tenant; use the store itself for global jobs")
    return tenant


_SCHEMES = ("sqlite://", "postgresql://", "postgres://")
_SQLITE_OPTIONS = {"driver", "synchronous", "allow_affected_sqlite", "allow_network"}
_POSTGRES_OPTIONS = {"schema", "pooler", "notify"}
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}\Z")


def _session(
    url: str, colour: Literal["sync", "async"], connections: int, give_up_seconds: float
) -> Session:
    check_int("connections", connections, 1, MAX_CONNECTIONS)
    check_seconds("give_up_seconds", give_up_seconds)
    check_scheme(url)
    try:
        url.encode()  # no library takes a name that is not UTF-8
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"the URL cannot be read: {error}") from error
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "sqlite":
        return _sqlite(sqlite_path(url), options, give_up_seconds)
    ours = {name: value for name, value in options.items() if name in _POSTGRES_OPTIONS}
    return _postgres(without(url, ours), ours, colour, connections, give_up_seconds)


def check_scheme(url: str) -> None:
    """Refuse the address of a database that is none of ours."""
    if not str(url).startswith(_SCHEMES):  # the URL itself may hold a password: not shown
        raise ConfigError("a store URL starts with sqlite:/// or postgresql://; this one does not")


def sqlite_path(url: str) -> str:
    """The file that the URL of a SQLite store names."""
    parts = urlsplit(url)
    host, path = parts.netloc, unquote(parts.path)
    if parts.fragment:
        raise ConfigError("the URL has a #; write %23 where the file's name has one")
    if host:
        raise ConfigError(
            f"sqlite://{host}{path} names a host; write sqlite:///{host}{path} for a file in the "
            "working directory"
        )
    return path.removeprefix("/")


def without(url: str, names: Container[str]) -> str:
    """The URL without our own options, every other character as the user wrote it."""
    address, _, query = url.partition("?")
    kept = [pair for pair in query.split("&") if unquote(pair.split("=")[0]) not in names]
    return f"{address}?{'&'.join(kept)}"


def _sqlite(path: str, options: dict[str, str], give_up_seconds: float) -> Session:
    from tenure.store.sqlite.session import SQLite

    _refuse_unknown(options, _SQLITE_OPTIONS)
    driver = _one_of("driver", options.get("driver", "apsw"), ("apsw", "sqlite3"))
    synchronous = _one_of("synchronous", options.get("synchronous", "FULL"), ("FULL", "NORMAL"))
    return SQLite(
        path,
        driver_name="sqlite3" if driver == "sqlite3" else "apsw",
        synchronous=synchronous,
        give_up_seconds=give_up_seconds,
        allow_affected=options.get("allow_affected_sqlite") == "1",
        allow_network=options.get("allow_network") == "1",
    )


def _postgres(
    conninfo: str,
    options: dict[str, str],
    colour: Literal["sync", "async"],
    connections: int,
    give_up_seconds: float,
) -> Session:
    try:
        from tenure.store.postgres import connection as wire
        from tenure.store.postgres.session import Postgres
    except ImportError as error:
        raise ConfigError(
            "PostgreSQL needs a driver: pip install 'tenure[postgres]' (in a checkout: make setup)"
        ) from error

    schema = options.get("schema", "tenure")
    if not _SCHEMA_NAME.match(schema) or schema.startswith("pg_"):
        raise ConfigError(
            f"schema {schema[:60]!r} must be lower-case letters, digits and _, without pg_ in front"
        )
    pooler = _one_of("pooler", options.get("pooler", "none"), ("none", "transaction"))
    # Behind a pooler nobody listens, unless the user knows of workers that connect directly.
    usual = "on" if pooler == "none" else "off"
    notify = _one_of("notify", options.get("notify", usual), ("on", "off"))
    new_colour = wire.BlockingColour if colour == "sync" else wire.SuspendingColour
    return Postgres(
        conninfo,
        lambda: new_colour(connections),
        schema=schema,
        give_up_seconds=give_up_seconds,
        transaction_pooler=pooler == "transaction",
        notify=notify == "on",
    )


def _refuse_unknown(options: dict[str, str], known: set[str]) -> None:
    if unknown := sorted(set(options) - known):
        raise ConfigError(f"unknown option {unknown[0]!r} in the URL; known are {sorted(known)}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(f"{name}={value[:30]} is not known; use one of {', '.join(allowed)}")
    return value
