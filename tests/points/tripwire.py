"""The wire over which a process falls: it sees each statement just before it goes to the database.

A process without a place to die writes down what it saw. So the points of an operation are those of
the statements that it really runs, and a new statement has its points by itself. Every statement
counts: BEGIN and COMMIT, those that read, and those on a connection of the caller.

On PostgreSQL there is one more moment: the statement is sent, and nobody waits for its answer.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

import apsw
import msgspec
import psycopg
from psycopg.waiting import Wait

from tenure.store.postgres import borrow as borrowed_postgres
from tenure.store.postgres import connection as wire
from tenure.store.session import Row
from tenure.store.sqlite import borrow as borrowed_sqlite
from tenure.store.sqlite import driver as sqlite_driver
from tenure.store.statements import Dialect, statements
from tests.support.plain import drivers_url

END = "the answer"


class Statement(msgspec.Struct, frozen=True):
    """One that was run. `commits`: what was done until here, and by it, stays."""

    name: str
    commits: bool


class Point(msgspec.Struct, frozen=True):
    """Where to die: before the n-th statement, or as soon as it is sent. After the last: END."""

    n: int
    sent: bool = False


def die() -> NoReturn:
    """Without another word."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL was survived")


CALL = "savepoint tenure_call"
"""Of a call in the caller's own transaction: it is looked for at its end."""


class Tripwire:
    """Counts statements from `arm` on. `splits`: those before which a rule is broken: what was done
    until there is committed, and nobody counts that."""

    def __init__(self, at: Point | None, splits: Sequence[str] = ()) -> None:
        self.seen: list[Statement] = []
        self._at = at
        self._splits = splits
        self._armed = False

    def arm(self) -> None:
        """From here on it counts."""
        self._armed = True

    def end(self) -> None:
        """All is done, and the caller does not know it yet."""
        if self._at == Point(len(self.seen)):
            die()

    def passes(self, name: str, *, commits: bool, again: Callable[[], None]) -> bool:
        """A statement is about to go. True: die when it is sent. `again` commits, and begins."""
        if not self._armed:
            return False
        if name in self._splits:
            again()
        at, n = self._at, len(self.seen)
        if at == Point(n):
            die()
        self.seen.append(Statement(name, commits))
        return at == Point(n, sent=True)


wire_in_use = Tripwire(None)
"""That of this process."""


def stretch(trip: Tripwire) -> None:
    """From here on all statements of this process pass over it."""
    global wire_in_use  # noqa: PLW0603 - a process has one
    wire_in_use = trip
    for module, name, watched in (
        (sqlite_driver, "connect", _connect),
        (borrowed_sqlite, "Blocking", WatchedHandle),
        (borrowed_sqlite, "BlockingApsw", WatchedApswHandle),
        (wire, "Blocking", WatchedWire),
        (borrowed_postgres, "Blocking", WatchedWire),
    ):
        setattr(module, name, watched)


# --- SQLite ---------------------------------------------------------------------------------------


def _pass_sqlite(connection: Any, sql: str, run: Callable[[str], Any]) -> None:
    def again() -> None:
        run("commit")
        run("begin immediate")
        run(CALL)

    word = sql.split(maxsplit=1)[0]
    lone = not connection.in_transaction and word not in ("begin", "rollback")
    name = sql if word in OWN_WORDS else name_of("sqlite", sql)
    wire_in_use.passes(name, commits=lone or word == "commit", again=again)


