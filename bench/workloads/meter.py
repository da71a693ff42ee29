"""Pages that the work of one store touches, on either database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw
import psycopg

from bench.lab import Lab
from bench.workloads.place import Kind, Place, fresh_place
from tests.support.pages import PageCounter

Count = Callable[[Callable[[], object]], int]
"""Answers the pages that some work touched."""


@contextmanager
def metered_place(lab: Lab, kind: Kind) -> Iterator[tuple[Place, Count]]:
    """A fresh database, and a count of the pages that its store asks for."""
    if kind == "sqlite":
        with _heard() as connections, fresh_place(lab, kind) as place:
            own = list(connections)  # the store's writer, and the auditor, which is idle

            def count(work: Callable[[], object]) -> int:
                before = sum(map(_asked_for, own))
                work()
                return sum(map(_asked_for, own)) - before

            yield place, count
        return
    with fresh_place(lab, kind) as place, psycopg.connect(place.url, autocommit=True) as reader:
        yield place, PageCounter(place.store, reader).total


@contextmanager
def _heard() -> Iterator[list[apsw.Connection]]:
    """All connections that are made meanwhile."""
    found: list[apsw.Connection] = []
    apsw.connection_hooks.append(found.append)
    try:
        yield found
    finally:
        apsw.connection_hooks.remove(found.append)


def _asked_for(connection: apsw.Connection) -> int:
    """Pages that were wanted from the cache of a connection, found there or not."""
    hits, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_HIT)
    misses, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)
    return hits + misses
