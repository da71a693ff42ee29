"""The caller's transaction: jobs and completions commit with the user's rows, or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psycopg
import psycopg.rows
import pytest

from tenure.errors import InvalidInput, LeaseLost, TenureError
from tenure.rules.codec import encode
from tenure.rules.job import Json, State, Unique
from tenure.rules.lifecycle import fail, retry, succeed
from tenure.store import LANDED, Store, open_async_store, open_store
from tests.support.audit import audit
from tests.support.plain import drivers_url
from tests.support.stores import Clock, Face, open_face
from tests.support.work import ERROR, add, ids_of, job, settle, take, take_one

COLOURS = ("sqlite3", "sqlite3-async", "psycopg", "psycopg-async")


@dataclass
class User:
    """A user with a table of their own, in the same database, and one open transaction."""

    store: Store
    connection: Any

    def _do(self, name: str, *args: str) -> Any:
        answer = getattr(self.connection, name)(*args)
        if isinstance(self.connection, psycopg.AsyncConnection):
            return cast(Face, self.store).loop.run_until_complete(answer)
        return answer

    def write(self) -> None:
        """One row of the user's own."""
        self._do("execute", "insert into payment values (1)")

    def rows(self) -> int:
        """How many rows the user's table has, as everybody sees it after a rollback."""
        self._do("rollback")
        cursor = self._do("execute", "select count(*) from payment")
        row = cursor.fetchone()
        if isinstance(self.connection, psycopg.AsyncConnection):
            row = cast(Face, self.store).loop.run_until_complete(row)
        self._do("rollback")
        return int(row[0])

    def begin(self) -> None:
        if isinstance(self.connection, sqlite3.Connection):
            self.connection.execute("begin immediate")

    def commit(self) -> None:
        self._do("commit")

    def rollback(self) -> None:
        self._do("rollback")


@pytest.fixture(params=COLOURS)
def user(
    request: pytest.FixtureRequest, tmp_path: Path, reach: Callable[[str], str]
) -> Iterator[User]:
    """The same user on both databases, in both colours."""
    colour = str(request.param)
    if colour.startswith("sqlite3"):
        path = tmp_path / "app.db"
        url = f"sqlite:///{path}?driver=sqlite3&allow_affected_sqlite=1"
        connection: Any = sqlite3.connect(path, isolation_level=None)
    else:
        url = reach(request.getfixturevalue("pg_migrated_url"))
        connection = None
    store = open_face("async" if colour.endswith("async") else "sync", url)
    if colour == "psycopg":
        connection = psycopg.connect(drivers_url(url), prepare_threshold=None)
    elif colour == "psycopg-async":
        connecting = psycopg.AsyncConnection.connect(drivers_url(url), prepare_threshold=None)
        connection = cast(Face, store).loop.run_until_complete(connecting)
    someone = User(store, connection)
    someone._do("execute", "create table payment (n integer)")
    if colour.startswith("psycopg"):
        someone.commit()
    yield someone
    someone._do("close")
    store.close()
    audit(url)


def test_an_enqueue_is_real_when_the_caller_commits(user: User, clock: Clock) -> None:
    user.begin()
    user.write()
    answers = user.store.enqueue(
        [job(), job(delay_seconds=5), job(unique=Unique(key="k"))],
        on=user.connection,
        now=clock.now,
    )
    assert user.store.list_jobs().jobs == (), "it was committed by Tenure"
    user.commit()
    assert {job.id for job in user.store.list_jobs().jobs} == {answer.id for answer in answers}
    assert user.rows() == 1
    assert len(take(user.store, clock.now)) == 2


def test_an_enqueue_vanishes_when_the_caller_rolls_back(user: User, clock: Clock) -> None:
    user.begin()
    user.write()
    user.store.enqueue([job(unique=Unique(key="k"))] * 3, on=user.connection, now=clock.now)
    user.rollback()
    assert user.store.list_jobs().jobs == ()
    assert user.rows() == 0
    assert add(user.store, clock.now, unique=Unique(key="k"))


def test_many_jobs_fit_into_the_callers_transaction(user: User, clock: Clock) -> None:
    user.begin()
    answers = user.store.enqueue([job() for _ in range(1500)], on=user.connection, now=clock.now)
    user.commit()
    assert ids_of(take(user.store, clock.now, 2000)) == [answer.id for answer in answers]


