"""One PostgreSQL connection in one of two colours: the only code that is written for each.

A `Wire` runs statements. `Blocking` wraps psycopg's sync connection in coroutines that never
suspend; `Suspending` awaits its async one. Everything above is written once.

A connection may be the caller's, with a row factory and a cursor class of its own; ours are made by
hand. Ours also give up on a server that says nothing for too long: TCP notices when the other host
is gone, not when a proxy or a server that hangs keeps the connection open.
"""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import tuple_row

from tenure.store.session import Row

RV = TypeVar("RV")


class Wire(ABC):
    """A connection in autocommit mode; transactions are begun and ended by name."""

    mark: int = 0
    """The advisory lock of its server process, or of its transaction: see `late`."""

    @abstractmethod
    async def script(self, sql: str) -> None:
        """Run SQL without parameters, possibly several statements, in one round trip."""

    @abstractmethod
    async def fetch(self, sql: str, params: Mapping[str, object], *, prepare: bool) -> list[Row]:
        """Run one statement and return its rows."""

    @abstractmethod
    async def copy(self, sql: str, pieces: Iterable[str]) -> None:
        """Stream data into a COPY statement."""

    @abstractmethod
    async def renew(self) -> None:
        """Forget what was set, locked, prepared or created in the session.

        psycopg forgets the statements that it has prepared with each of its rollbacks. Otherwise it
        would use them after DISCARD ALL.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""

    @property
    @abstractmethod
    def broken(self) -> bool:
        """True when the connection cannot be used any more."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """True when no transaction is open."""

    @property
    def server_encoding(self) -> str | None:
        """The encoding of the database; None: the server did not say."""
        return None

    @property
    @abstractmethod
    def client_encoding(self) -> str | None:
        """The encoding in which texts travel; None: the server did not say."""

    def allow_silence(self, seconds: float | None) -> None:  # noqa: B027 - a caller's has no limit
        """From now on give up when the server says nothing for so long; None: wait for ever."""

    def original(self, error: psycopg.Error) -> Exception:
        """The error as the driver raised it."""
        return error


class ForeignWire(Wire):
    """A caller's connection of another driver. It runs statements, and nothing else.

    Its errors come as psycopg's, so that one vocabulary is enough above.
    """

    async def script(self, sql: str) -> None:
        raise NotImplementedError

    async def copy(self, sql: str, pieces: Iterable[str]) -> None:
        raise NotImplementedError

    async def renew(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def original(self, error: psycopg.Error) -> Exception:
        return error.__cause__ if isinstance(error.__cause__, Exception) else error


def as_psycopg(error: Exception, sqlstate: str | None) -> psycopg.Error:
    """Another driver's error as psycopg would have raised it. To be raised `from` that error."""
    if sqlstate is None:
        return psycopg.InterfaceError(str(error))
    try:
        kind: type[psycopg.Error] = psycopg.errors.lookup(sqlstate)
    except KeyError:
        kind = psycopg.DatabaseError
    same = kind(str(error))
    same.sqlstate = sqlstate
    return same


def _bounded(gen: PQGen[RV], seconds: float | None) -> PQGen[RV]:
    """The same, ended by an error when nothing came for so long. psycopg looks up ten times a
    second while it waits; to cancel a statement would be to wait for the silent one again."""
    if seconds is None:
        return (yield from gen)
    quiet_since: float | None = None
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > seconds:
                raise psycopg.OperationalError(f"no answer for {seconds:g} s")
            wanted = gen.send(ready)
    except StopIteration as done:
        answer: RV = done.value
        return answer


class OurConnection(psycopg.Connection[Row]):
    """psycopg's, with a limit to the silence of the server."""

    silence_seconds: float | None = None

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        return super().wait(_bounded(gen, self.silence_seconds), *args, **kwargs)


class OurAsyncConnection(psycopg.AsyncConnection[Row]):
    """The same in the other colour."""

    silence_seconds: float | None = None

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        return await super().wait(_bounded(gen, self.silence_seconds), *args, **kwargs)


