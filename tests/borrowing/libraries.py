"""The libraries whose connections and sessions `on=` takes, behind one face.

A `Caller` has a table of their own (`payment`) in the database of the store, and one transaction at
a time, begun and ended by the means of their library. What has to be awaited runs on the event loop
of the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import aiosqlite
import apsw
import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_async

from tenure.store import Store
from tests.borrowing.djangos import atomic, connection_of_django, one_django
from tests.support.plain import drivers_url
from tests.support.stores import Face


class Caller(ABC):
    """Somebody with a library, and one connection."""

    on: Any
    """What they give to `on=`."""

    def __init__(self, store: Store, address: str, driver: str) -> None:
        self.store = store
        self.is_pooled = "pooler=" in address
        self.address = drivers_url(address) if self.is_pooled else address
        """A URL of PostgreSQL, or the path of a SQLite file."""
        self.driver = driver
        self._savepoints: list[Any] = []
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Connect."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def rows(self, sql: str) -> list[Any]:
        """Run a statement in the transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction."""

    @abstractmethod
    def rollback(self) -> None:
        """Roll it back."""

    @abstractmethod
    def savepoint(self) -> None:
        """Begin a nested transaction."""

    @abstractmethod
    def release(self) -> None:
        """End the nested transaction, keeping what it did."""

    @abstractmethod
    def to_savepoint(self) -> None:
        """Roll the nested transaction back."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def end(self) -> None:  # noqa: B027 - most have nothing
        """Let go of all that is left."""

    def pay(self) -> None:
        """One row of the caller's own."""
        self.rows("insert into payment values (1)")

    def done(self, answer: Any) -> Any:
        """What a call of the library came to, in either colour."""
        if not inspect.isawaitable(answer):
            return answer

        async def wait() -> Any:
            return await answer

        return self.loop.run_until_complete(wait())

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return cast(Face, self.store).loop


class Plainly(Caller):
    """A driver's own connection, its transactions made by SQL or by the driver."""

    def open(self) -> None:
        self.on = self.done(self._connect())

    def _connect(self) -> Any:
        prepare: Any = {"prepare_threshold": None} if self.is_pooled else {}
        match self.driver:
            case "psycopg":
                return psycopg.connect(self.address, **prepare)
            case "psycopg-async":
                return psycopg.AsyncConnection.connect(self.address, **prepare)
            case "psycopg2":
                return psycopg2.connect(self.address)
            case "sqlite3":
                return sqlite3.connect(self.address, isolation_level=None)
        return aiosqlite.connect(self.address, isolation_level=None)

    def begin(self) -> None:
        if "sqlite" in self.driver:
            self.rows("begin immediate")

    def rows(self, sql: str) -> list[Any]:
        cursor = self.done(self.on.cursor())
        self.done(cursor.execute(sql))
        rows = self.done(cursor.fetchall()) if cursor.description else []
        self.done(cursor.close())
        return list(rows)

    def commit(self) -> None:
        self.done(self.on.commit())

    def rollback(self) -> None:
        self.done(self.on.rollback())

    def savepoint(self) -> None:
        self.rows("savepoint here")

    def release(self) -> None:
        self.rows("release savepoint here")

    def to_savepoint(self) -> None:
        self.rows("rollback to savepoint here")

    def close(self) -> None:
        self.done(self.on.close())


class Apsw(Caller):
    """apsw, whose users may have rows made into something else."""

    def open(self) -> None:
        self.on = apsw.Connection(self.address)
        self.on.set_busy_timeout(5000)
        self.on.row_trace = lambda _, row: ["a row", *row]

    def begin(self) -> None:
        self.rows("begin immediate")

    def rows(self, sql: str) -> list[Any]:
        return [tuple(row[1:]) for row in self.on.execute(sql).fetchall()]

    def commit(self) -> None:
        self.rows("commit")

    def rollback(self) -> None:
        self.rows("rollback")

    def savepoint(self) -> None:
        self.rows("savepoint here")

    def release(self) -> None:
        self.rows("release savepoint here")

    def to_savepoint(self) -> None:
        self.rows("rollback to savepoint here")

    def close(self) -> None:
        self.on.close()


class Lent(Apsw):
    """No library: the store lends a connection."""

    def open(self) -> None:
        self.on = None

    def begin(self) -> None:
        self._block = self.store.transaction()
        enter = getattr(self._block, "__aenter__", None) or self._block.__enter__
        self.on = self.done(enter())

    def rows(self, sql: str) -> list[Any]:
        answer = self.done(self.on.execute(sql))
        has_rows = getattr(answer, "description", True)
        return list(self.done(answer.fetchall())) if has_rows else []

    def commit(self) -> None:
        self._leave(None)

    def rollback(self) -> None:
        with contextlib.suppress(ZeroDivisionError):
            self._leave(ZeroDivisionError("the caller changed their mind"))

    def _leave(self, error: Exception | None) -> None:
        kind = None if error is None else type(error)
        block: Any = self._block
        leave = getattr(block, "__aexit__", None) or block.__exit__
        self.done(leave(kind, error, None))

    def close(self) -> None:
        if self.on.is_open:
            self.rollback()


