"""The schema and its versions: too old, too new, half-made, elsewhere, beside a hostile one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from tenure.errors import SchemaTooNew, SchemaTooOld
from tenure.rules import lifecycle
from tenure.rules.job import NewJob, State
from tenure.store import LANDED, Store, open_store, statements
from tenure.store import migrate as migrations
from tenure.store.postgres import connection as wire
from tenure.store.postgres import session as postgres_session
from tenure.store.sqlite import migrate as sqlite_migrate
from tests.conftest import migrate
from tests.processes.crew import Crew, Voice
from tests.support.audit import audit
from tests.support.patience import until
from tests.support.plain import Plain, Row
from tests.support.postgres import database_name
from tests.support.races import Background
from tests.support.work import job

OPERATIONS: list[Callable[[Store], object]] = [
    lambda store: store.enqueue([job()]),
    lambda store: store.claim("w1", {"default": 1}),
    lambda store: store.list_jobs(),
]


def set_version(url: str, version: int, min_code: int) -> None:
    with Plain(url) as plain:
        plain.rows("update tenure.schema_version set version = ?, min_code = ?", version, min_code)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated store."""
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path}/jobs.db"
        open_store(made).close()
        return made
    return str(request.getfixturevalue("pg_migrated_url"))


def test_code_that_is_too_old_for_the_schema_refuses_and_changes_nothing(url: str) -> None:
    set_version(url, migrations.VERSION + 2, migrations.VERSION + 1)
    with Plain(url) as plain:
        before = plain.rows("select version, min_code from tenure.schema_version")
    for use in OPERATIONS:
        with pytest.raises(SchemaTooNew, match="Upgrade the tenure package"):
            use(open_store(url))
    with pytest.raises(SchemaTooNew, match="Upgrade the tenure package"):
        open_store(url).migrate()
    with Plain(url) as plain:
        assert plain.rows("select version, min_code from tenure.schema_version") == before
        assert plain.one("select count(*) from tenure.job") == 0


def schema_of(plain: Plain) -> list[Row]:
    """Everything that the schema consists of."""
    if plain.is_postgres:
        return plain.rows(
            "select table_name, column_name, data_type, column_default, is_nullable"
            " from information_schema.columns where table_schema = 'tenure' order by 1, 2"
        ) + plain.rows(
            "select indexdef from pg_indexes where schemaname = 'tenure' order by indexname"
        )
    return plain.rows("select type, name, sql from sqlite_master order by 1, 2")


def test_migrating_again_changes_nothing(url: str) -> None:
    """Neither schema nor rows change, and jobs that run go on."""
    with open_store(url) as store, Plain(url) as plain:
        store.enqueue([job(), job()])
        store.claim("w1", {"default": 1})
        before = schema_of(plain), plain.everything()
        assert [store.migrate(), store.migrate()] == [migrations.VERSION] * 2
        assert (schema_of(plain), plain.everything()) == before


def test_a_migration_that_has_nothing_to_do_does_not_wait_for_users(pg_migrated_url: str) -> None:
    """A user's open transaction on our tables does not hold it up."""
    with psycopg.connect(pg_migrated_url) as user, open_store(pg_migrated_url) as store:
        user.execute("select from tenure.job for update")
        assert Background(store.migrate).result() == migrations.VERSION


def test_the_defaults_of_the_columns_are_those_of_a_plain_job(url: str) -> None:
    """A writer that leaves columns out means what a plain `NewJob` means."""
    with open_store(url) as store, Plain(url) as plain:
        [added] = store.enqueue([job()])
        plain.rows(
            "insert into tenure.job (id, created_at, task, args)"
            " select 900, created_at, task, args from tenure.job"
        )
        bare, plain_one = store.get(900), store.get(added.id)
    for name in (
        "queue", "priority", "tenant", "max_attempts", "timeout_seconds", "token", "attempts",
        "crashes", "held", "cancel_requested", "unique_key", "retry",
    ):  # fmt: skip
        assert getattr(bare, name) == getattr(plain_one, name), name


def test_code_that_the_newer_schema_still_allows_goes_on(url: str) -> None:
    """Workers of two neighbouring versions run side by side."""
    set_version(url, migrations.VERSION + 1, migrations.VERSION)
    with open_store(url) as store:
        assert store.migrate() == migrations.VERSION + 1
        for use in OPERATIONS:
            use(store)
    with Plain(url) as plain:
        assert plain.one("select version from tenure.schema_version") == migrations.VERSION + 1


