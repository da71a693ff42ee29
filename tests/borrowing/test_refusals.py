"""What cannot be used is refused before anything is written, with the fix in the message."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from django.db import connections, transaction
from sqlalchemy import orm
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext import asyncio as sqlalchemy_async

from tenure.errors import InvalidInput
from tenure.rules.job import State
from tenure.store import Store, open_async_store, open_store
from tests.borrowing.djangos import one_django
from tests.borrowing.libraries import Caller, Django, SQLAlchemy, named, sqlalchemy_url, through
from tests.support.work import job


def refuses(store: Store, on: object, why: str) -> None:
    """Neither enqueue nor settle takes it, and nothing is written."""
    with pytest.raises(InvalidInput, match=why):
        store.enqueue([job()], on=on)
    with pytest.raises(InvalidInput, match=why):
        store.settle("w1", [], on=on)
    assert store.list_jobs().jobs == ()


@pytest.fixture
def remote(pg_migrated_url: str) -> Iterator[Store]:
    """A store on PostgreSQL, for callers that do not await."""
    with open_store(pg_migrated_url) as store:
        yield store


@pytest.fixture
def local(app_file: Path) -> Iterator[Store]:
    """The same in the application's own SQLite file."""
    with open_store(f"sqlite:///{app_file}?driver=sqlite3&allow_affected_sqlite=1") as store:
        yield store


# Closed, or without a transaction.


@named(
    "psycopg", "psycopg-async", "psycopg2", "asyncpg", "asyncpg-pool", "Connection-psycopg",
    "AsyncConnection-psycopg", "AsyncConnection-asyncpg", "sqlite3", "aiosqlite",
    "Connection-pysqlite", "AsyncConnection-aiosqlite",
)  # fmt: skip
def test_a_closed_connection_is_refused(caller: Caller) -> None:
    caller.close()
    refuses(caller.store, caller.on, "closed")


@named("psycopg", "psycopg-async", "psycopg2", "asyncpg", "asyncpg-pool", "sqlite3", "aiosqlite")
def test_without_a_transaction_each_statement_would_be_committed(caller: Caller) -> None:
    if caller.driver == "psycopg-async":
        caller.done(caller.on.set_autocommit(True))
    elif caller.driver.startswith("psycopg"):
        caller.on.autocommit = True
    fix = (
        "execute BEGIN IMMEDIATE"
        if "sqlite" in caller.driver
        else r"open one with \w+\.transaction"
    )
    refuses(caller.store, caller.on, f"transaction; {fix}")


def test_psycopgs_autocommit_with_a_transaction_is_taken(
    remote: Store, pg_migrated_url: str
) -> None:
    with psycopg.connect(pg_migrated_url, autocommit=True) as connection:
        with connection.transaction():
            [answer] = remote.enqueue([job()], on=connection)
        assert remote.get(answer.id).state is State.QUEUED


def test_sqlite3_without_a_write_has_not_begun(local: Store, app_file: Path) -> None:
    """Nobody but its caller knows whether a COMMIT will come."""
    with closing(sqlite3.connect(app_file)) as connection:
        refuses(local, connection, "execute BEGIN IMMEDIATE")


@through(lambda library: library.make is SQLAlchemy)
def test_sqlalchemys_autocommit_is_refused(caller: SQLAlchemy) -> None:
    caller.engine = caller.engine.execution_options(isolation_level="AUTOCOMMIT")
    on = caller.done(caller.make(caller.driver.partition(" ")[0]))
    refuses(caller.store, on, "AUTOCOMMIT")
    caller.done((on.remove if hasattr(on, "remove") else on.close)())


@named("Django-postgresql", "Django-sqlite3")
def test_django_outside_of_an_atomic_block_is_refused(caller: Django) -> None:
    refuses(caller.store, caller.on, r"inside of transaction\.atomic\(\)")
    caller.close()
    refuses(caller.store, caller.on, r"inside of transaction\.atomic\(\)")


@named("Django-postgresql", "Django-sqlite3")
def test_django_after_an_error_in_its_block_is_refused(caller: Django) -> None:
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic(savepoint=False):
            1 / 0  # noqa: B018
        refuses(caller.store, caller.on, "after an error; leave the atomic block")
    with transaction.atomic():
        caller.close()
        refuses(caller.store, caller.on, "after an error; leave the atomic block")


