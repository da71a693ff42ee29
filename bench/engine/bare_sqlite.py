"""The bare loop on SQLite: one narrow table, a state flag, and nothing else.

It shares driver (apsw), durability (WAL, FULL), cache size, payload and block size with our side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import msgspec

from bench import work
from bench.harness import check

SETTINGS = ("journal_mode = wal", "synchronous = full", "cache_size = -2000")
TABLE = """
drop table if exists bare;
create table bare (
    id integer primary key,
    state int not null default 0,
    attempt int not null default 0,
    payload text not null
);
create index bare_ready on bare (id) where state = 0;
"""
CLAIM = """
update bare set state = 1, attempt = attempt + 1
where id in (select id from bare where state = 0 order by id limit ?)
returning id, payload
"""
FINISH = "update bare set state = 2 where id in (select value from json_each(?))"
INSERT = "insert into bare (payload) values (?)"


def connect(path: Path) -> apsw.Connection:
    """A connection with the settings of our side."""
    connection = apsw.Connection(str(path))
    for setting in SETTINGS:
        connection.execute(f"pragma {setting}").fetchall()
    return connection


class _Side:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def _insert(self, rows: int) -> None:
        payload = work.PAYLOAD.decode()
        self._connection.execute("begin immediate")
        self._connection.executemany(INSERT, ((payload,) for _ in range(rows)))
        self._connection.execute("commit")

    def _count(self, where: str) -> int:
        return int(self._connection.execute(f"select count(*) from bare {where}").get)


class Draining(_Side):
    """Claims and finishes in blocks: two transactions."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self._done: list[int] = []

    def fill(self, jobs: int) -> None:
        self._done = []
        self._connection.execute(TABLE)
        self._insert(jobs)
        self._connection.execute("pragma wal_checkpoint(truncate)").fetchall()

    def step(self) -> int:
        execute = self._connection.execute
        execute("begin immediate")
        rows: list[Any] = execute(CLAIM, (work.BLOCK,)).fetchall()
        execute("commit")
        ids = [row[0] for row in rows]
        execute("begin immediate")
        execute(FINISH, (msgspec.json.encode(ids).decode(),))
        execute("commit")
        self._done += ids
        return len(ids)

    def audit(self, jobs: int) -> None:
        check(len(set(self._done)) == len(self._done) == jobs, "the bare loop lost count")
        check(self._count("where state = 2") == jobs, "the bare loop left jobs unfinished")


class Inserting(_Side):
    """executemany in chunks, one commit each."""

    def fill(self, jobs: int) -> None:  # noqa: ARG002
        self._connection.execute(TABLE)
        self._connection.execute("pragma wal_checkpoint(truncate)").fetchall()

    def step(self) -> int:
        self._insert(work.CHUNK)
        return work.CHUNK

    def audit(self, jobs: int) -> None:
        check(self._count("") == jobs, "the bare loop lost rows")


class Count(work.Count):
    """Counts our rows through a connection of its own, of the same library."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __call__(self, table: str) -> int:
        return int(self._connection.execute(f"select count(*) from tenure_{table}").get)

    def settle_down(self) -> None:
        """Checkpoint the write-ahead log, so that no round pays for the one before."""
        self._connection.execute("pragma wal_checkpoint(truncate)").fetchall()
