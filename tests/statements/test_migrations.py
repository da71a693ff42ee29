"""Migrations: statement 71."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tenure.errors import SchemaMissing, SchemaTooNew
from tenure.rules.job import NewJob, State
from tenure.store import Store, open_store
from tenure.store.migrate import VERSION
from tests.statements.support import Background, Database, add, at_once, defect, new_jobs, statement
from tests.support.stores import Clock


def schema_of(database: Database) -> list[tuple[object, ...]]:
    """Everything that the schema consists of."""
    if database.is_postgres:
        return database.rows(
            "select table_name, column_name, data_type, column_default, is_nullable "
            "from information_schema.columns where table_schema = 'tenure' order by 1, 2"
        ) + database.rows(
            "select indexdef from pg_indexes where schemaname = 'tenure' order by indexname"
        )
    return database.rows("select type, name, sql from sqlite_master order by 1, 2")


@statement(71)
def test_migrating_again_changes_nothing(store: Store, clock: Clock, database: Database) -> None:
    """Neither schema nor rows move, and jobs in flight go on."""
    add(store, clock, 2)
    store.claim("w1", {"default": 1}, now=clock.now)
    schema, rows = schema_of(database), database.snapshot()
    assert [store.migrate(), store.migrate()] == [VERSION, VERSION]
    assert (schema_of(database), database.snapshot()) == (schema, rows)


@statement(71)
def test_a_row_that_names_only_what_it_must_gets_the_documented_defaults(
    store: Store, clock: Clock, database: Database
) -> None:
    """The columns' own defaults are those of a plain `NewJob`: what an older writer leaves out
    means what it always meant."""
    [plain] = add(store, clock)
    created = database.one(f"select created_at from tenure.job where id = {plain}")
    stamp = f"'{created}'" if database.is_postgres else str(created)
    database.rows(
        "insert into tenure.job (id, created_at, task, args) "
        f"values (900, {stamp}, 'app.work', '{{}}')"
    )
    old, new = store.get(900), store.get(plain)
    defaults = NewJob(task="app.work")
    for name in ("queue", "priority", "tenant", "max_attempts", "timeout_seconds"):
        assert getattr(old, name) == getattr(new, name) == getattr(defaults, name)
    same = ("token", "attempts", "crashes", "held", "cancel_requested", "unique_key", "retry")
    assert [getattr(old, name) for name in same] == [getattr(new, name) for name in same]


@defect("J-11")
def test_processes_that_migrate_at_the_same_time_do_it_once(pg_url: str) -> None:
    """One at a time: nobody fails, nobody finds half a schema."""
    stores = [open_store(pg_url) for _ in range(5)]
    assert at_once([store.migrate for store in stores]) == [VERSION] * 5
    assert stores[0].enqueue(new_jobs(1))[0].created
    for store in stores:
        store.close()


@defect("J-11")
def test_processes_that_open_a_new_file_at_the_same_time_share_one_schema(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    stores = at_once([lambda: open_store(url) for _ in range(5)])
    ids = {store.enqueue(new_jobs(1))[0].id for store in stores}
    assert ids == {1, 2, 3, 4, 5}
    for store in stores:
        store.close()


def test_a_migration_waits_for_nobody_that_does_not_migrate(pg_migrated_url: str) -> None:
    """An open transaction of a user on our tables does not hold up a migration that has nothing
    to do."""
    with psycopg.connect(pg_migrated_url) as user, open_store(pg_migrated_url) as store:
        user.execute("select from tenure.job for update")
        assert Background(store.migrate).result() == VERSION


def test_code_that_is_too_old_for_the_schema_says_what_to_do(
    pg_migrated_url: str, store: Store, database: Database
) -> None:
    """A schema that asks for newer code is refused on the next connection, with the fix named."""
    del pg_migrated_url
    database.rows(f"update tenure.schema_version set version = {VERSION + 2}, min_code = 99")
    with pytest.raises(SchemaTooNew, match="Upgrade the tenure package"):
        store.migrate()


def test_a_database_without_our_schema_names_the_command(pg_url: str) -> None:
    with open_store(pg_url) as store, pytest.raises(SchemaMissing, match=r"app\.migrate\(\)"):
        store.enqueue(new_jobs(1))


def test_a_schema_one_step_ahead_that_still_allows_this_code_is_used(
    store: Store, clock: Clock, database: Database
) -> None:
    """Workers of two neighbouring versions run side by side."""
    database.rows(f"update tenure.schema_version set version = {VERSION + 1}")
    assert store.migrate() == VERSION + 1
    [id] = add(store, clock)
    assert store.get(id).state is State.QUEUED
