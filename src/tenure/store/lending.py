"""transaction(): a connection of the store for its caller, in a transaction of the store.

    with store.transaction() as transaction:
        transaction.execute("insert into invoice values (?)", (1,))
        store.enqueue([job], on=transaction)

The store begins and ends it, by a `GivenConnection` to one database. A caller gets a `Transaction`
around it, or an `AsyncTransaction`, which refuse what would break it: another thread, another
process, a statement after the end. As long as it is open, its caller can write only through it
(`on=`): on SQLite another write would wait for the end of this one. So a forgotten `on=` is an
error on both databases.

An interrupt may come between any two steps. Whatever was done before it, `leave` ends it.
"""

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, Token
from enum import Enum, auto
from typing import Any, TypeVar

from tenure.errors import InvalidInput, NotCommitted
from tenure.store.session import Session, drive

R = TypeVar("R")
Row = tuple[Any, ...]
Params = Sequence[Any] | dict[str, Any] | None


class Standing(Enum):
    """What a connection says of the transaction that the store began on it."""

    OPEN = auto()
    FAILED = auto()
    """A statement failed, and the database takes no other one."""
    ENDED = auto()


class GivenConnection(ABC):
    """A connection of the store in the hands of a caller. It opens nothing before `begin`."""

    connection: Any
    """The driver's own."""

    @abstractmethod
    async def begin(self) -> None:
        """Take a connection, and begin a transaction on it."""

    @abstractmethod
    async def execute(self, sql: str, params: Params) -> Any:
        """Run a statement of the caller. Its errors are the driver's."""

    @abstractmethod
    async def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement of the caller for each row of values."""

    @abstractmethod
    def standing(self) -> Standing:
        """How does the transaction stand?"""

    @abstractmethod
    async def commit(self) -> None:
        """Commit it."""

    @abstractmethod
    async def undo(self) -> None:
        """Roll it back, if it is open. Raises nothing."""

    @abstractmethod
    async def leave(self) -> None:
        """Give everything back, however far it came. Raises nothing."""


class Rows:
    """The rows of a statement on SQLite, as a cursor has them."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self._next = iter(rows)

    def fetchall(self) -> list[Row]:
        """All rows that were not fetched yet."""
        return list(self._next)

    def fetchone(self) -> Row | None:
        """The next row; None: there is no other."""
        return next(self._next, None)

    def __iter__(self) -> Iterator[Row]:
        return self._next


class AsyncRows(Rows):
    """The same for async callers, as psycopg's cursor has them."""

    async def fetchall(self) -> list[Row]:  # type: ignore[override]
        """All rows that were not fetched yet."""
        return super().fetchall()

    async def fetchone(self) -> Row | None:  # type: ignore[override]
        """The next row; None: there is no other."""
        return super().fetchone()

    async def __aiter__(self) -> AsyncIterator[Row]:
        for row in self:
            yield row


class _Open:
    """What both colours of a transaction share."""

    def __init__(self, session: Session, lent: GivenConnection) -> None:
        self.session = session
        self._lent = lent
        self._pid = os.getpid()
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """False once its block has ended."""
        return self._is_open

    @property
    def driver_connection(self) -> Any:
        """The driver's own connection: apsw's or psycopg's. Do not end the transaction on it."""
        self.check()
        return self._lent.connection

    def check(self) -> None:
        """Refuse a use that would break it."""
        if self._pid != os.getpid():
            raise InvalidInput("this transaction belongs to another process; open one here")
        if not self._is_open:
            raise InvalidInput(
                "this transaction has ended with its `with` block; use it inside of the block"
            )

    def end(self) -> None:
        """Its block has ended."""
        self._is_open = False

    def _refuse_by_hand(self) -> None:
        if self._lent.standing() is Standing.ENDED:
            raise InvalidInput(
                "this statement has ended the transaction; leave BEGIN, COMMIT and ROLLBACK to the "
                "`with` block: it commits at its end, and rolls back when an error leaves it"
            )


class Transaction(_Open):
    """A transaction of the store for a caller in a thread. Pass it as `on=`."""

    def __init__(self, session: Session, lent: GivenConnection) -> None:
        super().__init__(session, lent)
        self._thread = threading.get_ident()

    def check(self) -> None:
        super().check()
        if self._thread != threading.get_ident():
            raise InvalidInput(
                "this transaction belongs to another thread; use it in the thread that opened it"
            )

    def execute(self, sql: str, params: Params = None) -> Any:
        """Run a statement of your own. Returns its rows as a cursor: `fetchall()`, `fetchone()`.

        Placeholders are those of the driver: `?` or `:name` on SQLite, `%s` or `%(name)s` on
        PostgreSQL. So are errors.
        """
        self.check()
        answer = drive(self._lent.execute(sql, params))
        self._refuse_by_hand()
        return answer

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement of your own for each row of values."""
        self.check()
        drive(self._lent.executemany(sql, rows))
        self._refuse_by_hand()


class AsyncTransaction(_Open):
    """A transaction of the store for a caller on an event loop. Pass it as `on=`."""

    def __init__(self, session: Session, lent: GivenConnection) -> None:
        super().__init__(session, lent)
        self._loop = asyncio.get_running_loop()

    def check(self) -> None:
        super().check()
        if self._loop is not _running_loop():
            raise InvalidInput(
                "this transaction belongs to an event loop; await the methods whose names end in "
                "_async, on that loop"
            )

    async def execute(self, sql: str, params: Params = None) -> Any:
        """Run a statement of your own. Returns its rows as a cursor whose methods you await."""
        self.check()
        answer = await self._lent.execute(sql, params)
        self._refuse_by_hand()
        return answer

    async def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement of your own for each row of values."""
        self.check()
        await self._lent.executemany(sql, rows)
        self._refuse_by_hand()

    @property
    def lent(self) -> GivenConnection:
        """For `on=`: runs the statements of the store where those of the caller run."""
        return self._lent


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# --- where a caller is inside of one --------------------------------------------------------------