@named("Django-postgresql", "Django-sqlite3")
def test_the_django_connection_of_another_thread_is_refused(caller: Django) -> None:
    theirs = connections["default"]
    seen: list[BaseException] = []

    def elsewhere() -> None:
        try:
            caller.store.enqueue([job()], on=theirs)
        except InvalidInput as error:
            seen.append(error)

    with transaction.atomic():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(30)
    [error] = seen
    assert "of another thread" in str(error)
    assert caller.store.list_jobs().jobs == ()


# Async, for a caller that does not await.


def test_an_async_connection_needs_an_async_store(remote: Store, pg_migrated_url: str) -> None:
    async def try_it() -> None:
        engine = sqlalchemy_async.create_async_engine(
            sqlalchemy_url("postgresql+asyncpg", pg_migrated_url)
        )
        pg = await asyncpg.connect(pg_migrated_url)
        async with (
            await psycopg.AsyncConnection.connect(pg_migrated_url) as psycopgs,
            engine.begin() as connection,
            sqlalchemy_async.AsyncSession(engine) as session,
            pg.transaction(),
        ):
            maker = sqlalchemy_async.async_sessionmaker(engine)
            scoped = sqlalchemy_async.async_scoped_session(maker, asyncio.current_task)
            for on in (psycopgs, pg, connection, session, scoped):
                refuses(remote, on, r"async.*open_async_store\(\)")
        await pg.close()
        await engine.dispose()

    asyncio.run(try_it())


def test_aiosqlite_needs_an_async_store(local: Store, app_file: Path) -> None:
    async def try_it() -> None:
        engine = sqlalchemy_async.create_async_engine(
            sqlalchemy_url("sqlite+aiosqlite", str(app_file))
        )
        async with aiosqlite.connect(app_file) as raw, engine.begin() as connection:
            for on in (raw, connection):
                refuses(local, on, r"async.*open_async_store\(\)")
        await engine.dispose()

    asyncio.run(try_it())


def test_the_sync_half_of_an_async_session_is_refused(remote: Store, pg_migrated_url: str) -> None:
    async def try_it() -> None:
        engine = sqlalchemy_async.create_async_engine(
            sqlalchemy_url("postgresql+asyncpg", pg_migrated_url)
        )
        async with (
            open_async_store(pg_migrated_url) as store,
            engine.begin() as connection,
            sqlalchemy_async.AsyncSession(engine) as session,
        ):
            for half in (session.sync_session, connection.sync_connection):
                refuses(remote, half, "AsyncSession or the AsyncConnection")
                with pytest.raises(InvalidInput, match="AsyncSession or the AsyncConnection"):
                    await store.enqueue([job()], on=half)
            await session.run_sync(lambda half: refuses(remote, half, r"outside of run_sync\(\)"))
        await engine.dispose()

    asyncio.run(try_it())


def test_an_async_connection_that_nobody_opened_is_refused(pg_migrated_url: str) -> None:
    async def try_it() -> None:
        engine = sqlalchemy_async.create_async_engine(
            sqlalchemy_url("postgresql+asyncpg", pg_migrated_url)
        )
        async with open_async_store(pg_migrated_url) as store:
            with pytest.raises(InvalidInput, match="was not opened"):
                await store.enqueue([job()], on=engine.connect())
        await engine.dispose()

    asyncio.run(try_it())


# Something else.


@pytest.mark.parametrize("thing", [object(), "postgresql://", 42])
def test_something_that_is_no_connection_is_refused(
    remote: Store, local: Store, thing: object
) -> None:
    for store in (remote, local):
        refuses(store, thing, "on=")


def test_engines_makers_pools_and_cursors_are_no_connections(
    remote: Store, pg_migrated_url: str
) -> None:
    url = sqlalchemy_url("postgresql+psycopg", pg_migrated_url)
    engine = sqlalchemy.create_engine(url)
    async_engine = sqlalchemy_async.create_async_engine(url)
    for thing, name in (
        (engine, "Engine"),
        (async_engine, "AsyncEngine"),
        (orm.sessionmaker(engine), "sessionmaker"),
        (sqlalchemy.text("select 1"), "TextClause"),
    ):
        refuses(remote, thing, rf"SQLAlchemy's {name}; pass a Connection, as engine\.begin\(\)")
    with psycopg.connect(pg_migrated_url) as connection:
        refuses(remote, connection.cursor(), r"not psycopg\.Cursor")
    connection2 = psycopg2.connect(pg_migrated_url)
    refuses(remote, connection2.cursor(), r"not psycopg2\.extensions\.cursor")
    connection2.close()
    engine.dispose()


