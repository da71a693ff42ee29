"""When does the caller's transaction begin? Libraries and drivers like to begin late."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from django.db import transaction
from sqlalchemy import event, orm

from tenure.errors import StoreBusy
from tenure.rules.job import State, Unique, Until
from tenure.rules.lifecycle import retry, succeed
from tenure.store import LANDED, Store, open_store
from tests.borrowing.djangos import one_django
from tests.borrowing.libraries import Caller, SQLAlchemy, sqlalchemy_url, through
from tests.support.stores import Clock
from tests.support.work import ERROR, add, job, settle, take_one

only_sqlalchemy = through(lambda library: library.make is SQLAlchemy)


# SQLAlchemy begins by itself with the first statement: here that statement is ours.


@only_sqlalchemy
def test_the_librarys_own_commit_commits_what_came_first(caller: Caller, clock: Clock) -> None:
    [answer] = caller.store.enqueue([job()], on=caller.on, now=clock.now)
    assert caller.store.list_jobs().jobs == (), "it was committed by Tenure"
    caller.pay()
    caller.commit()
    assert caller.store.get(answer.id).state is State.QUEUED
    assert caller.rows("select count(*) from payment") == [(1,)]


@only_sqlalchemy
@pytest.mark.parametrize("how", ["rollback", "close"])
def test_without_a_commit_it_is_gone(caller: Caller, clock: Clock, how: str) -> None:
    caller.store.enqueue([job()], on=caller.on, now=clock.now)
    caller.pay()
    getattr(caller, how)()
    assert caller.store.list_jobs().jobs == ()


@only_sqlalchemy
def test_a_look_before_the_first_write_begins_nothing_that_commits(
    caller: Caller, clock: Clock
) -> None:
    """sqlite3 does not begin before a SELECT."""
    assert caller.rows("select count(*) from payment") == [(0,)]
    caller.store.enqueue([job()], on=caller.on, now=clock.now)
    caller.rollback()
    assert caller.store.list_jobs().jobs == ()


@only_sqlalchemy
def test_a_settlement_may_be_the_first_statement_too(caller: Caller, clock: Clock) -> None:
    add(caller.store, clock.now)
    claimed = take_one(caller.store, clock.now)
    for end in (caller.rollback, caller.commit):
        assert caller.store.get(claimed.id).state is State.RUNNING
        assert caller.store.settle("w1", [succeed(claimed)], on=caller.on, now=clock.now) == [
            LANDED
        ]
        end()
    assert caller.store.get(claimed.id).state is State.SUCCEEDED


# SQLite in the hands of SQLAlchemy.


@pytest.fixture
def app_store(app_file: Path) -> Iterator[Store]:
    """A store in the application's own SQLite file."""
    with open_store(f"sqlite:///{app_file}?driver=sqlite3&allow_affected_sqlite=1") as store:
        yield store


@pytest.fixture
def engine(app_store: Store, app_file: Path) -> Iterator[sqlalchemy.Engine]:
    """An engine on the same file, that gives up at once when the file is locked."""
    del app_store
    made = sqlalchemy.create_engine(
        sqlalchemy_url("sqlite", str(app_file)), connect_args={"timeout": 0.05}
    )
    yield made
    made.dispose()


