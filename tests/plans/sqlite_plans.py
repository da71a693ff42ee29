"""Query plans of our statements on SQLite."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import apsw

from tenure.store.statements import statements

HOT_TABLES = frozenset(
    {"job", "ready", "due", "history", "lease", "event", "unique_key", "note", "step", "parent"}
)
_SCAN = re.compile(r"SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?")
_SUBQUERY = re.compile(r"(?:CO-ROUTINE|MATERIALIZE) (\w+)")
_NAMED = re.compile(r"(?<![:\w]):([a-z_]+)")
_USED = re.compile(r"\btenure_(\w+)(?:\s+(?:as\s+)?(\w+))?")
_NO_ALIAS = {"where", "set", "on", "order", "group", "cross", "left", "join", "indexed", "as"}


@dataclass(frozen=True)
class Scan:
    """A loop over all rows of a table, or over all entries of one of its indexes."""

    table: str
    index: str | None

    def __str__(self) -> str:
        return f"{self.table} by {self.index}" if self.index else self.table


def full_scans(connection: apsw.Connection, name: str) -> set[Scan]:
    """The scans of hot tables in the plans of a named entry."""
    return {
        scan for sql in statements("sqlite", "tenure")[name] for scan in _scans(connection, sql)
    }


def plan(connection: apsw.Connection, sql: str) -> list[str]:
    """The lines of EXPLAIN QUERY PLAN, with every parameter null."""
    names = set(_NAMED.findall(sql))
    values = dict.fromkeys(names) if names else (None,) * sql.count("?")
    rows = connection.execute(f"explain query plan {sql}", values).fetchall()
    return [str(row[3]) for row in rows]


def _scans(connection: apsw.Connection, sql: str) -> Iterator[Scan]:
    tables = _tables(sql + _views(connection, sql))
    lines = plan(connection, sql)
    subqueries = Counter(found[1] for line in lines if (found := _SUBQUERY.match(line)))
    for found in filter(None, map(_SCAN.match, lines)):
        if subqueries[found[1]]:  # its rows come from a subquery whose own plan is listed
            subqueries[found[1]] -= 1
            continue
        for table in sorted(tables.get(found[1], set()) & HOT_TABLES):
            yield Scan(table, found[2])


def _views(connection: apsw.Connection, sql: str) -> str:
    """The text of the views that a statement uses, and of those that they use."""
    text = ""
    for name, body in connection.execute("select name, sql from sqlite_schema where type = 'view'"):
        if re.search(rf"\b{name}\b", sql):
            text += str(body) + _views(connection, str(body).partition(" as")[2])
    return text


def _tables(sql: str) -> dict[str, set[str]]:
    """Which tables may a name in the plan stand for? By alias and by full name."""
    tables: dict[str, set[str]] = {}
    for table, alias in _USED.findall(sql):
        tables.setdefault(f"tenure_{table}", set()).add(table)
        if alias and alias not in _NO_ALIAS:
            tables.setdefault(alias, set()).add(table)
    return tables
