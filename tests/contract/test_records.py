"""Rows have names: each record has the columns that its statements return, on both databases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import apsw
import apsw.ext
import psycopg
import pytest

from tenure import store
from tenure.store import records
from tenure.store.copy import tables
from tenure.store.records import RETURNED_BY_POSTGRES, RETURNED_BY_SQLITE, Returned
from tenure.store.session import as_records
from tenure.store.statements import Dialect, statements

STORE = Path(store.__file__).parent
OWN = {"postgres": RETURNED_BY_POSTGRES, "sqlite": RETURNED_BY_SQLITE}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(STORE.rglob("*.py")):
        yield path.relative_to(STORE).as_posix(), ast.parse(path.read_text("utf-8"))


def module_at(path: str) -> Any:
    return import_module(".".join(["tenure.store", *path.removesuffix(".py").split("/")]))


def tables_of_records() -> list[Returned]:
    """The table of each module that has one: what both databases return."""
    return [
        module_at(path).RETURNED_BY
        for path, tree in modules()
        if any(
            isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "RETURNED_BY"
            for node in tree.body
        )
    ]


RETURNED_BY: Returned = {
    record: names for table in tables_of_records() for record, names in table.items()
}

ONE_COLUMN = {
    "postgres": {"lock_finished_parents", "mark_parents", "draw_ids"},
    "sqlite": {"lock_finished_parents", "mark_parents"},
}
"""Statements that code names by a variable, or whose only column an engine unpacks in place."""

IN_ENGINES = {"postgres/tx.py", "sqlite/tx.py"}
"""They map rows of hot statements themselves."""

NO_ROWS = {"Stored"}
"""Records of other things, beside those of rows."""

TO_COME = {"gates/limits.py", "gates/look.py", "gates/passing.py", "sqlite/gates.py"}
"""The rows of gates have no names yet."""


def tables_of_a_copy() -> list[tables.Table]:
    listed = [tables.UNIQUE_KEYS, tables.QUEUES, tables.GATES, tables.SCHEDULES, tables.TICKS]
    return [*tables.JOB_TABLES, tables.WORKFLOWS, *listed]


def expected(dialect: Dialect) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each statement with the columns that code expects of it."""
    for returned_by in (RETURNED_BY, OWN[dialect]):
        for record, names in returned_by.items():
            for name in names:
                yield name, record._fields  # type: ignore[attr-defined]
    for table in tables_of_a_copy():
        yield f"{table.name}_rows", table.columns


def sqlite_columns(connection: apsw.Connection, name: str) -> list[tuple[str, ...]]:
    """The columns of each statement of an entry that returns rows."""
    entry = statements("sqlite", "tenure")[name]
    found = [apsw.ext.query_info(connection, sql).description for sql in entry]
    return [tuple(column for column, _ in columns) for columns in found if columns]


def postgres_columns(connection: psycopg.Connection[Any], name: str) -> list[tuple[str, ...]]:
    """The same, as the server describes them before it runs anything."""
    [sql] = statements("postgres", "tenure")[name]
    parameters = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql)))
    numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${parameters.index(found[1]) + 1}", sql)
    told = connection.pgconn.prepare(b"", numbered.replace("%%", "%").encode())
    assert not told.error_message, (name, told.error_message)
    described = connection.pgconn.describe_prepared(b"")
    columns = [described.fname(n) for n in range(described.nfields)]
    return [tuple(column.decode() for column in columns if column is not None)]


@pytest.fixture
def sqlite(sqlite_template: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(sqlite_template), flags=apsw.SQLITE_OPEN_READONLY)
    connection.execute(statements("sqlite", "tenure")["open_batch"][0])  # of this connection
    yield connection
    connection.close()


def test_sqlite_returns_the_columns_of_each_record(sqlite: apsw.Connection) -> None:
    for name, columns in expected("sqlite"):
        found = sqlite_columns(sqlite, name)
        assert found, f"{name} returns nothing"
        for each in found:
            assert each == columns, name