class WatchedApsw(apsw.Connection):
    """A connection of apsw. Its rows come while they are read, so a statement is over only when the
    next one is about to run."""

    def execute(self, sql: str, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _pass_sqlite(self, sql, super().execute)
        return super().execute(sql, *args, **options)

    def executemany(self, sql: str, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        _pass_sqlite(self, sql, super().execute)
        return super().executemany(sql, *args, **options)


class WatchedSqlite3(sqlite3.Connection):
    """The same through the other library."""

    def execute(self, sql: str, *args: Any) -> Any:
        _pass_sqlite(self, sql, super().execute)
        return super().execute(sql, *args)

    def executemany(self, sql: str, *args: Any) -> Any:
        _pass_sqlite(self, sql, super().execute)
        return super().executemany(sql, *args)


class WatchedHandle(borrowed_sqlite.Blocking):
    """The store's hand on the caller's connection: it goes round the methods of that."""

    async def execute(self, sql: str, params: Any = ()) -> list[Row]:
        _pass_sqlite(self.connection, sql, sqlite3.Cursor(self.connection).execute)
        return await super().execute(sql, params)

    async def executemany(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        _pass_sqlite(self.connection, sql, sqlite3.Cursor(self.connection).execute)
        await super().executemany(sql, rows)


class WatchedApswHandle(borrowed_sqlite.BlockingApsw):
    """The same on a connection that the store has lent."""

    async def execute(self, sql: str, params: Any = ()) -> list[Row]:
        _pass_sqlite(self.connection, sql, self._run)
        return await super().execute(sql, params)

    async def executemany(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        _pass_sqlite(self.connection, sql, self._run)
        await super().executemany(sql, rows)

    def _run(self, sql: str) -> None:
        apsw.Connection.execute(self.connection, sql)


def _connect(path: str, driver: str) -> Any:
    if driver == "apsw":
        return WatchedApsw(path)
    return sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, factory=WatchedSqlite3
    )


# --- PostgreSQL -----------------------------------------------------------------------------------


def _pass_postgres(connection: psycopg.Connection[Any], name: str, *, opens: bool = False) -> bool:
    """True: it is to be sent, and no answer to be waited for."""

    def again() -> None:
        connection.execute("commit")
        connection.execute("begin")
        connection.execute(CALL)

    idle = connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    commits = "commit" in name or (idle and not opens)
    return wire_in_use.passes(name, commits=commits, again=again)


class WatchedWire(wire.Blocking):
    """A connection to PostgreSQL, ours or the caller's."""

    async def script(self, sql: str) -> None:
        parts = sql.split("; ")
        word = "begin" if parts[0].startswith("begin") else parts[-1]
        name = f"notify; {word}" if len(parts) > 1 and word == "commit" else word
        with _sent(self.connection, _pass_postgres(self.connection, name, opens=word == "begin")):
            await super().script(sql)

    async def fetch(self, sql: str, params: Mapping[str, object], *, prepare: bool) -> list[Row]:
        sent = _pass_postgres(self.connection, name_of("postgres", sql))
        with _sent(self.connection, sent):  # what is prepared first is sent twice
            return await super().fetch(sql, params, prepare=prepare and not sent)

    async def copy(self, sql: str, pieces: Iterable[str]) -> None:
        with _sent(self.connection, _pass_postgres(self.connection, name_of("postgres", sql))):
            await super().copy(sql, pieces)


@contextmanager
def _sent(connection: psycopg.Connection[Any], is_last: bool) -> Iterator[None]:
    if is_last:
        usual = connection.wait
        connection.wait = lambda gen, *_, **__: usual(_until_sent(gen))  # type: ignore[method-assign]
    yield


def _until_sent(gen: Any) -> Any:
    """psycopg waits to read alone when all that it has to say has gone."""
    wanted = next(gen)
    while wanted != Wait.R:
        wanted = gen.send((yield wanted))
    die()


# --- a caller's own transaction -------------------------------------------------------------------


class Caller:
    """A connection of an application, which begins and commits by itself."""

    def __init__(self, url: str) -> None:
        self.is_postgres = url.startswith("postgres")
        self.connection: Any
        if self.is_postgres:
            self.connection = psycopg.connect(drivers_url(url), autocommit=True)
        else:
            path = url.partition("?")[0].removeprefix("sqlite:///")
            self.connection = _connect(path, "sqlite3")

    def execute(self, sql: str) -> None:
        """Run it, as one of the statements that count."""
        if not self.is_postgres:
            self.connection.execute(sql)
            return
        sent = _pass_postgres(self.connection, f"caller: {sql}", opens=sql == "begin")
        with _sent(self.connection, sent):
            self.connection.execute(sql, prepare=False)

    def begin(self) -> None:
        """As this database wants it."""
        self.execute("begin" if self.is_postgres else "begin immediate")


# --- names ----------------------------------------------------------------------------------------

OWN_WORDS = frozenset({"begin", "commit", "rollback", "savepoint", "release"})


def name_of(dialect: Dialect, sql: str) -> str:
    """What a statement is called in the files of the store."""
    whole, heads = _names(dialect)
    if sql in whole:
        return whole[sql]
    return heads.get(_head(sql)) or f"caller: {' '.join(sql.split())[:60]}"


@cache
def _names(dialect: Dialect) -> tuple[dict[str, str], dict[str, str]]:
    whole: dict[str, str] = {}
    for name, parts in statements(dialect, "tenure").items():
        whole |= {sql: name if len(parts) == 1 else f"{name}/{n}" for n, sql in enumerate(parts, 1)}
    return whole, {_head(sql): name for sql, name in whole.items() if "values " in sql}


def _head(sql: str) -> str:
    """An insert of one row and one of several begin alike."""
    return sql.partition("values ")[0]
