"""The bare loop on PostgreSQL: one narrow table, a state flag, and nothing else.

No tokens, no leases, no history, no retries. It is about as fast as a queue on one connection of
PostgreSQL gets, and shares driver, durability, payload and block size with our side.
"""

from __future__ import annotations

import psycopg

from bench import work
from bench.harness import check

TABLE = """
drop table if exists bare;
create table bare (
    id bigint generated always as identity primary key,
    state smallint not null default 0,
    attempt smallint not null default 0,
    payload json not null
);
create index bare_ready on bare (id) where state = 0;
"""
CLAIM = """
update bare set state = 1, attempt = attempt + 1
where id in (select id from bare where state = 0 order by id limit %s for update skip locked)
returning id, payload::text
"""
FINISH = "update bare set state = 2 where id = any (%s)"

Connection = psycopg.Connection[tuple[object, ...]]


def copy(connection: Connection, rows: int) -> None:
    """One COPY, one commit."""
    payload = work.PAYLOAD.decode()
    with connection.cursor() as cursor, cursor.copy("copy bare (payload) from stdin") as sink:
        for _ in range(rows):
            sink.write_row((payload,))


class Draining:
    """Claims and finishes in blocks: two statements, two commits."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._done: list[object] = []

    def fill(self, jobs: int) -> None:
        self._done = []
        self._connection.execute(TABLE)
        copy(self._connection, jobs)
        self._connection.execute("vacuum analyze bare")

    def step(self) -> int:
        connection = self._connection
        rows = connection.execute(CLAIM, (work.BLOCK,), prepare=True).fetchall()
        ids = [row[0] for row in rows]
        connection.execute(FINISH, (ids,), prepare=True)
        self._done += ids
        return len(ids)

    def audit(self, jobs: int) -> None:
        check(len(set(self._done)) == len(self._done) == jobs, "the bare loop lost count")
        row = self._connection.execute("select count(*) from bare where state = 2").fetchone()
        check(row == (jobs,), "the bare loop left jobs unfinished")


class Copying:
    """COPY in chunks, one commit each."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def fill(self, jobs: int) -> None:  # noqa: ARG002
        self._connection.execute(TABLE)

    def step(self) -> int:
        copy(self._connection, work.CHUNK)
        return work.CHUNK

    def audit(self, jobs: int) -> None:
        row = self._connection.execute("select count(*) from bare").fetchone()
        check(row == (jobs,), "the bare loop lost rows")


class Count(work.Count):
    """Counts our rows through a connection of its own."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self, table: str) -> int:
        row = self._connection.execute(f"select count(*) from tenure.{table}").fetchone()
        assert row is not None
        return int(str(row[0]))

    def settle_down(self) -> None:
        """Vacuum now, so that autovacuum has no reason to; then a checkpoint, before the fill."""
        self._connection.execute("vacuum analyze")
        self._connection.execute("checkpoint")
