"""What the database says in the caller's transaction, through every library that speaks to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import psycopg2
import psycopg2.extras
import pytest
from django.db.utils import OperationalError as DjangoError
from sqlalchemy.exc import DBAPIError

from tenure.errors import InvalidInput, SchemaMissing, StoreUnavailable, ValueRefused
from tenure.rules.job import State, Unique
from tenure.rules.lifecycle import succeed
from tenure.store import open_store
from tenure.store.postgres.asyncpg_connection import numbered
from tenure.store.postgres.connection import as_psycopg
from tests.borrowing.libraries import Caller, Lent, Library, SQLAlchemy, named, through
from tests.support.stores import Clock, open_face
from tests.support.work import add, ids_of, job, take, take_one

ROOT = Path(__file__).resolve().parents[2]
on_postgres = through(lambda library: library.is_postgres)
LOCKED = "55P03"


def state_of(error: BaseException | None) -> str | None:
    """The code of PostgreSQL behind an error of any driver."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


@on_postgres
def test_a_conflict_is_raised_as_the_callers_own_statement_would_raise_it(
    caller: Caller, url: str, clock: Clock
) -> None:
    """So that whatever runs the caller's transactions again knows it."""
    add(caller.store, clock.now)
    claimed = take_one(caller.store, clock.now)
    own = f"select from tenure.job where id = {claimed.id} for update"

    def error_of(call: Callable[[], object]) -> Any:
        caller.begin()
        caller.rows("set local lock_timeout = '20ms'")
        with pytest.raises(Exception, match="lock timeout") as caught:
            call()
        caller.rollback()
        return caught.value

    with psycopg.connect(url) as other:
        other.execute(own)
        theirs = error_of(lambda: caller.rows(own))
        ours = error_of(lambda: caller.store.settle("w1", [succeed(claimed)], on=caller.on))
    assert isinstance(ours, type(theirs))
    if isinstance(ours, DBAPIError):
        assert state_of(ours.orig) == LOCKED
    elif isinstance(ours, DjangoError):
        assert state_of(ours.__cause__) == LOCKED
    else:
        assert state_of(ours) == LOCKED
    caller.begin()
    caller.store.settle("w1", [succeed(claimed)], on=caller.on, now=clock.now)
    caller.commit()
    assert caller.store.get(claimed.id).state is State.SUCCEEDED


@on_postgres
def test_no_plan_is_kept(caller: Caller, clock: Clock) -> None:
    """One that was made while the tables were empty would scan them for ever."""
    caller.begin()
    for _ in range(10):
        caller.store.enqueue([job()], on=caller.on, now=clock.now)
    kept = caller.rows(
        "select statement from pg_prepared_statements where statement like '%tenure.job%'"
    )
    assert [text for (text,) in kept if "pg_prepared_statements" not in text] == []
    caller.commit()


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("40001", psycopg.errors.SerializationFailure),
        ("ZZ001", psycopg.DatabaseError),  # of somebody's own function
        (None, psycopg.InterfaceError),
    ],
)
def test_errors_of_other_drivers_are_told_in_the_words_of_psycopg(
    sqlstate: str | None, kind: type[psycopg.Error]
) -> None:
    error = as_psycopg(ValueError("what happened"), sqlstate)
    assert (type(error), error.sqlstate, str(error)) == (kind, sqlstate, "what happened")


def test_asyncpg_gets_numbers_for_names() -> None:
    sql = "select %(a)s::int, %(b)s::json, %(a)s || %(c)s, 7 %% 2, %(b)s::jsonb"
    text, names = numbered(sql)
    assert text == "select $1::int, $2::text::json, $1 || $3, 7 % 2, $2::jsonb"
    assert names == ("a", "b", "c")


@through(lambda library: library.is_postgres and library.make is not Lent)
def test_another_database_has_no_schema(library: Library, caller: Caller, url: str) -> None:
    elsewhere = open_face("async" if library.is_async else "sync", f"{url}&schema=elsewhere")
    if library.is_async:  # the caller's connection belongs to the loop of the caller's store
        elsewhere.loop.close()  # type: ignore[attr-defined]
        elsewhere.loop = caller.loop  # type: ignore[attr-defined]
    caller.begin()
    with pytest.raises(SchemaMissing, match="elsewhere"):
        elsewhere.enqueue([job()], on=caller.on)
    caller.rollback()
    if library.is_async:
        caller.loop.run_until_complete(elsewhere.store.close())  # type: ignore[attr-defined]
    else:
        elsewhere.close()


