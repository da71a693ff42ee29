"""A fresh database for one trial, and a look into it behind the back of whoever uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Literal

import apsw
import psutil
import psycopg

from bench.engine import bare_sqlite
from bench.lab import Lab
from tests.support.postgres import Server, database_name


class Place(ABC):
    """Where a trial happens."""

    url: str

    @abstractmethod
    def number(self, query: str) -> int:
        """The single value of a query."""

    @abstractmethod
    def settle_down(self) -> None:
        """Let everybody start alike: fresh statistics, nothing waiting to be written."""

    def written(self) -> tuple[int, int] | None:
        """Commits in this database and bytes of WAL so far, if they can be told."""
        return None

    def server_cpu_seconds(self) -> float:
        """CPU time of the server's processes so far."""
        return 0.0

    def hold_snapshot(self) -> None:
        """Leave a REPEATABLE READ transaction open until the end of the trial."""
        raise NotImplementedError


class PostgresPlace(Place):
    """A database of a durable server, over TCP on loopback for everybody."""

    def __init__(self, server: Server, url: str) -> None:
        self._server = server
        self.url = server.url(database_name(url), tcp=True)
        self._connection = psycopg.connect(self.url, autocommit=True)
        self._holder: psycopg.Connection[tuple[object, ...]] | None = None

    def close(self) -> None:
        """Close what looks in."""
        if self._holder is not None:
            self._holder.close()
        self._connection.close()

    def number(self, query: str) -> int:
        row = self._connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def settle_down(self) -> None:
        self._connection.execute("vacuum analyze")
        self._connection.execute("checkpoint")

    def written(self) -> tuple[int, int]:
        commits = self.number(
            "select xact_commit from pg_stat_database where datname = current_database()"
        )
        return commits, self.number("select pg_current_wal_lsn() - '0/0'::pg_lsn")

    def server_cpu_seconds(self) -> float:
        total = 0.0
        for process in psutil.Process(self._server.postmaster_pid).children():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def hold_snapshot(self) -> None:
        self._holder = psycopg.connect(self.url)
        self._holder.execute("set transaction isolation level repeatable read")
        self._holder.execute("select 1 from pg_class")


class SqlitePlace(Place):
    """A file on the same kind of disk."""

    def __init__(self, lab: Lab) -> None:
        self._path = lab.file("jobs.db")
        self.url = f"sqlite:///{self._path}"

    def number(self, query: str) -> int:
        with closing(self._connect()) as connection:
            return int(connection.execute(query).get)

    def settle_down(self) -> None:
        with closing(self._connect()) as connection:
            connection.execute("pragma wal_checkpoint(truncate)").fetchall()

    def _connect(self) -> apsw.Connection:
        connection = bare_sqlite.connect(self._path)
        connection.set_busy_timeout(10_000)
        return connection


@contextmanager
def fresh_place(lab: Lab, store: Literal["postgres", "sqlite"]) -> Iterator[Place]:
    """An empty database, gone afterwards, or autovacuum would work on it beside the next trial."""
    if store == "sqlite":
        yield SqlitePlace(lab)
        return
    with lab.database() as url:
        place = PostgresPlace(lab.server, url)
        try:
            yield place
        finally:
            place.close()