class Blocking(Wire):
    """psycopg's sync connection."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self.connection = connection

    async def script(self, sql: str) -> None:
        self.connection.execute(sql, prepare=False)

    async def fetch(self, sql: str, params: Mapping[str, object], *, prepare: bool) -> list[Row]:
        cursor = psycopg.Cursor(self.connection, row_factory=tuple_row)
        cursor.format = psycopg.pq.Format.BINARY
        cursor.execute(sql, params, prepare=prepare)
        return cursor.fetchall() if cursor.description else []

    async def copy(self, sql: str, pieces: Iterable[str]) -> None:
        with self.connection.cursor() as cursor, cursor.copy(sql) as stream:
            for piece in pieces:
                stream.write(piece)

    async def renew(self) -> None:
        self.connection.execute("begin", prepare=False)
        self.connection.rollback()
        self.connection.execute("discard all", prepare=False)

    async def close(self) -> None:
        self.connection.close()

    def allow_silence(self, seconds: float | None) -> None:
        if isinstance(self.connection, OurConnection):
            self.connection.silence_seconds = seconds

    @property
    def broken(self) -> bool:
        return self.connection.closed

    @property
    def idle(self) -> bool:
        return _idle(self.connection)

    @property
    def server_encoding(self) -> str | None:
        return self.connection.info.parameter_status("server_encoding")

    @property
    def client_encoding(self) -> str | None:
        return self.connection.info.parameter_status("client_encoding")


class Suspending(Wire):
    """psycopg's async connection."""

    def __init__(self, connection: psycopg.AsyncConnection[Row]) -> None:
        self.connection = connection

    async def script(self, sql: str) -> None:
        await self.connection.execute(sql, prepare=False)

    async def fetch(self, sql: str, params: Mapping[str, object], *, prepare: bool) -> list[Row]:
        cursor = psycopg.AsyncCursor(self.connection, row_factory=tuple_row)
        cursor.format = psycopg.pq.Format.BINARY
        await cursor.execute(sql, params, prepare=prepare)
        return await cursor.fetchall() if cursor.description else []

    async def copy(self, sql: str, pieces: Iterable[str]) -> None:
        async with self.connection.cursor() as cursor, cursor.copy(sql) as stream:
            for piece in pieces:
                await stream.write(piece)

    async def renew(self) -> None:
        await self.connection.execute("begin", prepare=False)
        await self.connection.rollback()
        await self.connection.execute("discard all", prepare=False)

    async def close(self) -> None:
        await self.connection.close()

    def allow_silence(self, seconds: float | None) -> None:
        if isinstance(self.connection, OurAsyncConnection):
            self.connection.silence_seconds = seconds

    @property
    def broken(self) -> bool:
        return self.connection.closed

    @property
    def idle(self) -> bool:
        return _idle(self.connection)

    @property
    def server_encoding(self) -> str | None:
        return self.connection.info.parameter_status("server_encoding")

    @property
    def client_encoding(self) -> str | None:
        return self.connection.info.parameter_status("client_encoding")


def _idle(connection: psycopg.Connection[Row] | psycopg.AsyncConnection[Row]) -> bool:
    return connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE


class Colour(ABC):
    """How to connect, to sleep and to wait one's turn, in one colour."""

    @abstractmethod
    async def connect(self, **params: Any) -> Wire:
        """Open a connection."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait."""

    @abstractmethod
    async def enter(self, timeout_seconds: float) -> bool:
        """Wait until another connection may be opened; False if the time is over before that."""

    @abstractmethod
    def leave(self) -> None:
        """Undo `enter`: another caller may open a connection."""


class BlockingColour(Colour):
    """For callers in threads."""

    def __init__(self, connections: int) -> None:
        self._free = threading.BoundedSemaphore(connections)

    async def connect(self, **params: Any) -> Wire:
        return Blocking(OurConnection.connect(**params))

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def enter(self, timeout_seconds: float) -> bool:
        return self._free.acquire(timeout=timeout_seconds)

    def leave(self) -> None:
        self._free.release()


class SuspendingColour(Colour):
    """For callers on an event loop."""

    def __init__(self, connections: int) -> None:
        self._free = asyncio.BoundedSemaphore(connections)

    async def connect(self, **params: Any) -> Wire:
        return Suspending(await OurAsyncConnection.connect(**params))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def enter(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._free.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        self._free.release()
