"""A look never writes: SQLite files that are not Tenure's, are empty or do not exist."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from psycopg import sql

from tenure import Tenure
from tenure.store import open_store
from tests.cli.inside import everything_in, inside

LOOKS = [
    ("ls",), ("get", "1"), ("why", "1"), ("timeline", "1"), ("attempts", "1"),
    ("steps", "1"), ("errors",),
    ("queues",), ("workers",), ("stats",), ("top", "--once"), ("health",), ("db", "status"),
    ("gate", "list"), ("gate", "show", "g"), ("schedule", "list"), ("schedule", "show", "s"),
    ("workflow", "list"), ("workflow", "show", "1"), ("cancel", "1"), ("replay", "all", "--yes"),
    ("rm", "all", "--yes"), ("hold", "1"), ("unhold", "1"), ("move", "1", "--priority", "3"),
    ("prune", "--yes"), ("queues", "pause", "default"), ("enqueue", "shop.greet"),
]  # fmt: skip


def other_program(file: Path, journal: str = "delete") -> None:
    """A database as another program leaves it."""
    with sqlite3.connect(file) as connection:
        connection.execute(f"pragma journal_mode = {journal}")
        connection.execute("create table customer (name text)")
        connection.execute("insert into customer values ('Ada')")
    connection.close()


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_the_file_of_another_program_stays_as_it_is(words: tuple[str, ...], tmp_path: Path) -> None:
    other_program(tmp_path / "django.sqlite3")
    before = everything_in(tmp_path)
    ended = inside("--url", f"sqlite:///{tmp_path}/django.sqlite3", *words)
    assert (ended.code, ended.out) == (5, ""), ended
    assert "belongs to another program: it has 1 table and no Tenure schema" in ended.err
    assert "Check the URL; to add Tenure's tables to this file, run `tenure db init`" in ended.err
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize("driver", ["apsw", "sqlite3"])
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_no_file_appears_beside_it(journal: str, driver: str, tmp_path: Path) -> None:
    other_program(tmp_path / "django.sqlite3", journal)
    before = everything_in(tmp_path)
    url = f"sqlite:///{tmp_path}/django.sqlite3?driver={driver}&allow_affected_sqlite=1"
    assert inside("--url", url, "ls").code == 5
    assert everything_in(tmp_path) == before


def test_a_worker_leaves_the_file_of_another_program_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_program(tmp_path / "django.sqlite3")
    before = everything_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = f"other_files_{tmp_path.name}"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(app=Tenure()))
    ended = inside("--url", f"sqlite:///{tmp_path}/django.sqlite3", "worker", module)
    assert ended.code == 5
    assert "belongs to another program" in ended.err
    assert everything_in(tmp_path) == before


def test_an_empty_file_stays_empty(tmp_path: Path) -> None:
    (tmp_path / "new.db").touch()
    ended = inside("--url", f"sqlite:///{tmp_path}/new.db", "ls")
    assert ended.code == 5
    assert "has no Tenure schema; `tenure db init` creates it" in ended.err
    assert everything_in(tmp_path) == {"new.db": b""}


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    for words in LOOKS:
        assert inside("--url", f"sqlite:///{tmp_path}/none.db", *words).code == 4
    assert everything_in(tmp_path) == {}


def test_a_schema_that_is_only_in_the_wal_is_found(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with open_store(url):  # nothing is checkpointed while it is open
        assert inside("--url", url, "ls").out == "no jobs\n"
    assert inside("--url", url, "ls").out == "no jobs\n"


def test_a_file_can_be_shared_after_db_init(tmp_path: Path) -> None:
    other_program(tmp_path / "shared.db")
    url = f"sqlite:///{tmp_path}/shared.db"
    assert inside("--url", url, "db", "init").code == 0
    assert inside("--url", url, "ls").out == "no jobs\n"


def test_doctor_names_missing_tables_of_a_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    open_store(url).close()
    assert inside("--url", url, "doctor").code == 0
    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        connection.execute("drop table tenure_step")
        connection.execute("drop index tenure_lease_expires_tick")
    connection.close()
    ended = inside("--url", url, "doctor")
    assert ended.code == 1
    assert "missing: lease_expires_tick, step; restore" in ended.out
    assert "FAIL  schema" in ended.out


def test_doctor_names_missing_tables_on_postgres(pg_migrated_url: str) -> None:
    assert inside("--url", pg_migrated_url, "doctor").code == 0
    with psycopg.connect(pg_migrated_url, autocommit=True) as connection:
        for name in ("step", "queue"):
            connection.execute(sql.SQL("drop table tenure.{} cascade").format(sql.Identifier(name)))
    ended = inside("--url", pg_migrated_url, "doctor")
    assert ended.code == 1
    assert "FAIL  schema" in ended.out
    assert "queue" in ended.out.split("missing: ")[1]
    assert "step" in ended.out.split("missing: ")[1]