def test_a_child_may_be_enqueued_with_its_parents_in_one_transaction(
    user: User, clock: Clock
) -> None:
    user.begin()
    [parent] = user.store.enqueue([job()], on=user.connection, now=clock.now)
    [child] = user.store.enqueue([job(parents=(parent.id,))], on=user.connection, now=clock.now)
    user.commit()
    assert user.store.get(child.id).state is State.WAITING


def test_a_completion_commits_with_the_callers_rows(user: User, clock: Clock) -> None:
    add(user.store, clock.now)
    claimed = take_one(user.store, clock.now)
    user.begin()
    user.write()
    [answer] = user.store.settle(
        "w1", [succeed(claimed, encode(1))], on=user.connection, now=clock.now
    )
    assert answer == LANDED
    assert user.store.get(claimed.id).state is State.RUNNING, "it was committed by Tenure"
    user.commit()
    assert user.store.get(claimed.id).state is State.SUCCEEDED
    assert user.rows() == 1


def test_a_completion_vanishes_with_the_callers_rows(user: User, clock: Clock) -> None:
    add(user.store, clock.now)
    claimed = take_one(user.store, clock.now)
    user.begin()
    user.write()
    user.store.settle("w1", [succeed(claimed)], on=user.connection, now=clock.now)
    user.rollback()
    assert user.store.get(claimed.id).state is State.RUNNING
    assert user.rows() == 0
    assert settle(user.store, clock.now, retry(claimed, ERROR, 0)) == [LANDED]


def test_a_stale_completion_raises_so_that_both_roll_back(user: User, clock: Clock) -> None:
    add(user.store, clock.now)
    claimed = take_one(user.store, clock.now)
    user.store.sweep(now=clock.advance(31))
    for end in (succeed(claimed), fail(claimed, ERROR)):
        user.begin()
        user.write()
        with pytest.raises(LeaseLost, match=f"job {claimed.id} "):
            user.store.settle("w1", [end], on=user.connection, now=clock.now)
        user.rollback()
    assert user.rows() == 0
    assert user.store.get(claimed.id).state is State.QUEUED


def test_a_completion_that_was_committed_before_raises_too(user: User, clock: Clock) -> None:
    """The caller's rows were committed with it, and must not be a second time."""
    add(user.store, clock.now)
    claimed = take_one(user.store, clock.now)
    user.begin()
    user.write()
    user.store.settle("w1", [succeed(claimed)], on=user.connection, now=clock.now)
    user.commit()
    user.begin()
    user.write()
    with pytest.raises(LeaseLost):
        user.store.settle("w1", [succeed(claimed)], on=user.connection, now=clock.now)
    user.rollback()
    assert user.rows() == 1


def test_data_that_the_database_refuses_is_an_error_of_ours(user: User, clock: Clock) -> None:
    add(user.store, clock.now)
    claimed = take_one(user.store, clock.now)
    user.begin()
    with pytest.raises(InvalidInput, match="refused"):
        user.store.settle(
            "w1", [succeed(claimed, Json(b"not json"))], on=user.connection, now=clock.now
        )
    user.rollback()
    assert user.store.get(claimed.id).state is State.RUNNING


def test_a_tenants_store_stamps_in_the_callers_transaction_too(user: User, clock: Clock) -> None:
    user.begin()
    [answer] = user.store.for_tenant("t").enqueue([job()], on=user.connection, now=clock.now)
    user.commit()
    assert user.store.get(answer.id).tenant == "t"


def test_the_callers_row_factory_does_not_matter(user: User, clock: Clock) -> None:
    def as_dict(cursor: sqlite3.Cursor, row: tuple[object, ...]) -> dict[str, object]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    is_sqlite = isinstance(user.connection, sqlite3.Connection)
    user.connection.row_factory = as_dict if is_sqlite else psycopg.rows.dict_row
    user.begin()
    [answer] = user.store.enqueue([job(unique=Unique(key="k"))], on=user.connection, now=clock.now)
    user.commit()
    assert ids_of(take(user.store, clock.now)) == [answer.id]


# What cannot be used is refused with the reason, and nothing is written.


