"""Plain SQL on a store's database, beside the store: what a test reads or breaks by hand.

SQL is written as in the store's own files: `tenure.` stands for the schema on PostgreSQL and for
the prefix of the tables on SQLite. A SQLite file is opened through the library that the store's URL
names, never through another one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import apsw

from tenure.store.statements import qualify
from tenure.store.url import without

Row = tuple[Any, ...]
KEPT: dict[str, Any] = {}
"""Open connections to databases of PostgreSQL, by URL: see recycled.py."""

TABLES = (
    "job",
    "ready",
    "due",
    "lease",
    "history",
    "unique_key",
    "event",
    "note",
    "step",
    "parent",
    "queue",
    "worker",
    "gate",
    "gated",
    "turn",
    "gate_hold",
    "gate_share",
    "bucket",
    "statistic",
    "depth",
    "depth_sample",
    "workflow",
    "node",
    "feed_end",
    "feed_reader",
    "feed",
    "failure_hook",
)


def drivers_url(url: str) -> str:
    """The URL of a store on PostgreSQL as a driver understands it."""
    return without(url, ("schema", "pooler", "notify"))


class Plain:
    """A connection of its own; every statement is its own transaction."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.is_postgres = parts.scheme.startswith("postgres")
        self._connection: Any
        if self.is_postgres:
            import psycopg  # the demo looks at SQLite through this, where psycopg may be missing

            # Nothing is prepared: there may be a pooler in between.
            self._connection = psycopg.connect(
                drivers_url(url), autocommit=True, prepare_threshold=None
            )
        elif parse_qs(parts.query).get("driver") == ["sqlite3"]:
            self._connection = sqlite3.connect(
                parts.path.removeprefix("/"), isolation_level=None, check_same_thread=False
            )
        else:
            self._connection = apsw.Connection(parts.path.removeprefix("/"))
            self._connection.set_busy_timeout(60_000)  # a worker may be writing

    @classmethod
    def over(cls, connection: Any) -> Self:
        """The same through an open connection, of apsw or psycopg."""
        plain = cls.__new__(cls)
        plain.is_postgres = not isinstance(connection, apsw.Connection)
        plain._connection = connection
        return plain

    def rows(self, sql: str, *params: object) -> list[Row]:
        """Run one statement; parameters are written `?`. Answers its rows, if it has any."""
        if self.is_postgres:
            sql = qualify(sql, "postgres", "tenure").replace("?", "%s")
            cursor = self._connection.execute(sql, params or None)
            return cursor.fetchall() if cursor.description else []
        return list(self._connection.execute(qualify(sql, "sqlite", "tenure"), params))

    def one(self, sql: str, *params: object) -> Any:
        """The single value of a query."""
        [[value]] = self.rows(sql, *params)
        return value

    def count(self, table: str, where: str = "true") -> int:
        """How many rows of a table fulfil a condition."""
        return int(self.one(f"select count(*) from tenure.{table} where {where}"))

    def refuse_inserts(self, table: str) -> None:
        """From now on each insert into this table fails."""
        if self.is_postgres:
            self.rows(
                "create function public.refuse() returns trigger language plpgsql as "
                "$$ begin raise exception 'refused by the test'; end $$"
            )
            does = "for each row execute function public.refuse()"
        else:
            does = "begin select raise(abort, 'refused by the test'); end"
        self.rows(f"create trigger refuse before insert on tenure.{table} {does}")

    def allow_inserts(self, table: str) -> None:
        """Undo `refuse_inserts`."""
        where = f" on tenure.{table}" if self.is_postgres else ""
        self.rows(f"drop trigger refuse{where}")
        if self.is_postgres:
            self.rows("drop function public.refuse()")

    def table(self, name: str, columns: Sequence[str] = ()) -> list[Row]:
        """All rows of a table, in a stable order, JSON decoded or not at all as the driver does."""
        wanted = ", ".join(columns) or "*"
        found = self.rows(f"select {wanted} from tenure.{name}")
        return sorted((tuple(map(_comparable, row)) for row in found), key=repr)

    def pick(self, name: str, columns: Sequence[str]) -> list[Row]:
        """These columns of all rows of a table, in no order: for who looks often."""
        return self.rows(f"select {', '.join(columns)} from tenure.{name}")

    def everything(self) -> dict[str, list[Row]]:
        """All rows of all tables; the counters of SQLite are not among them."""
        return {name: self.table(name) for name in TABLES}

    def wipe(self) -> None:
        """Empty all tables."""
        for name in (*TABLES, "feed_new") if self.is_postgres else TABLES:
            self.rows(f"delete from tenure.{name}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _comparable(value: object) -> object:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value
