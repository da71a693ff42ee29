"""What PostgreSQL does: messages with statements, commits, rows, pages touched, WAL bytes.

The server counts. Statements are read from its log, so what a driver sends behind our backs counts
as well; a message with several statements is one. The other counts are the server's statistics. A
session reports those when it ends, or at the end of the transaction in which it was asked to. So
the connections of a store are asked, and those of a worker have ended.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import psycopg

from tests.guard.counts import Counts, Work
from tests.support.postgres import Server, database_name
from tests.worker.support import eventually

Connection = psycopg.Connection[tuple[object, ...]]

_ENTRY = re.compile(r"LOG:  (?:statement|execute [^:]*): (.*(?:\n\t.*)*)")
_READING = """
select d.xact_commit, sum(t.n_tup_ins + t.n_tup_upd + t.n_tup_del),
       sum(coalesce(heap_blks_read, 0) + coalesce(heap_blks_hit, 0)
           + coalesce(idx_blks_read, 0) + coalesce(idx_blks_hit, 0)
           + coalesce(toast_blks_read, 0) + coalesce(toast_blks_hit, 0)
           + coalesce(tidx_blks_read, 0) + coalesce(tidx_blks_hit, 0)),
       pg_current_wal_insert_lsn() - '0/0'
from pg_stat_database d, pg_stat_user_tables t join pg_statio_user_tables io using (relid)
where d.datname = current_database() and t.schemaname = 'tenure'
group by d.xact_commit
"""
_OTHERS = """
select count(*) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend'
  and pid <> all (%s::int[])
"""


class PostgresMeter:
    """Counts what other connections do in one database of a server that does nothing else."""

    def __init__(self, server: Server, url: str) -> None:
        self._log = server.directory / "log"
        self._auditor: Connection = psycopg.connect(url, autocommit=True)
        self._kept: Sequence[Connection] = ()
        self._own_commits = 0
        self._ask(f"alter database {database_name(url)} set log_statement = 'all'")

    def close(self) -> None:
        """End the auditor's own connection."""
        self._auditor.close()

    def keep(self, *kept: Connection) -> None:
        """These connections will stay open; all others must end with the work."""
        self._kept = kept

    def count(self, work: Work) -> Counts:
        """What `work` cost, without what counting costs."""
        before, position = self._read(), self._log.stat().st_size
        work()
        with self._log.open("rb") as log:
            log.seek(position)
            statements = _statements(log.read().decode(errors="replace"))
        after = self._read()
        values = {name: after[name] - before[name] for name in after}
        return Counts({"statements": statements.total(), **values}, dict(statements))

    def _read(self) -> dict[str, float]:
        pids = [connection.info.backend_pid for connection in (self._auditor, *self._kept)]
        eventually(lambda: self._ask(_OTHERS, pids) == [(0,)])
        for connection in self._kept:
            connection.execute("select pg_stat_force_next_flush()")
            self._own_commits += 1
        self._ask("select pg_stat_force_next_flush()")
        own = self._own_commits
        [row] = self._ask(_READING)
        names = ("commits", "rows", "pages", "WAL bytes")
        values = {name: float(str(value)) for name, value in zip(names, row, strict=True)}
        return values | {"commits": values["commits"] - own}

    def _ask(self, sql: str, *params: object) -> list[tuple[object, ...]]:
        self._own_commits += 1
        cursor = self._auditor.execute(sql, params or None)
        return cursor.fetchall() if cursor.description else []


def _statements(log: str) -> Counter[str]:
    return Counter(" ".join(text.split())[:90] for text in _ENTRY.findall(log))
