"""Generic plans of our statements on PostgreSQL, as the store's own connections would keep them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from tenure.store.postgres.session import _PLANNER
from tenure.store.statements import statements

Connection = psycopg.Connection[tuple[Any, ...]]

HOT_TABLES = ("job", "ready", "due", "history", "lease", "unique_key", "event", "note", "step",
              "parent")  # fmt: skip
_PARAMETER = re.compile(r"%\(([a-z_]+)\)s")
_CONDITIONS = ("Index Cond", "TID Cond", "Recheck Cond")
_UNPLANNED = ("copy ", "savepoint ", "rollback to ", "release ")
_READS_BY_BITMAP = {"count_finished", "walk_by_finish"}
"""Run only by transactions that read, which may scan bitmaps. BRIN has nothing else."""
_PASSES_LIMIT_ON = {"LockRows", "Subquery Scan", "Result"}


@dataclass(frozen=True)
class Scan:
    """One place where a plan reads a table."""

    kind: str
    table: str
    index: str | None
    has_condition: bool
    is_limited: bool
    """A LIMIT stands above it, with nothing in between that reads everything first."""

    @property
    def walks_everything(self) -> bool:
        """True when the work grows with the table."""
        return not self.has_condition and not self.is_limited

    def __str__(self) -> str:
        return f"{self.kind} on {self.table}" + (f" by {self.index}" if self.index else "")


def plannable(name: str) -> bool:
    """COPY and savepoints have no plan."""
    return not statements("postgres", "tenure")[name][0].lstrip().startswith(_UNPLANNED)


def plan_like_our_connections(connection: Connection) -> None:
    """Give a connection our planner settings, and the plans that survive many executions."""
    for name, value in (_PLANNER | {"plan_cache_mode": "force_generic_plan"}).items():
        connection.execute(f"set {name} = {value}")


def scans(connection: Connection, name: str) -> list[Scan]:
    """How the generic plan of a named statement reads the hot tables."""
    [sql] = statements("postgres", "tenure")[name]
    names = list(dict.fromkeys(_PARAMETER.findall(sql)))
    numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", sql)
    arguments = f"({', '.join(['null'] * len(names))})" if names else ""
    if name in _READS_BY_BITMAP:
        connection.execute("set enable_bitmapscan = on")
    connection.execute(f"prepare planned as {numbered.replace('%%', '%')}")
    try:
        row = connection.execute(f"explain (format json) execute planned{arguments}").fetchone()
    finally:
        connection.execute("deallocate planned")
        connection.execute("set enable_bitmapscan = off")
    assert row is not None
    return list(_scans(row[0][0]["Plan"], is_limited=False))


def _scans(node: dict[str, Any], *, is_limited: bool) -> Iterator[Scan]:
    table = _hot_table(node.get("Relation Name"))
    if table is not None and "Scan" in node["Node Type"]:
        yield Scan(
            node["Node Type"],
            table,
            node.get("Index Name"),
            any(condition in node for condition in _CONDITIONS),
            is_limited,
        )
    for child in node.get("Plans", []):
        yield from _scans(child, is_limited=_stays_limited(node, child, is_limited))


def _stays_limited(node: dict[str, Any], child: dict[str, Any], is_limited: bool) -> bool:
    """Does a limit above the child stop the child's scan early?"""
    kind = node["Node Type"]
    if kind == "Limit":
        return True
    if kind in ("Append", "Merge Append"):  # the partitions of history
        return is_limited
    if kind == "Nested Loop":
        return is_limited and child["Parent Relationship"] == "Outer"
    return is_limited and kind in _PASSES_LIMIT_ON


def _hot_table(relation: str | None) -> str | None:
    if relation is None:
        return None
    if relation.startswith("history_"):
        return "history"
    return relation if relation in HOT_TABLES else None