def test_postgres_returns_the_columns_of_each_record(pg_migrated_url: str) -> None:
    with psycopg.connect(pg_migrated_url) as connection:
        for name, columns in expected("postgres"):
            assert postgres_columns(connection, name) == [columns], name


def test_every_record_is_compared() -> None:
    """A record stands in a table of its module, wherever that is."""
    compared = {*RETURNED_BY, *RETURNED_BY_POSTGRES, *RETURNED_BY_SQLITE}
    found = {
        getattr(module_at(path), node.name)
        for path, tree in modules()
        if path == "records.py" or path.endswith("/records.py")
        for node in tree.body
        if isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases)
        if node.name not in NO_ROWS
    }
    assert found - compared == set()
    assert len(compared) > 50


def test_a_statement_returns_one_record() -> None:
    for dialect in get_args(Dialect):
        names = [name for name, _ in expected(dialect)]
        assert len(names) == len(set(names)), dialect


# --- how code reads rows ----------------------------------------------------------------------


def calls(tree: ast.Module, method: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == method:
            yield node


def test_code_reads_a_statement_as_the_record_that_it_returns() -> None:
    read = 0
    for path, tree in modules():
        own = OWN.get(path.partition("/")[0], RETURNED_BY_POSTGRES)
        for call in calls(tree, "fetch_as"):
            record, statement, *_ = call.args
            if not isinstance(statement, ast.Constant) or not isinstance(record, ast.Name):
                continue  # a few take the name from a table of their own
            kind = getattr(module_at(path), record.id)
            names = (*RETURNED_BY.get(kind, ()), *own.get(kind, ()))
            assert statement.value in names, (path, record.id, statement.value)
            read += 1
    assert read > 60


def columns_read(dialect: Dialect) -> set[str]:
    """The statements that this database runs by `fetch_column`."""
    others = {"sqlite": "postgres/", "postgres": "sqlite/"}[dialect]
    named = {
        str(call.args[0].value)
        for path, tree in modules()
        if not path.startswith(others)
        for call in calls(tree, "fetch_column")
        if isinstance(call.args[0], ast.Constant)
    }
    return named | ONE_COLUMN[dialect]


def test_a_column_comes_from_a_statement_of_one_column(
    sqlite: apsw.Connection, pg_migrated_url: str
) -> None:
    """A second column would be an error at run time; this finds it before."""
    assert len(columns_read("sqlite")) > 30
    for name in columns_read("sqlite"):
        assert all(len(columns) == 1 for columns in sqlite_columns(sqlite, name)), name
    with psycopg.connect(pg_migrated_url) as connection:
        for name in columns_read("postgres"):
            assert [len(each) for each in postgres_columns(connection, name)] == [1], name


def runs_statements(tree: ast.Module) -> bool:
    return any(any(calls(tree, name)) for name in ("fetch", "fetch_as", "fetch_column"))


def number(node: ast.expr) -> int | None:
    """The number that is written there, if it is one."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = number(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def is_a_list(node: ast.expr) -> bool:
    """Several things of one kind: the first or the last of them is no column."""
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return name.endswith("s") or name in {"node_of", "page", "found", "block", "names", "late"}


def test_no_module_reads_a_column_by_its_number() -> None:
    told = []
    for path, tree in modules():
        if path in TO_COME or path in IN_ENGINES or not runs_statements(tree):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript):
                index = number(node.slice)
                if index is None or (index in (0, -1) and is_a_list(node.value)):
                    continue
                told.append(f"{path}:{node.lineno} {ast.unparse(node)}")
    assert told == []


def test_a_row_of_another_width_is_refused() -> None:
    assert as_records(records.JobToken, []) == []
    assert as_records(records.JobToken, [(1, 2)]) == [records.JobToken(1, 2)]
    with pytest.raises(TypeError, match="JobToken has 2 fields, the row 3"):
        as_records(records.JobToken, [(1, 2, 3)])