class Asyncpg(Caller):
    """asyncpg, from its pool or directly. Its users often teach it to make objects of json."""

    def open(self) -> None:
        self._transactions: list[Any] = []
        self._pool: Any = None
        if self.driver == "asyncpg-pool":
            self._pool = self.done(self._make_pool())
            self.on = self.done(self._pool.acquire())
        else:
            self.on = self.done(asyncpg.connect(self.address))
        for kind in ("json", "jsonb"):
            self.done(self.on.set_type_codec(kind, schema="pg_catalog", encoder=repr, decoder=repr))

    async def _make_pool(self) -> Any:
        return await asyncpg.create_pool(self.address, min_size=1, max_size=1)

    def begin(self) -> None:
        self._transactions.append(self.on.transaction())
        self.done(self._transactions[-1].start())

    def rows(self, sql: str) -> list[Any]:
        return [tuple(row) for row in self.done(self.on.fetch(sql))]

    def commit(self) -> None:
        self.done(self._transactions.pop().commit())

    def rollback(self) -> None:
        self.done(self._transactions.pop().rollback())

    savepoint, release, to_savepoint = begin, commit, rollback

    def close(self) -> None:
        if self._pool is not None:
            self.done(self._pool.release(self.on))
        else:
            self.done(self.on.close())

    def end(self) -> None:
        if self._pool is not None:
            self.done(self._pool.close())


class SQLAlchemy(Caller):
    """SQLAlchemy over one of its drivers, in either colour."""

    def open(self) -> None:
        kind, _, dialect = self.driver.partition(" ")
        self.is_async = kind.startswith(("Async", "async"))
        make = sqlalchemy_async.create_async_engine if self.is_async else sqlalchemy.create_engine
        self.engine: Any = make(sqlalchemy_url(dialect, self.address))
        self.on = self.done(self.make(kind))

    def make(self, kind: str) -> Any:
        match kind:
            case "Connection" | "AsyncConnection":
                return self.engine.connect()
            case "Session":
                return orm.Session(self.engine)
            case "AsyncSession":
                return sqlalchemy_async.AsyncSession(self.engine)
            case "scoped_session":
                return orm.scoped_session(orm.sessionmaker(self.engine))
        assert kind == "async_scoped_session"
        maker = sqlalchemy_async.async_sessionmaker(self.engine)
        return sqlalchemy_async.async_scoped_session(maker, scopefunc=lambda: self)

    @property
    def driver_connection(self) -> Any:
        """What is under a session that has begun."""
        connection = self.done(self.on.connection())
        pooled = (
            self.done(connection.get_raw_connection()) if self.is_async else connection.connection
        )
        return pooled.driver_connection

    def begin(self) -> None:
        self.done(self.on.begin())

    def rows(self, sql: str) -> list[Any]:
        result = self.done(self.on.execute(sqlalchemy.text(sql)))
        return [tuple(row) for row in result] if result.returns_rows else []

    def commit(self) -> None:
        self.done(self.on.commit())

    def rollback(self) -> None:
        self.done(self.on.rollback())

    def savepoint(self) -> None:
        self._savepoints.append(self.done(self.on.begin_nested()))

    def release(self) -> None:
        self.done(self._savepoints.pop().commit())

    def to_savepoint(self) -> None:
        self.done(self._savepoints.pop().rollback())

    def close(self) -> None:
        self.done(self.on.close())

    def end(self) -> None:
        if hasattr(self.on, "remove"):
            self.done(self.on.remove())
        self.done(self.engine.dispose())


class Django(Caller):
    """Django's own connection, in and out of `transaction.atomic()`."""

    def open(self) -> None:
        self._django = one_django(self.driver, self.address)
        self._django.__enter__()
        self.on = connection_of_django()

    def begin(self) -> None:
        self._savepoints.append(atomic())
        self._savepoints[-1].__enter__()

    def rows(self, sql: str) -> list[Any]:
        with self.on.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    def commit(self) -> None:
        self._savepoints.pop().__exit__(None, None, None)

    def rollback(self) -> None:
        error = ValueError("the caller changed their mind")
        self._savepoints.pop().__exit__(ValueError, error, None)

    savepoint, release, to_savepoint = begin, commit, rollback

    def close(self) -> None:
        self.on.close()

    def end(self) -> None:
        self._django.__exit__(None, None, None)