def test_another_kind_of_database_is_refused(
    remote: Store, local: Store, pg_migrated_url: str, app_file: Path
) -> None:
    on_file = sqlalchemy.create_engine(sqlalchemy_url("sqlite", str(app_file)))
    on_server = sqlalchemy.create_engine(sqlalchemy_url("postgresql+psycopg2", pg_migrated_url))
    with orm.Session(on_file) as session:
        refuses(remote, session, r"psycopg, psycopg2 or asyncpg.*not sqlite3\.Connection")
    with orm.Session(on_server) as session:
        refuses(local, session, r"sqlite3\.Connection to .*app\.db.*not connection")
    on_file.dispose()
    on_server.dispose()
    with psycopg.connect(pg_migrated_url) as connection:
        refuses(local, connection, r"sqlite3\.Connection to .*not Connection")
    with closing(sqlite3.connect(app_file)) as connection:
        refuses(remote, connection, "psycopg")
    with one_django("sqlite3", str(app_file)) as connection, transaction.atomic():
        refuses(remote, connection, r"not sqlite3\.Connection")
    with one_django("postgresql", pg_migrated_url) as connection, transaction.atomic():
        refuses(local, connection, r"sqlite3\.Connection to .*not Connection")


class StrangersConnection:
    """A driver that nobody has heard of."""

    def __init__(self) -> None:
        self._real = sqlite3.connect(":memory:")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_a_driver_that_nobody_has_heard_of_is_refused(remote: Store, local: Store) -> None:
    engine = sqlalchemy.create_engine("sqlite://", creator=StrangersConnection)
    with engine.begin() as connection:
        refuses(remote, connection, "not .*StrangersConnection")
        refuses(local, connection, "not StrangersConnection")
    engine.dispose()


def test_another_file_is_refused(local: Store, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    for address in (str(other), ":memory:"):
        engine = sqlalchemy.create_engine(sqlalchemy_url("sqlite", address))
        with engine.begin() as connection:
            refuses(local, connection, r"a connection to .*(other\.db|memory), not to .*app\.db")
        engine.dispose()
    with one_django("sqlite3", str(other)) as connection, transaction.atomic():
        refuses(local, connection, r"a connection to .*other\.db, not to .*app\.db")


def test_a_store_with_a_library_of_its_own_takes_none(tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with open_store(f"sqlite:///{tmp_path / 'jobs.db'}") as store, engine.begin() as connection:
        refuses(store, connection, r"\?driver=sqlite3")
    engine.dispose()


def test_a_connection_of_another_thread_is_refused(local: Store, app_file: Path) -> None:
    with closing(sqlite3.connect(app_file, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        seen: list[BaseException] = []

        def elsewhere() -> None:
            try:
                local.enqueue([job()], on=connection)
            except InvalidInput as error:
                seen.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(30)
        [error] = seen
        assert "thread" in str(error)
        connection.execute("rollback")


# Sessions that have no connection to give.


class Base(orm.DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "payment"

    n: orm.Mapped[int] = orm.mapped_column(primary_key=True)


def test_a_session_that_waits_for_a_rollback_is_refused(local: Store, app_file: Path) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url("sqlite", str(app_file)))
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add(Payment(n=1))
        session.commit()
        session.add(Payment(n=1))
        with pytest.raises(IntegrityError):
            session.flush()
        refuses(local, session, "rolled back")
    engine.dispose()


def test_a_session_without_a_database_is_refused(remote: Store) -> None:
    with orm.Session() as session:
        refuses(remote, session, "[Bb]ind|bound")


def test_a_session_that_does_not_begin_by_itself_is_refused(
    remote: Store, pg_migrated_url: str
) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url("postgresql+psycopg", pg_migrated_url))
    with orm.Session(engine, autobegin=False) as session:
        refuses(remote, session, r"call session\.begin\(\)")
    engine.dispose()


def test_a_transaction_that_is_over_is_refused(remote: Store, pg_migrated_url: str) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url("postgresql+psycopg", pg_migrated_url))
    with engine.begin() as connection:
        connection.rollback()
        refuses(remote, connection, "complete the context manager")
    engine.dispose()
