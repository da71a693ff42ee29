"""Where points are played: a database of each kind, and a way back to the scene in milliseconds.

SQLite: the file of the scene is copied. PostgreSQL: the rows of the scene are kept in a schema
beside, and put back; sequences are set back, too, so that each play draws the same ids.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from tenure.store import Store, open_store
from tenure.store.postgres.session import Postgres
from tests.support.patience import until
from tests.support.plain import Plain

UNLIKE = ("request_id", "expires_tick", "process")
"""Columns that are never the same twice: drawn by lot, told by a clock that nobody can set, or the
number of a connection."""

Rows = dict[str, list[str]]
Lay = Callable[[Store, Plain, str], None]


class Stage(ABC):
    """One database."""

    can_send = False
    """Is there a moment when a statement is sent and not answered?"""
    victims_url: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def lay(self, lay: Lay, driver: str) -> None:
        """Lay a scene on an empty database, and keep it."""

    @abstractmethod
    def restore(self) -> None:
        """Back to the scene."""

    @abstractmethod
    def buried(self) -> None:
        """Wait until the database has noticed that the process is dead."""

    @abstractmethod
    def opened(self) -> Any:
        """A context: a store, plain SQL and the URL for those who carry on."""

    @abstractmethod
    def rows(self, plain: Plain) -> Rows:
        """All rows of all tables, as text."""

    def close(self) -> None:  # noqa: B027 - nothing is open
        """Close what is open."""


class SQLiteStage(Stage):
    """A file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._empty = {driver: folder / f"empty-{driver}.db" for driver in ("apsw", "sqlite3")}
        self._scene = folder / "scene.db"
        self._copy = folder / "jobs.db"
        self._options = ""

    def lay(self, lay: Lay, driver: str) -> None:
        self._options = "" if driver == "apsw" else "?driver=sqlite3&allow_affected_sqlite=1"
        self.victims_url = f"sqlite:///{self._copy}{self._options}"
        empty = self._empty[driver]
        if not empty.exists():
            url = f"sqlite:///{empty}{self._options}"
            open_store(url).close()
            with Plain(url) as plain:
                plain.rows("create table ledger (job bigint, token bigint)")
        self._put(empty)
        with self.opened() as (store, plain, url):
            lay(store, plain, url)
        self._scene.unlink(missing_ok=True)
        shutil.copyfile(self._copy, self._scene)

    def restore(self) -> None:
        self._put(self._scene)

    def _put(self, source: Path) -> None:
        for end in ("", "-wal", "-shm"):
            Path(f"{self._copy}{end}").unlink(missing_ok=True)
        shutil.copyfile(source, self._copy)

    def buried(self) -> None:
        """The system has released its locks already."""

    @contextmanager
    def opened(self) -> Iterator[tuple[Store, Plain, str]]:
        with open_store(self.victims_url) as store, Plain(self.victims_url) as plain:
            yield store, plain, self.victims_url

    def rows(self, plain: Plain) -> Rows:
        tables = plain.rows("select name from sqlite_master where type = 'table' order by name")
        return {table: _texts(plain, table) for (table,) in tables}


def _texts(plain: Plain, table: str) -> list[str]:
    columns = [row[1] for row in plain.rows(f"pragma table_info({table})") if row[1] not in UNLIKE]
    return sorted(map(repr, plain.rows(f"select {', '.join(columns)} from {table}")))


class PostgresStage(Stage):
    """A database. Those who carry on keep their connections; a victim connects by itself."""

    can_send = True

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(folder)
        self.url = url
        self.victims_url = f"{url}&application_name=victim"
        self._plain = Plain(url)
        self._store = open_store(url)
        self._plain.rows("create table ledger (job bigint, token bigint)")
        self._plain.rows("create schema kept")
        found = self._plain.rows(
            "select c.oid::regclass::text, relname from pg_class c"
            " join pg_namespace n on n.oid = relnamespace where relkind in ('r', 'p')"
            " and not relispartition and relname <> 'schema_version'"
            " and (nspname = 'tenure' or relname = 'ledger') order by 1"
        )
        self._tables: list[tuple[str, str]] = [(full, f"kept.{name}") for full, name in found]
        for table, kept in self._tables:
            self._plain.rows(f"create table {kept} (like {table})")
        self._sequences = [
            row[0]
            for row in self._plain.rows(
                "select c.oid::regclass::text from pg_class c join pg_namespace n"
                " on n.oid = relnamespace where relkind = 'S' and nspname = 'tenure' order by 1"
            )
        ]
        row = f"(to_jsonb(t) - '{{{','.join(UNLIKE)}}}'::text[])::text"
        self._all_rows = " union all ".join(
            f"select '{table}', coalesce(json_agg({row} order by {row}), '[]') from {table} t"
            for table, _ in self._tables
        )
        self._way_back = ""

    def lay(self, lay: Lay, driver: str) -> None:  # noqa: ARG002
        self._plain.rows("; ".join(f"delete from {table}" for table, _ in self._tables))
        self._forget()
        lay(self._store, self._plain, self.url)
        self._plain.rows("; ".join(_moves(self._tables, back=False)))
        values = self._plain.rows(
            " union all ".join(f"select last_value, is_called from {s}" for s in self._sequences)
        )
        sets = [
            f"select setval('{name}', {value}, {called})"
            for name, (value, called) in zip(self._sequences, values, strict=True)
        ]
        self._way_back = "; ".join([*_moves(self._tables, back=True), *sets])

    def restore(self) -> None:
        self._plain.rows(self._way_back)
        self._forget()

    def _forget(self) -> None:
        """What a store knows of a server that it meets for the first time."""
        session = cast(Postgres, self._store._scope.session)
        session.floors.reset()
        session.gates.there = None
        session.gates.turns.clear()
        session._ids.clear()

    def buried(self) -> None:
        sessions = "select pid from pg_stat_activity where application_name = 'victim'"
        until(lambda: not self._plain.rows(sessions), "the server ends the session of the dead")

    @contextmanager
    def opened(self) -> Iterator[tuple[Store, Plain, str]]:
        yield self._store, self._plain, self.url

    def rows(self, plain: Plain) -> Rows:
        return dict(plain.rows(self._all_rows))

    def close(self) -> None:
        self._store.close()
        self._plain.close()


def _moves(tables: list[tuple[str, str]], *, back: bool) -> Iterator[str]:
    for table, kept in tables:
        to, of = (table, kept) if back else (kept, table)
        yield f"delete from {to}"
        yield f"insert into {to} {'overriding system value ' if back else ''}select * from {of}"
