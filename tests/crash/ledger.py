"""A table of the user's own, beside the jobs: what handlers write in their own transactions.

It has no unique index, on purpose: an effect that happens twice must be seen, not prevented.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tests.support.plain import Plain

BUSY_SECONDS = 30.0
_mine = threading.local()


def create(url: str) -> None:
    """Make the table."""
    with Plain(url) as plain:
        plain.rows("create table ledger (job bigint, token bigint)")


def entries(url: str) -> Counter[int]:
    """How often each job stands in the ledger."""
    with Plain(url) as plain:
        return Counter(row[0] for row in plain.rows("select job from ledger"))


@contextmanager
def transaction(url: str) -> Iterator[Any]:
    """The caller's own connection with an open transaction; committed, or rolled back."""
    connection = _connection(url)
    connection.execute("begin" if _is_postgres(url) else "begin immediate")
    try:
        yield connection
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def enter(connection: Any, job: int, token: int) -> None:
    """Write one row."""
    connection.execute(f"insert into ledger values ({job:d}, {token:d})")


def _is_postgres(url: str) -> bool:
    return url.startswith("postgres")


def _connection(url: str) -> Any:
    """One connection per thread, kept: to connect takes longer than the rest of a handler."""
    known = getattr(_mine, "connection", None)
    if known is None or getattr(known, "closed", False):
        known = _mine.connection = _connect(url)
    return known


def _connect(url: str) -> Any:
    if _is_postgres(url):
        return psycopg.connect(url, autocommit=True)
    path = urlsplit(url).path.removeprefix("/")
    return sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)