@on_postgres
def test_a_connection_that_breaks_is_an_outage(caller: Caller, url: str) -> None:
    caller.begin()
    [(pid,)] = caller.rows("select pg_backend_pid()")
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 10000)", [pid])
    with pytest.raises(StoreUnavailable, match="PostgreSQL"):
        caller.store.enqueue([job()], on=caller.on)
    caller.close()
    assert caller.store.list_jobs().jobs == ()


@on_postgres
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_snapshot_that_is_older_than_its_locks_frees_no_children(
    caller: Caller, clock: Clock, level: str
) -> None:
    parent = add(caller.store, clock.now)
    child = add(caller.store, clock.now, parents=(parent,))
    lonely = add(caller.store, clock.now)
    with_child, alone = take(caller.store, clock.now)
    assert [with_child.id, alone.id] == [parent, lonely]
    caller.begin()
    caller.rows(f"set transaction isolation level {level}")
    caller.store.enqueue([job(delay_seconds=1)], on=caller.on, now=clock.now)
    caller.store.settle("w1", [succeed(alone)], on=caller.on, now=clock.now)
    with pytest.raises(InvalidInput, match=f"{level} .*READ COMMITTED"):
        caller.store.settle("w1", [succeed(with_child)], on=caller.on, now=clock.now)
    caller.rollback()
    assert caller.store.get(child).state is State.WAITING
    assert caller.store.get(parent).state is State.RUNNING


@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect])
def test_a_connection_that_cannot_carry_the_text_says_so(
    connect: Any, pg_migrated_url: str
) -> None:
    with open_store(pg_migrated_url) as store:
        connection = connect(pg_migrated_url, client_encoding="latin1")
        with pytest.raises(ValueRefused, match="client_encoding"):
            store.enqueue([job(unique=Unique(key="☃"))], on=connection)
        connection.rollback()
        [answer] = store.enqueue([job(unique=Unique(key="ü"))], on=connection)
        connection.commit()
        connection.close()
        assert store.get(answer.id).unique_key == "ü"


def test_the_cursors_that_psycopg2_makes_do_not_matter(pg_migrated_url: str, clock: Clock) -> None:
    with open_store(pg_migrated_url) as store:
        connection = psycopg2.connect(
            pg_migrated_url, cursor_factory=psycopg2.extras.RealDictCursor
        )
        [answer] = store.enqueue([job(unique=Unique(key="k"))], on=connection, now=clock.now)
        connection.commit()
        connection.close()
        assert ids_of(take(store, clock.now)) == [answer.id]


@named("sqlite3", "aiosqlite", "Session-pysqlite", "AsyncSession-aiosqlite")
def test_what_sqlite3_makes_of_rows_and_texts_does_not_matter(caller: Caller, clock: Clock) -> None:
    held = add(caller.store, clock.now, unique=Unique(key="k"))
    caller.begin()
    connection = caller.driver_connection if isinstance(caller, SQLAlchemy) else caller.on
    connection.text_factory = bytes
    connection.row_factory = lambda _, row: {"row": row}
    [answer] = caller.store.enqueue([job(unique=Unique(key="k"))], on=caller.on, now=clock.now)
    assert (answer.id, answer.created) == (held, False)
    assert connection.text_factory is bytes
    connection.text_factory, connection.row_factory = str, None
    caller.rollback()


OVER_PSYCOPG2 = """
import sys
sys.modules["psycopg"] = None
import django.db.backends.postgresql.base
del sys.modules["psycopg"]

from django.db import transaction
from tenure.rules.job import NewJob
from tenure.store import open_store
from tests.borrowing.djangos import one_django

with open_store(sys.argv[1]) as store, one_django("postgresql", sys.argv[1]) as connection:
    for keep in (False, True):
        with transaction.atomic():
            store.enqueue([NewJob(task="app.work")], on=connection)
            assert not store.list_jobs().jobs
            transaction.set_rollback(not keep)
    print(type(connection.connection).__module__, len(store.list_jobs().jobs))
"""


def test_django_may_use_psycopg2(pg_migrated_url: str) -> None:
    """It prefers psycopg 3 where both are installed, so that one is hidden from it."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", OVER_PSYCOPG2, pg_migrated_url],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("psycopg2.extensions 1\n", "")
