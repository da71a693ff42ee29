"""The caller's connection to our SQLite file, or the reason why it cannot be used.

It is that of `transaction()`, or the caller's own: of `apsw` on a store with that driver, of
`sqlite3`, or of `aiosqlite` around it, on one with the other. Its rows come as tuples with texts,
whatever the caller has made of them otherwise.

`sqlite3` begins transactions late, before the first INSERT, UPDATE or DELETE, and SQLAlchemy relies
on that. Many statements of ours are none of these, and would be committed at once. Where SQLAlchemy
has a transaction by its own account (or Django, with autocommit turned off), it is therefore begun
here, by BEGIN IMMEDIATE. The COMMIT or ROLLBACK of the library ends it like one of its own.
"""

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import apsw

from tenure.errors import InvalidInput
from tenure.store.borrowing import ASYNC_ON, Borrowed, is_a, unwrap
from tenure.store.lending import AsyncTransaction, InThread, Transaction
from tenure.store.session import Row, drive
from tenure.store.sqlite import driver
from tenure.store.sqlite.boot_clock import Clock
from tenure.store.sqlite.driver import DriverError
from tenure.store.sqlite.tx import SQLiteTx

if TYPE_CHECKING:
    from tenure.store.sqlite.session import SQLite


class Handle(ABC):
    """Runs statements on the caller's connection, in one of two colours."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @abstractmethod
    async def execute(self, sql: str, params: Any = ()) -> list[Row]:
        """Run one statement; its rows are tuples."""

    @abstractmethod
    async def executemany(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Run one statement for each row of values."""

    async def looks(self) -> tuple[str, bool]:
        """The file of the connection, and whether a transaction is open."""
        databases = await self.execute("pragma database_list")
        [file] = [file for _, name, file in databases if name == "main"]
        return file, self.connection.in_transaction

    @contextmanager
    def _texts(self) -> Iterator[None]:
        factory = self.connection.text_factory
        self.connection.text_factory = str
        try:
            yield
        finally:
            self.connection.text_factory = factory