def sqlalchemy_url(dialect: str, address: str) -> sqlalchemy.URL:
    """An address as SQLAlchemy writes it, for one of its dialects."""
    if dialect.startswith("sqlite"):
        return sqlalchemy.URL.create(dialect, database=address)
    return sqlalchemy.make_url(address).set(drivername=dialect)


@dataclass(frozen=True)
class Library:
    """One way to come with a connection, and the colour of the store that it is given to."""

    name: str
    make: Callable[[Store, str, str], Caller]
    driver: str
    is_async: bool = False
    is_quick: bool = False
    """Its tests belong to the inner loop. All others are for `make test`."""

    def __str__(self) -> str:
        return self.name

    @property
    def is_postgres(self) -> bool:
        return "sqlite" not in self.driver


LIBRARIES = (
    Library("psycopg", Plainly, "psycopg"),
    Library("psycopg-async", Plainly, "psycopg-async", True),
    Library("psycopg2", Plainly, "psycopg2", is_quick=True),
    Library("psycopg2 on an async store", Plainly, "psycopg2", True),
    Library("asyncpg", Asyncpg, "asyncpg", True, is_quick=True),
    Library("asyncpg-pool", Asyncpg, "asyncpg-pool", True),
    Library("Connection-psycopg", SQLAlchemy, "Connection postgresql+psycopg"),
    Library("Session-psycopg", SQLAlchemy, "Session postgresql+psycopg", is_quick=True),
    Library("Session-psycopg on an async store", SQLAlchemy, "Session postgresql+psycopg", True),
    Library("Connection-psycopg2", SQLAlchemy, "Connection postgresql+psycopg2"),
    Library("Session-psycopg2", SQLAlchemy, "Session postgresql+psycopg2"),
    Library("scoped-psycopg2", SQLAlchemy, "scoped_session postgresql+psycopg2"),
    Library("AsyncConnection-psycopg", SQLAlchemy, "AsyncConnection postgresql+psycopg", True),
    Library("AsyncSession-psycopg", SQLAlchemy, "AsyncSession postgresql+psycopg", True),
    Library("AsyncConnection-asyncpg", SQLAlchemy, "AsyncConnection postgresql+asyncpg", True),
    Library(
        "AsyncSession-asyncpg", SQLAlchemy, "AsyncSession postgresql+asyncpg", True, is_quick=True
    ),
    Library("async-scoped-asyncpg", SQLAlchemy, "async_scoped_session postgresql+asyncpg", True),
    Library("Django-postgresql", Django, "postgresql", is_quick=True),
    Library("sqlite3", Plainly, "sqlite3"),
    Library("sqlite3 on an async store", Plainly, "sqlite3", True),
    Library("aiosqlite", Plainly, "aiosqlite", True),
    Library("Connection-pysqlite", SQLAlchemy, "Connection sqlite+pysqlite"),
    Library("Session-pysqlite", SQLAlchemy, "Session sqlite+pysqlite", is_quick=True),
    Library("Session-pysqlite on an async store", SQLAlchemy, "Session sqlite+pysqlite", True),
    Library("AsyncConnection-aiosqlite", SQLAlchemy, "AsyncConnection sqlite+aiosqlite", True),
    Library(
        "AsyncSession-aiosqlite", SQLAlchemy, "AsyncSession sqlite+aiosqlite", True, is_quick=True
    ),
    Library("Django-sqlite3", Django, "sqlite3", is_quick=True),
    Library("apsw", Apsw, "sqlite-apsw", is_quick=True),
    Library("apsw on an async store", Apsw, "sqlite-apsw", True),
    Library("transaction-sqlite", Lent, "sqlite-lent", is_quick=True),
    Library("transaction-sqlite-async", Lent, "sqlite-lent", True),
    Library("transaction-sqlite3", Lent, "sqlite3-lent"),
    Library("transaction-postgres", Lent, "lent", is_quick=True),
    Library("transaction-postgres-async", Lent, "lent", True),
)


def through(which: Callable[[Library], bool]) -> pytest.MarkDecorator:
    """A test runs only through these libraries."""
    return pytest.mark.parametrize("library", params(which), indirect=True)


def params(which: Callable[[Library], bool] = lambda _: True) -> list[Any]:
    """These libraries as parameters of tests."""
    return [
        pytest.param(each, id=each.name, marks=() if each.is_quick else pytest.mark.slow)
        for each in LIBRARIES
        if which(each)
    ]


def named(*names: str) -> pytest.MarkDecorator:
    """A test runs only through the libraries of these names."""
    assert set(names) <= {each.name for each in LIBRARIES}
    return through(lambda library: library.name in names)
