"""How many pages of our tables did a store touch on PostgreSQL?

The server counts buffer accesses per table and index. A session reports its counts once a second at
most, unless it asks to report them at the end of its next transaction, so the counter asks through
the store's own connection. Nothing else may work in the database meanwhile. A session that has
worked before, and is idle, reports ten seconds later: see `report`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from tenure.store import Store
from tenure.store.postgres.connection import Blocking
from tenure.store.postgres.session import Postgres

_TOUCHED = """
select relname,
       coalesce(heap_blks_read, 0) + coalesce(heap_blks_hit, 0)
       + coalesce(idx_blks_read, 0) + coalesce(idx_blks_hit, 0)
       + coalesce(toast_blks_read, 0) + coalesce(toast_blks_hit, 0)
       + coalesce(tidx_blks_read, 0) + coalesce(tidx_blks_hit, 0)
from pg_statio_user_tables where schemaname = 'tenure'
"""


def connection_of(store: Store) -> psycopg.Connection[tuple[object, ...]]:
    """The one idle connection of a store that was opened with `connections=1`."""
    session = store._scope.session
    assert isinstance(session, Postgres)
    [wire] = session._idle
    assert isinstance(wire, Blocking)
    return wire.connection


@dataclass
class PageCounter:
    """Counts the pages that the work of one store touches, through a connection of its own."""

    store: Store
    reader: psycopg.Connection[tuple[object, ...]]

    def by_table(self, work: Callable[[], object]) -> dict[str, int]:
        """Pages touched by `work`, by table, indexes included."""
        before = self._read()
        work()
        after = self._read()
        touched = {table: pages - before.get(table, 0) for table, pages in after.items()}
        return {table: pages for table, pages in touched.items() if pages}

    def total(self, work: Callable[[], object]) -> int:
        """Pages touched by `work`."""
        return sum(self.by_table(work).values())

    def report(self) -> None:
        """Let the store's session report all its work now, not in the middle of another count."""
        # The reader's as well.
        for connection in (self.reader, connection_of(self.store)):
            connection.execute("select pg_stat_force_next_flush()")

    def _read(self) -> dict[str, int]:
        self.report()
        return {str(name): int(str(pages)) for name, pages in self.reader.execute(_TOUCHED)}
