"""The store as callers see it, in two colours with the same names: `Store` and `AsyncStore`.

    store = open_store("sqlite:///jobs.db")            # or postgresql://user@host/database
    [job] = store.enqueue([NewJob(task="app.send", args=encode({"to": "me"}))])
    for lease in store.claim("worker-1", {"default": 100}): ...

Most methods come from the table in `operations.py`.
"""

import asyncio
import re
from collections.abc import Callable, Container
from types import TracebackType
from typing import Any, Literal, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from tenure.errors import ConfigError, InvalidInput
from tenure.rules.limits import MAX_NAME_LENGTH, check_int, check_seconds, check_text
from tenure.store.bell import Bell
from tenure.store.colours import AsyncRunner, BlockingRunner, Operation
from tenure.store.jobs.enqueue import enqueue
from tenure.store.operations import READERS, Operations
from tenure.store.session import P, R, Scope, Session, drive, for_all_tenants
from tenure.store.sqlite.threads import WRITING_THREADS, GatheringScope, Line, Threads, Writer

CLIENT_CONNECTIONS = 4
MAX_CONNECTIONS = 1000


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
        return drive(operation(self._scope, *args, **kwargs))

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

    def bell(self, ring: Callable[[], None]) -> Bell:
        """A bell that calls `ring`, from its own thread, when there may be new work.

        It is a hint: poll as well. Start it, and stop it before you close the store.
        """
        return _bell(self._scope, ring)

    def for_tenant(self, tenant: str) -> "Store":
        """The same store for one tenant: it may use its own jobs and read global ones."""
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
        on = kwargs.get("on")
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

    async def close(self) -> None:
        """Close every connection. A store that is closed twice stays closed."""
        if self._owns_session:
            await self.run(_close)  # in the reading thread: not behind operations that write
        if self._threads is not None:
            self._threads.end()

    def bell(self, ring: Callable[[], None]) -> Bell:
        """A bell that calls `ring`, from its own thread, when there may be new work.

        It is a hint: poll as well. Start it, and stop it before you close the store.
        """
        return _bell(self._scope, ring)

    def for_tenant(self, tenant: str) -> "AsyncStore":
        """The same store for one tenant: it may use its own jobs and read global ones."""
        tenant = _checked_tenant(tenant)
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
    return Store(_session(url, "sync", connections, give_up_seconds))


def open_async_store(
    url: str, *, connections: int = CLIENT_CONNECTIONS, give_up_seconds: float = 10.0
) -> AsyncStore:
    """Open `sqlite:///file.db` or `postgresql://...` for callers on an event loop.

    Operations on SQLite run in threads of the store.
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
        raise ConfigError("tenant is empty; for global jobs use the store without for_tenant")
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
        url.encode()  # no driver accepts a URL that is not UTF-8
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"the URL cannot be read: {error}") from error
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "sqlite":
        return _sqlite(sqlite_path(url), options, give_up_seconds)
    ours = {name: value for name, value in options.items() if name in _POSTGRES_OPTIONS}
    return _postgres(without(url, ours), ours, colour, connections, give_up_seconds)


def check_scheme(url: str) -> None:
    """Refuse a URL of another kind of database."""
    if not str(url).startswith(_SCHEMES):  # not shown, because it may hold a password
        raise ConfigError("a store URL must start with sqlite:/// or postgresql://")


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
    """The URL without these options; every other character stays as the user wrote it."""
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
    # Behind a pooler no worker listens, unless the user knows of workers that connect directly.
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
        raise ConfigError(
            f"unknown option {unknown[0]!r} in the URL; known options: {', '.join(sorted(known))}"
        )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(
            f"unknown value {name}={value[:30]} in the URL; use one of {', '.join(allowed)}"
        )
    return value