def test_code_that_is_too_new_for_the_schema_names_the_command(pg_migrated_url: str) -> None:
    """SQLite migrates itself; PostgreSQL waits for its operator."""
    set_version(pg_migrated_url, migrations.VERSION - 1, 0)
    with open_store(pg_migrated_url) as store:
        for use in OPERATIONS:
            with pytest.raises(SchemaTooOld, match=r"call app\.migrate\(\)"):
                use(store)


def test_a_second_version_is_one_more_step_and_keeps_the_rows(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that there is not yet: the next script runs once, after the first."""
    with open_store(url) as store:
        [answer] = store.enqueue([job()])
    monkeypatch.setattr(migrations, "VERSION", migrations.VERSION + 1)
    monkeypatch.setitem(migrations.MIN_CODE, migrations.VERSION, migrations.VERSION)
    for module in (sqlite_migrate, postgres_session):
        monkeypatch.setattr(module, "migration_script", next_script)
    monkeypatch.setattr(sqlite_migrate, "VERSION", migrations.VERSION)
    with open_store(url) as store:
        assert [store.migrate(), store.migrate()] == [migrations.VERSION] * 2
        assert store.about().min_code == migrations.VERSION
        assert store.get(answer.id).state is State.QUEUED
    with Plain(url) as plain:
        assert plain.rows("select extra from tenure.queue") == []


def next_script(dialect: statements.Dialect, version: int, schema: str) -> str:
    assert version == migrations.VERSION
    return statements.qualify("alter table tenure.queue add column extra text;\n", dialect, schema)


def test_the_schema_is_looked_at_on_every_new_connection(pg_migrated_url: str) -> None:
    with open_store(pg_migrated_url) as store:
        store.enqueue([job()])
        set_version(pg_migrated_url, 99, 99)
        with psycopg.connect(pg_migrated_url, autocommit=True) as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = 'tenure' and datname = current_database()"
            )
        with pytest.raises(SchemaTooNew, match="Upgrade"):
            store.enqueue([job()])


def migrate_and_hang(voice: Voice, url: str) -> None:
    """Make half of the schema, say so, and wait to be killed."""

    def hang() -> None:
        voice.say("half")
        signal.pause()

    split = statements.split_script
    cast(Any, sqlite_migrate).split_script = lambda script: half_of(split(script), hang)
    blocking_script = wire.Blocking.script

    async def script(self: wire.Blocking, sql: str) -> None:
        await blocking_script(self, sql)
        if "create table tenure.history" in sql:
            hang()

    cast(Any, wire.Blocking).script = script
    open_store(url).migrate()


def half_of(script: list[str], hang: Callable[[], None]) -> Iterator[str]:
    for number, statement in enumerate(script):
        if number == len(script) // 2:
            hang()
        yield statement


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store without a schema."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("pg_url"))


@pytest.mark.slow
def test_a_migration_that_is_killed_half_way_leaves_nothing_and_can_be_repeated(
    empty_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "crew"
    folder.mkdir()
    with Crew(folder) as crew:
        member = crew.start(migrate_and_hang, empty_url)
        member.wait_for("half")
        member.kill()
    with Plain(empty_url) as plain:
        assert tables(plain) == []

    migrate(empty_url)

    with open_store(empty_url) as store:
        [answer] = store.enqueue([job()])
        assert store.get(answer.id).state is State.QUEUED
    audit(empty_url)


def tables(plain: Plain) -> list[str]:
    """What is left of a schema, once the server has noticed the death of its client."""
    query = (
        "select relname from pg_class join pg_namespace n on n.oid = relnamespace"
        " where nspname = 'tenure'"
        if plain.is_postgres
        else "select name from sqlite_master"
    )
    others = (
        "select count(*) from pg_stat_activity"
        " where application_name = 'tenure' and datname = current_database()"
    )
    until(lambda: not plain.is_postgres or not plain.one(others), "the end of the session")
    return [str(row[0]) for row in plain.rows(query)]


def test_a_migration_that_refuses_old_code_ends_its_connections_whatever_their_name(
    pg_url: str,
) -> None:
    """A connection reads the version once. Those of other schemas, and of users, stay."""
    with ExitStack() as stack:
        named, other = (
            stack.enter_context(open_store(f"{pg_url}&schema={schema}&application_name=shop"))
            for schema in ("order", "other")
        )
        for store in (named, other):
            store.migrate()
            store.enqueue([job()])
        user = stack.enter_context(psycopg.connect(pg_url, autocommit=True))
        seen = "select count(*) from pg_stat_activity where application_name = 'shop'"
        assert user.execute(seen).fetchall() == [(2,)]
        user.execute('update "order".schema_version set min_code = 0')
        with open_store(f"{pg_url}&schema=order") as new:
            new.migrate()
        until(lambda: user.execute(seen).fetchall() == [(1,)])
        assert other.count_live()
        named.enqueue([job()])


@pytest.mark.parametrize("schema", ["jobs", "public", "order", "user", "select", "_1", "a" * 41])
def test_the_schema_may_have_any_plain_name(pg_url: str, schema: str) -> None:
    with open_store(f"{pg_url}&schema={schema}") as store:
        assert store.migrate() == migrations.VERSION
        assert store.migrate() == migrations.VERSION
        run_one(store)
        store.prune(succeeded_seconds=0)
    with psycopg.connect(pg_url) as connection:
        rows = connection.execute(
            "select distinct nspname from pg_class c join pg_namespace n on n.oid = relnamespace"
            " where relname in ('job', 'ready', 'history', 'lease')"
        ).fetchall()
    assert rows == [(schema,)]


def run_one(store: Store) -> None:
    [answer] = store.enqueue([NewJob(task="app.one")])
    [lease] = store.claim("w1", {"default": 10})
    assert [held.id for held in lease.jobs] == [answer.id]
    ends = [lifecycle.succeed(held) for held in lease.jobs]
    assert store.settle("w1", ends, done_leases=[lease.id]) == [LANDED]
    assert store.get(answer.id).state is State.SUCCEEDED


def test_two_schemas_in_one_database_know_nothing_of_each_other(pg_url: str) -> None:
    first, second = (open_store(f"{pg_url}&schema={name}") for name in ("first", "second"))
    first.migrate()
    second.migrate()
    [answer] = first.enqueue([job()])
    assert second.claim("w1", {"default": 10}) == []
    run_one(second)
    assert first.get(answer.id).state is State.QUEUED
    first.close()
    second.close()


HOSTILE = """
create schema hostile;
create table hostile.job (like tenure.job);
create table hostile.ready (like tenure.ready);
create table hostile.lease (like tenure.lease);
create table hostile.schema_version (version int, min_code int);
create function hostile.clock_timestamp() returns timestamptz language sql
    as $$ select timestamptz '1999-01-01' $$;
create function hostile.json_to_recordset(json) returns setof record language sql
    as $$ select 1/0 $$;
create type hostile.state as enum ('broken');
"""


def test_names_are_found_whatever_the_search_path_says(pg_migrated_url: str) -> None:
    """A pooler or an operator may set it; tables of the same names may stand in the way."""
    name = database_name(pg_migrated_url)
    with psycopg.connect(pg_migrated_url, autocommit=True) as admin:
        admin.execute(HOSTILE)
        for path in ("hostile", "hostile, pg_catalog", "''", "pg_temp"):
            admin.execute(f"alter database {name} set search_path = {path}")
            with open_store(pg_migrated_url) as store:
                run_one(store)
                store.prune(succeeded_seconds=0)
                found = admin.execute("select count(*) from hostile.job").fetchall()
                assert found == [(0,)]
    with Plain(pg_migrated_url) as plain:
        for (at,) in plain.rows("select created_at from tenure.jobs"):
            assert at.year > 1999


def test_options_in_the_url_reach_the_server_as_they_were_written(pg_migrated_url: str) -> None:
    options = "options=-c%20search_path%3Dnowhere%20-c%20application_name%3Da%2Bb"
    with open_store(f"{pg_migrated_url}&{options}&pooler=none") as store:
        run_one(store)
        with psycopg.connect(pg_migrated_url) as admin:
            rows = admin.execute(
                "select application_name from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            ).fetchall()
    assert ("tenure",) in rows or ("a+b",) in rows