class Blocking(Handle):
    """A connection of `sqlite3`."""

    async def execute(self, sql: str, params: Any = ()) -> list[Row]:
        with self._texts():
            return sqlite3.Cursor(self.connection).execute(sql, params).fetchall()

    async def executemany(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        sqlite3.Cursor(self.connection).executemany(sql, rows)


class Suspending(Handle):
    """A connection of `aiosqlite`, which lives in a thread of its own."""

    async def execute(self, sql: str, params: Any = ()) -> list[Row]:
        with self._texts():
            async with self.connection.cursor() as cursor:
                cursor.row_factory = None
                await cursor.execute(sql, params)
                return list(await cursor.fetchall())

    async def executemany(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        async with self.connection.cursor() as cursor:
            await cursor.executemany(sql, rows)


class BlockingApsw(Handle):
    """A connection of `apsw`."""

    async def execute(self, sql: str, params: Any = ()) -> list[Row]:
        rows: list[Row] = self._cursor().execute(sql, params).fetchall()
        return rows

    async def executemany(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        self._cursor().executemany(sql, rows)

    def _cursor(self) -> Any:
        cursor = self.connection.cursor()
        cursor.row_trace = _as_it_is
        cursor.exec_trace = _yes
        return cursor


def _as_it_is(_: object, row: Row) -> Row:
    return row


def _yes(*_: object) -> bool:
    return True


class LentInThread(Handle):
    """The connection of a `transaction()` on an event loop."""

    def __init__(self, lent: InThread) -> None:
        super().__init__(lent.connection)
        self._lent = lent
        self._kind: type[Handle] = (
            BlockingApsw if isinstance(lent.connection, apsw.Connection) else Blocking
        )

    async def execute(self, sql: str, params: Any = ()) -> list[Row]:
        handle = self._kind(self.connection)
        return await self._lent.in_thread(lambda: drive(handle.execute(sql, params)))

    async def executemany(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        handle = self._kind(self.connection)
        await self._lent.in_thread(lambda: drive(handle.executemany(sql, rows)))


class BorrowedTx(SQLiteTx):
    """The caller's transaction, through whatever connection the caller has."""

    def __init__(self, handle: Handle, path: str, clock: Clock) -> None:
        super().__init__(handle.connection, path, clock)
        self._handle = handle

    async def fetch(self, statement: str, **params: object) -> list[Row]:
        values = params | self._now
        rows: list[Row] = []
        try:
            for sql in self._sql[statement]:
                rows += await self._handle.execute(sql, values)
        except DriverError as error:
            raise driver.translate(error, self._path) from error
        return rows

    def _widen_cache(self) -> None:
        """It is not ours."""

    async def _insert(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        await self._each(statement, rows)

    async def _each(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        [sql] = self._sql[statement]
        try:
            await self._handle.executemany(sql, rows)
        except DriverError as error:
            raise driver.translate(error, self._path) from error


async def borrowed_tx(on: object, session: "SQLite", clock: Clock, *, blocking: bool) -> SQLiteTx:
    """The caller's open transaction on the file of this session."""
    path = session.path
    if isinstance(on, Transaction | AsyncTransaction):
        return BorrowedTx(_lent_handle(on, session, blocking), path, clock)
    borrowed = await unwrap(on, blocking=blocking)
    handle = _handle(borrowed.connection, session, blocking)
    try:
        file, begun = await handle.looks()
    except (*_CLOSED, ValueError) as error:  # closed, or made in another thread
        raise InvalidInput(f"on= is closed or cannot be used here: {error}") from error
    if not file or not os.path.samefile(file, path):
        raise InvalidInput(f"on= is a connection to {file or 'memory'}, not to {path}")
    if not begun:
        await _begin(handle, borrowed, path)
    return BorrowedTx(handle, path, clock)


_CLOSED = (sqlite3.ProgrammingError, apsw.ConnectionClosedError, apsw.ThreadingViolationError)


def _lent_handle(on: Transaction | AsyncTransaction, session: "SQLite", blocking: bool) -> Handle:
    if isinstance(on, AsyncTransaction) and blocking:
        raise InvalidInput(ASYNC_ON)
    on.check()
    if not isinstance(on.session, type(session)) or not os.path.samefile(
        on.session.path, session.path
    ):
        raise InvalidInput(f"on= is a transaction of another store, not of {session.path}")
    if isinstance(on, AsyncTransaction):
        assert isinstance(on.lent, InThread)
        return LentInThread(on.lent)
    connection = on.driver_connection
    is_apsw = isinstance(connection, apsw.Connection)
    return BlockingApsw(connection) if is_apsw else Blocking(connection)


def _handle(connection: object, session: "SQLite", blocking: bool) -> Handle:
    """A store and its callers use one SQLite library on a file: see `driver`."""
    if session.driver_name == "apsw":
        if isinstance(connection, apsw.Connection):
            return BlockingApsw(connection)
        raise InvalidInput(
            f"on= takes what transaction() gives, or an apsw.Connection to {session.path}, "
            f"not {type(connection).__name__}; for sqlite3, SQLAlchemy or Django open the store "
            "with ?driver=sqlite3"
        )
    if isinstance(connection, sqlite3.Connection):
        return Blocking(connection)
    if not is_a(connection, "aiosqlite", "Connection"):
        raise InvalidInput(
            f"on= takes what transaction() gives, a sqlite3.Connection to {session.path}, or one "
            f"of SQLAlchemy or Django over it, not {type(connection).__name__}"
        )
    if blocking:
        raise InvalidInput(ASYNC_ON)
    return Suspending(connection)


async def _begin(handle: Handle, borrowed: Borrowed, path: str) -> None:
    if not borrowed.begun:
        raise InvalidInput("on= has no open transaction; execute BEGIN IMMEDIATE on it first")
    autocommits = getattr(handle.connection, "autocommit", False) is True  # of Python 3.12
    if handle.connection.isolation_level is None or autocommits:
        raise InvalidInput(f"on= is in autocommit mode without a transaction; {borrowed.fix}")
    try:
        await handle.execute("begin immediate")
    except DriverError as error:
        raise driver.translate(error, path) from error