def test_a_closed_connection_is_refused(user: User) -> None:
    user._do("close")
    with pytest.raises(InvalidInput, match="closed"):
        user.store.enqueue([job()], on=user.connection)
    assert user.store.list_jobs().jobs == ()


@pytest.mark.parametrize("thing", [object(), "postgresql://", 42])
def test_what_is_no_connection_is_refused(user: User, thing: object) -> None:
    with pytest.raises(InvalidInput, match="on="):
        user.store.enqueue([job()], on=thing)
    with pytest.raises(InvalidInput, match="on="):
        user.store.settle("w1", [], on=thing)


def test_autocommit_without_a_transaction_is_refused(user: User) -> None:
    if isinstance(user.connection, psycopg.AsyncConnection):
        user._do("set_autocommit", True)  # type: ignore[arg-type]
    elif isinstance(user.connection, psycopg.Connection):
        user.connection.autocommit = True
    with pytest.raises(InvalidInput, match=r"transaction"):
        user.store.enqueue([job()], on=user.connection)
    assert user.store.list_jobs().jobs == ()


def test_autocommit_with_a_transaction_is_fine(pg_migrated_url: str) -> None:
    with (
        open_store(pg_migrated_url) as store,
        psycopg.connect(pg_migrated_url, autocommit=True) as connection,
    ):
        with connection.transaction():
            [answer] = store.enqueue([job()], on=connection)
        assert store.get(answer.id).state is State.QUEUED


def test_an_async_connection_needs_an_async_store(pg_migrated_url: str) -> None:
    async def try_it() -> None:
        async with await psycopg.AsyncConnection.connect(pg_migrated_url) as connection:
            with pytest.raises(InvalidInput, match="async"):
                store.enqueue([job()], on=connection)

    with open_store(pg_migrated_url) as store:
        asyncio.run(try_it())
        assert store.list_jobs().jobs == ()


def test_a_sqlite_connection_to_another_file_is_refused(tmp_path: Path) -> None:
    options = "?driver=sqlite3&allow_affected_sqlite=1"
    for other in (tmp_path / "other.db", ":memory:"):
        with open_store(f"sqlite:///{tmp_path / 'jobs.db'}{options}") as store:
            connection = sqlite3.connect(other, isolation_level=None)
            connection.execute("begin")
            with pytest.raises(InvalidInput, match=r"not to .*jobs\.db"):
                store.enqueue([job()], on=connection)
            connection.close()


def test_a_store_with_a_library_of_its_own_takes_no_connection(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.execute("begin")
        with pytest.raises(InvalidInput, match="driver=sqlite3"):
            store.enqueue([job()], on=connection)
        connection.close()


def test_a_psycopg_connection_is_no_good_for_sqlite_nor_the_other_way_round(
    pg_migrated_url: str, tmp_path: Path
) -> None:
    with (
        open_store(
            f"sqlite:///{tmp_path / 'j.db'}?driver=sqlite3&allow_affected_sqlite=1"
        ) as local,
        open_store(pg_migrated_url) as remote,
        psycopg.connect(pg_migrated_url) as postgres,
    ):
        sqlite = sqlite3.connect(tmp_path / "j.db")
        with pytest.raises(InvalidInput, match=r"sqlite3\.Connection"):
            local.enqueue([job()], on=postgres)
        with pytest.raises(InvalidInput, match="psycopg"):
            remote.enqueue([job()], on=sqlite)
        sqlite.close()


# The end of a store.


def test_a_store_closed_twice_stays_closed_and_says_so(store_url: str, style: str) -> None:
    async def asynchronously() -> None:
        store = open_async_store(store_url)
        await store.enqueue([job()])
        await store.close()
        await store.close()
        with pytest.raises(TenureError, match="closed"):
            await store.enqueue([job()])
        with pytest.raises(TenureError, match="closed"):
            await store.settle("w1", [])

    if style.endswith("async"):
        asyncio.run(asynchronously())
        return
    store = open_store(store_url)
    store.enqueue([job()])
    store.close()
    store.close()
    with pytest.raises(TenureError, match="closed"):
        store.enqueue([job()])
    with pytest.raises(TenureError, match="closed"):
        store.settle("w1", [])
