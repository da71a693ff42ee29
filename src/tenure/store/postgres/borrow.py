"""The caller's connection to PostgreSQL as a wire, or the reason why it cannot be one."""

from typing import Any

import psycopg

from tenure.errors import InvalidInput
from tenure.store.borrowing import ASYNC_ON, Borrowed, is_a, is_asyncpg
from tenure.store.postgres.connection import Blocking, Suspending, Wire


def wire_of(borrowed: Borrowed, *, blocking: bool) -> Wire:
    """A wire on which the next statement runs in the caller's transaction, and does not end it."""
    connection = borrowed.connection
    is_async = isinstance(connection, psycopg.AsyncConnection) or is_asyncpg(connection)
    if is_async and blocking:
        raise InvalidInput(ASYNC_ON)
    wire = _wire(connection)
    if wire.broken:
        raise InvalidInput("on= is a closed connection, or one that went back to its pool")
    if wire.client_encoding == "SQL_ASCII":  # its texts come back as bytes
        raise InvalidInput("the client_encoding of on= is SQL_ASCII; set it to UTF8")
    # asyncpg has no such switch: outside of a transaction each of its statements is committed.
    if getattr(connection, "autocommit", True) and wire.idle:
        raise InvalidInput(f"on= is in autocommit mode without a transaction; {borrowed.fix}")
    return wire


def _wire(connection: Any) -> Wire:
    if isinstance(connection, psycopg.AsyncConnection):
        return Suspending(connection)
    if isinstance(connection, psycopg.Connection):
        return Blocking(connection)
    if is_asyncpg(connection):
        from tenure.store.postgres.asyncpg_connection import AsyncpgWire

        return AsyncpgWire(connection)
    if is_a(connection, "psycopg2", "connection"):
        from tenure.store.postgres.psycopg2_connection import Psycopg2Wire

        return Psycopg2Wire(connection)
    raise InvalidInput(
        f"on= takes a connection of psycopg, psycopg2 or asyncpg, or one of SQLAlchemy or Django "
        f"over them, not {_name(connection)}"
    )


def _name(thing: object) -> str:
    kind = type(thing)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