def begins_by_itself(engine: sqlalchemy.Engine) -> None:
    """What SQLAlchemy's documentation recommends, where savepoints are to work."""

    @event.listens_for(engine, "connect")
    def take_over(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN")


def test_an_engine_that_emits_begin_itself_is_fine(
    app_store: Store, engine: sqlalchemy.Engine, clock: Clock
) -> None:
    begins_by_itself(engine)
    with orm.Session(engine) as session:
        with session.begin_nested():
            app_store.enqueue([job()], on=session, now=clock.now)
        session.rollback()
        assert app_store.list_jobs().jobs == ()
        [answer] = app_store.enqueue([job()], on=session, now=clock.now)
        session.commit()
    assert app_store.get(answer.id).state is State.QUEUED


def test_a_session_that_joins_a_transaction_of_its_test_is_fine(
    app_store: Store, engine: sqlalchemy.Engine, clock: Clock
) -> None:
    """How users test: their commits are savepoints, and all of it is rolled back at the end."""
    begins_by_itself(engine)
    with engine.connect() as connection, connection.begin() as outer:
        mode: Any = "create_savepoint"
        with orm.Session(connection, join_transaction_mode=mode) as session:
            [answer] = app_store.enqueue([job()], on=session, now=clock.now)
            session.commit()
            found = connection.exec_driver_sql("select id from tenure_job").scalars().all()
            assert found == [answer.id]
        outer.rollback()
    assert app_store.list_jobs().jobs == ()


def test_nobody_else_writes_from_our_first_look_on(
    app_store: Store, engine: sqlalchemy.Engine, app_file: Path, clock: Clock
) -> None:
    """What is read before the first write would be old by then: sqlite3 begins with the write."""
    with (
        orm.Session(engine) as session,
        closing(sqlite3.connect(app_file, isolation_level=None, timeout=0)) as other,
    ):
        app_store.settle("w1", [], on=session, now=clock.now)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("begin immediate")
        session.rollback()
        other.execute("begin immediate")


def test_a_file_that_somebody_else_writes_to_is_busy(
    app_store: Store, engine: sqlalchemy.Engine, app_file: Path, clock: Clock
) -> None:
    with closing(sqlite3.connect(app_file, isolation_level=None)) as other:
        other.execute("begin immediate")
        with orm.Session(engine) as session, pytest.raises(StoreBusy, match="locked"):
            app_store.enqueue([job()], on=session, now=clock.now)
        other.execute("rollback")
    with orm.Session(engine) as session, session.begin():
        app_store.enqueue([job()], on=session, now=clock.now)
    assert len(app_store.list_jobs().jobs) == 1


# Django.


@pytest.mark.parametrize("backend", ["postgresql", "sqlite3"])
def test_django_without_autocommit_needs_no_atomic_block(
    backend: str, app_store: Store, app_file: Path, pg_migrated_url: str, clock: Clock
) -> None:
    address = pg_migrated_url if backend == "postgresql" else str(app_file)
    with (
        open_store(pg_migrated_url) as remote,
        one_django(backend, address, autocommit=False) as connection,
    ):
        store = remote if backend == "postgresql" else app_store
        store.enqueue([job()], on=connection, now=clock.now)  # Django connects for us
        transaction.rollback()
        assert store.list_jobs().jobs == ()
        [answer] = store.enqueue([job()], on=connection, now=clock.now)
        assert store.list_jobs().jobs == ()
        transaction.commit()
        assert store.get(answer.id).state is State.QUEUED


@pytest.mark.parametrize("use_tz", [True, False])
def test_django_may_have_times_without_zones(
    use_tz: bool, pg_migrated_url: str, clock: Clock
) -> None:
    """Without USE_TZ its cursors answer times without a zone. Ours must have one."""
    unique = Unique(key="k", until=Until.PERIOD, period_seconds=60)
    options: dict[str, Any] = {"USE_TZ": use_tz, "TIME_ZONE": "Asia/Kolkata"}
    with (
        open_store(pg_migrated_url) as store,
        one_django("postgresql", pg_migrated_url, **options) as connection,
    ):
        old = add(store, clock.now, unique=unique)
        settle(store, clock.now, succeed(take_one(store, clock.now)))
        clock.advance(61)
        with transaction.atomic():
            [answer] = store.enqueue([job(unique=unique)], on=connection, now=clock.now)
        assert answer.created
        assert answer.id != old
        claimed = take_one(store, clock.now)
        with transaction.atomic():
            store.settle("w1", [retry(claimed, ERROR, 5)], on=connection, now=clock.now)
        told = store.timeline(claimed.id)[-1]
        assert told.detail is not None
        assert clock.now.strftime("%Y-%m-%dT%H:%M:%S") in told.detail