_opened: ContextVar[tuple[_Open, ...]] = ContextVar("tenure_transactions", default=())


def is_inside(session: Session) -> bool:
    """Has this caller a transaction of this session open?"""
    return any(each.is_open and each.session is session for each in _opened.get())


def refuse_inside(session: Session) -> None:
    """Refuse a write that is not part of the caller's open transaction."""
    if is_inside(session):
        raise InvalidInput(
            "this caller has a transaction of the store open; pass it as on=, or do this after its "
            "`with` block"
        )


def _refuse_nested(session: Session) -> None:
    if is_inside(session):
        raise InvalidInput(
            "this caller has a transaction of the store open already; use that one: they do not "
            "nest. For a part that may fail, execute SAVEPOINT and ROLLBACK TO in it"
        )


@contextmanager
def transaction(session: Session, lend: Callable[[], GivenConnection]) -> Iterator[Transaction]:
    """Commits at the end of the block, and rolls back when an error leaves it."""
    _refuse_nested(session)
    lent = lend()
    opened: Transaction | None = None
    before = _opened.get()
    token: Token[tuple[_Open, ...]] | None = None
    session.lent.add(lent)
    try:
        drive(lent.begin())
        opened = Transaction(session, lent)
        token = _opened.set((*before, opened))
        yield opened
        opened.check()
        _check_standing(lent)
        drive(lent.commit())
    except BaseException:
        drive(lent.undo())
        raise
    finally:
        if opened is not None:
            opened.end()
        _leave_context(token, before)
        session.lent.discard(lent)
        drive(lent.leave())


@asynccontextmanager
async def async_transaction(
    session: Session, lend: Callable[[], GivenConnection]
) -> AsyncIterator[AsyncTransaction]:
    """The same for a caller on an event loop."""
    _refuse_nested(session)
    lent = lend()
    opened: AsyncTransaction | None = None
    before = _opened.get()
    token: Token[tuple[_Open, ...]] | None = None
    session.lent.add(lent)
    try:
        await lent.begin()
        opened = AsyncTransaction(session, lent)
        token = _opened.set((*before, opened))
        yield opened
        opened.check()
        _check_standing(lent)
        await lent.commit()
    except BaseException:
        await lent.undo()
        raise
    finally:
        if opened is not None:
            opened.end()
        _leave_context(token, before)
        session.lent.discard(lent)
        await lent.leave()


def _leave_context(token: Token[tuple[_Open, ...]] | None, before: tuple[_Open, ...]) -> None:
    """Leave no trace in the context: a worker gives up a task whose handler has changed it."""
    try:
        if token is not None:
            _opened.reset(token)
    except ValueError:  # the block ends in another context than it began in
        _opened.set(before)


def _check_standing(lent: GivenConnection) -> None:
    match lent.standing():
        case Standing.FAILED:
            raise NotCommitted(
                "a statement in this block failed, and the block went on; the database keeps "
                "nothing of such a transaction. Let the error leave the block, or execute "
                "SAVEPOINT before the statement and ROLLBACK TO after it"
            )
        case Standing.ENDED:
            raise NotCommitted(
                "the transaction of this block had ended before the block did: by a COMMIT or "
                "ROLLBACK in the block, or by the database after an error"
            )
        case Standing.OPEN:
            pass


class InThread(GivenConnection):
    """A blocking connection for a caller on an event loop: all of it happens in one thread.

    A step that has begun runs to its end, also when the task that waits for it is cancelled: the
    next step, such as the rollback, comes after it.
    """

    def __init__(self, lent: GivenConnection) -> None:
        self._lent = lent
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tenure-sqlite-own")

    @property
    def connection(self) -> Any:
        return self._lent.connection

    def _start(self, step: Callable[[], R]) -> "asyncio.Future[R]":
        return asyncio.get_running_loop().run_in_executor(self._thread, step)

    async def in_thread(self, step: Callable[[], R]) -> R:
        """Run a step of the caller in the thread."""
        return await self._start(step)

    async def begin(self) -> None:
        await self._start(lambda: drive(self._lent.begin()))

    async def execute(self, sql: str, params: Params) -> Any:
        rows: Rows = await self._start(lambda: drive(self._lent.execute(sql, params)))
        return AsyncRows(rows.fetchall())

    async def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await self._start(lambda: drive(self._lent.executemany(sql, rows)))

    def standing(self) -> Standing:
        return self._lent.standing()

    async def commit(self) -> None:
        await _to_its_end(self._start(lambda: drive(self._lent.commit())))

    async def undo(self) -> None:
        await _to_its_end(self._start(lambda: drive(self._lent.undo())))

    async def leave(self) -> None:
        try:
            await _to_its_end(self._start(lambda: drive(self._lent.leave())))
        finally:
            self._thread.shutdown(wait=False)


async def _to_its_end(step: "asyncio.Future[R]") -> R:
    """Wait for a step even if this task is cancelled meanwhile; then the task is cancelled."""
    cancelled: asyncio.CancelledError | None = None
    while not step.done():
        try:
            await asyncio.shield(asyncio.wait([step]))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return step.result()
