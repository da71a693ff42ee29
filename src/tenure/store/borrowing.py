"""Whose connection is `on=`? From SQLAlchemy's and Django's objects down to the driver's own.

No library is imported for this: an object tells by its classes where it comes from, and that
library is then there already. What comes out is a connection with an open transaction, or one that
its driver opens with the first statement, whose COMMIT and ROLLBACK are in the caller's hands.

SQLAlchemy begins a transaction by its own account with the first statement that goes through it.
Ours do not, so it is told to begin before: otherwise its `commit()` would do nothing.
"""

from typing import Any

from tenure.errors import InvalidInput

ASYNC_ON = (
    "on= is async, and this call is not: give it to a store of open_async_store(), or await the "
    "method of the application whose name ends in _async"
)


class Borrowed:
    """A driver's connection that belongs to the caller."""

    begun = False
    """A library has begun a transaction on it, by its own account, and will end it."""
    fix = "open one with connection.transaction(), or turn autocommit off"
    """What to do about a connection without a transaction."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def as_raised(self, error: Exception, statement: str) -> Exception:  # noqa: ARG002
        """A driver's error as a statement of the caller's own would have raised it."""
        return error

    async def lose(self) -> None:
        """Let the library know that the connection has broken, as it would have noticed itself."""


class BorrowedFromSQLAlchemy(Borrowed):
    """The connection under a `Connection`, a `Session` or their async kin."""

    begun = True
    fix = "its isolation level is AUTOCOMMIT; use a connection or a session of another level"

    def __init__(self, driver: Any, above: Any) -> None:
        super().__init__(driver)
        self._above = above

    def as_raised(self, error: Exception, statement: str) -> Exception:
        from sqlalchemy.exc import OperationalError

        return OperationalError(f"tenure: {statement}", None, error)

    async def lose(self) -> None:
        """Otherwise the caller's rollback would fail, and hide what was raised."""
        if is_a(self._above, "sqlalchemy", "AsyncConnection"):
            await self._above.invalidate()
        else:
            self._above.invalidate()


class BorrowedFromDjango(Borrowed):
    """The connection under a database wrapper of Django."""

    begun = True
    fix = "open one with transaction.atomic()"

    def __init__(self, wrapper: Any) -> None:
        super().__init__(wrapper.connection)
        self._wrapper = wrapper

    def as_raised(self, error: Exception, statement: str) -> Exception:  # noqa: ARG002
        """Django takes note of it too, and looks at the connection before it is used again."""
        try:
            with self._wrapper.wrap_database_errors:
                raise error
        except Exception as wrapped:  # noqa: BLE001 - whatever Django makes of it
            return wrapped


async def unwrap(on: object, *, blocking: bool) -> Borrowed:
    """The driver's connection behind whatever the caller has. A blocking caller cannot await it."""
    if comes_from(on, "sqlalchemy"):
        return await _through_sqlalchemy(on, blocking)
    if is_a(on, "django", "BaseDatabaseWrapper", "ConnectionProxy"):
        return _through_django(on)
    return Borrowed(on)


def comes_from(thing: object, library: str) -> bool:
    """Is its class, or a base of its class, defined in this library?"""
    return any(origin == library for origin, _ in _classes(thing))


def is_a(thing: object, library: str, *names: str) -> bool:
    """Is it an instance of one of these classes of a library that need not be installed?"""
    return any(origin == library and name in names for origin, name in _classes(thing))


def _classes(thing: object) -> list[tuple[str, str]]:
    # `__class__`, not `type()`: what wraps a connection to trace it says whose place it takes.
    return [(each.__module__.partition(".")[0], each.__name__) for each in thing.__class__.__mro__]


async def _through_sqlalchemy(on: Any, blocking: bool) -> Borrowed:
    from sqlalchemy.exc import InvalidRequestError

    if is_a(on, "sqlalchemy", "scoped_session", "async_scoped_session"):
        on = on()  # the session of this thread, or task
    try:
        if is_a(on, "sqlalchemy", "AsyncSession", "AsyncConnection"):
            if blocking:
                raise InvalidInput(ASYNC_ON)
            return await _borrow_async(on)
        if is_a(on, "sqlalchemy", "Session", "Connection"):
            return _borrow_sync(on)
    except InvalidRequestError as error:  # closed, waits for a rollback, not bound, ...
        reason = " ".join(str(error).split())
        raise InvalidInput(f"on= cannot be used: {reason[:300]}") from error
    raise InvalidInput(
        f"on= is SQLAlchemy's {type(on).__name__}; pass a Connection, as engine.begin() gives it, "
        "or a Session"
    )


def _borrow_sync(on: Any) -> Borrowed:
    is_session = is_a(on, "sqlalchemy", "Session")
    if (on.get_bind() if is_session else on).dialect.is_async:
        raise InvalidInput(
            f"on= is a {type(on).__name__} over an async driver; pass the AsyncSession or the "
            "AsyncConnection that it belongs to, from outside of run_sync()"
        )
    connection = on.connection() if is_session else on
    if not connection.in_transaction():
        connection.begin()
    return BorrowedFromSQLAlchemy(connection.connection.driver_connection, connection)


async def _borrow_async(on: Any) -> Borrowed:
    connection = await on.connection() if is_a(on, "sqlalchemy", "AsyncSession") else on
    if connection.sync_connection is None:
        raise InvalidInput("on= was not opened; use `async with engine.begin() as connection`")
    if not connection.in_transaction():
        await connection.begin()
    driver = (await connection.get_raw_connection()).driver_connection
    if is_asyncpg(driver) and not driver.is_in_transaction():
        await connection.exec_driver_sql("select 1")  # SQLAlchemy's BEGIN waits for a statement
    return BorrowedFromSQLAlchemy(driver, connection)


def is_asyncpg(thing: object) -> bool:
    """Is it asyncpg's connection, or the one that its pool hands out?"""
    return is_a(thing, "asyncpg", "Connection", "PoolConnectionProxy")


def _through_django(on: Any) -> Borrowed:
    from django.db.utils import DatabaseError

    try:
        on.validate_thread_sharing()
    except DatabaseError as error:
        raise InvalidInput(f"on= is a connection of another thread: {error}") from error
    if on.in_atomic_block:
        if on.needs_rollback:
            raise InvalidInput(
                "on= is Django's connection after an error; leave the atomic block that it is in"
            )
    else:
        if on.connection is None:
            on.ensure_connection()
        if on.autocommit:
            raise InvalidInput(
                "on= is Django's connection without a transaction; use it inside of "
                "transaction.atomic()"
            )
    return BorrowedFromDjango(on)
