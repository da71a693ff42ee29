"""Transactions of the store's own: one connection, begun in time, and never left open."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from tenure.errors import InvalidInput, JobNotFound, TenureError
from tenure.rules.job import Unique
from tenure.rules.lifecycle import retry, succeed
from tenure.store import LANDED, Store, open_async_store, open_store
from tenure.store.postgres.connection import Blocking
from tenure.store.sqlite.session import SQLite
from tests.support.callers import line_of
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plain import Plain
from tests.support.races import Background, wait_until
from tests.support.rules import rule
from tests.support.stores import Clock
from tests.support.work import ERROR, add, job, running, take

OPEN_TRANSACTIONS = (
    "select count(*) from pg_stat_activity where datname = current_database() "
    "and pid <> pg_backend_pid() and state <> 'idle'"
)


def test_an_operation_that_fails_leaves_no_transaction_open(
    store: Store, clock: Clock, plain: Plain
) -> None:
    """Refused by our checks, by the database, or for lack of a job: the connection has no open
    transaction, and the next operation does its work."""
    id = add(store, clock.now)
    plain.refuse_inserts("event")
    with pytest.raises(TenureError):
        store.hold(id, now=clock.now)
    plain.allow_inserts("event")
    with pytest.raises(JobNotFound):
        store.cancel(12345)
    with pytest.raises(InvalidInput):
        store.claim("w1", {})
    if plain.is_postgres:
        assert plain.one(OPEN_TRANSACTIONS) == 0
    else:
        plain.rows("begin immediate")
        plain.rows("rollback")
    assert len(take(store, clock.now)) == 1


def test_all_statements_of_an_operation_run_on_one_connection(
    pg_migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several connections at hand, an operation still uses the one that it began with."""
    used: list[int] = []
    fetch = Blocking.fetch

    async def noted(self: Blocking, *args: Any, **kwargs: Any) -> Any:
        used.append(self.connection.info.backend_pid)
        return await fetch(self, *args, **kwargs)

    with open_store(pg_migrated_url, connections=3) as store:
        threads = [Background(lambda: store.enqueue([job(queue="q")])) for _ in range(3)]
        for thread in threads:
            thread.result()
        claimed = running(store, Clock().now, unique=Unique(key="k"))
        store.enqueue([job(parents=(claimed.id,))])
        monkeypatch.setattr(Blocking, "fetch", noted)
        assert store.settle("w1", [succeed(claimed)]) == [LANDED]
    assert len(used) > 3
    assert len(set(used)) == 1


def _other_writer(driver: str, path: Path) -> Any:
    if driver == "apsw":
        return apsw.Connection(str(path))
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


@rule("begin-immediate")
@pytest.mark.parametrize("driver", ["apsw", "sqlite3"])
def test_a_transaction_that_reads_before_it_writes_waits_for_the_lock_first(
    tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another connection writes, a claim, which reads first, waits for the write lock before
    its first read, and then works on what the other has committed. Begun without the lock, it would
    fail at once with a conflict that no waiting cures.

    Seen failing with `begin` in place of `begin immediate`: the transaction began beside the other.
    """
    path = tmp_path / "jobs.db"
    options = "" if driver == "apsw" else "?driver=sqlite3&allow_affected_sqlite=1"
    began, has_begun = threading.Event(), threading.Event()
    begin: Callable[[SQLite, Any], float] = SQLite._begin

    def noted(self: SQLite, connection: Any) -> float:
        began.set()
        waited = begin(self, connection)
        has_begun.set()
        return waited

    with open_store(f"sqlite:///{path}{options}") as store:
        [added] = store.enqueue([job(queue="other")])
        other = _other_writer(driver, path)
        other.execute("begin immediate")
        monkeypatch.setattr(SQLite, "_begin", noted)
        claiming = Background(lambda: store.claim("w1", {"default": 1}))
        assert began.wait(PATIENCE_SECONDS)
        assert not has_begun.wait(0.5), "another connection has the write lock"
        for table in ("job", "ready"):
            other.execute(f"update tenure_{table} set queue = 'default'")
        other.execute("commit")
        other.close()
        [lease] = claiming.result()
        assert [job.id for job in lease.jobs] == [added.id]


def test_a_caller_that_is_cancelled_leaves_no_transaction_open_on_postgres(
    pg_migrated_url: str,
) -> None:
    """Cancelled while it waits for a lock in the middle of its transaction: undone at once, nothing
    written, and the store goes on with the same connections."""

    async def scenario() -> None:
        store = open_async_store(pg_migrated_url, connections=1)
        with psycopg.connect(pg_migrated_url, autocommit=True) as user:
            await store.enqueue([job()])
            user.execute("begin; lock table tenure.job in exclusive mode")
            adding = asyncio.create_task(store.enqueue([job()]))
            await asyncio.to_thread(
                wait_until,
                lambda: user.execute("select 1 from pg_locks where not granted").fetchone(),
            )
            adding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adding
            user.execute("rollback")
            assert user.execute(OPEN_TRANSACTIONS).fetchone() == (0,)
            [lease] = await store.claim("w1", {"default": 5})
            assert len(lease.jobs) == 1
        await store.close()

    asyncio.run(scenario())


def test_a_caller_that_is_cancelled_leaves_no_transaction_open_on_sqlite(tmp_path: Path) -> None:
    """The operation runs as a whole in its thread: it ends by itself, whoever waits for it."""

    async def scenario() -> None:
        store = open_async_store(f"sqlite:///{tmp_path / 'jobs.db'}")
        other = apsw.Connection(str(tmp_path / "jobs.db"))
        other.execute("begin immediate")
        adding = asyncio.create_task(store.enqueue([job()]))
        await asyncio.to_thread(wait_until, lambda: line_of(store))  # its thread wants to write
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        other.execute("rollback")
        added = await store.enqueue([job()])
        assert added[0].id == 2
        other.execute("begin immediate; rollback")
        other.close()
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("change", ["retry", "hold", "cancel", "sweep", "replay"])
def test_a_change_and_its_event_are_one_transaction(
    store: Store, clock: Clock, plain: Plain, change: str
) -> None:
    """When the event cannot be written, the change has not happened either."""
    claimed = running(store, clock.now)
    if change == "replay":
        store.settle("w1", [succeed(claimed)], now=clock.now)
    if change == "sweep":
        clock.advance(31)
    plain.refuse_inserts("event")
    before = plain.everything()
    calls: dict[str, Callable[[], object]] = {
        "retry": lambda: store.settle("w1", [retry(claimed, ERROR, 0.0)], now=clock.now),
        "hold": lambda: store.hold(claimed.id, now=clock.now),
        "cancel": lambda: store.cancel(claimed.id, now=clock.now),
        "sweep": lambda: store.sweep(now=clock.now),
        "replay": lambda: store.replay(claimed.id, now=clock.now),
    }
    answered = ""
    try:
        answer = calls[change]()
        if isinstance(answer, list):  # a settlement that the database refuses says so in its answer
            answered = str(answer[0].error)
    except TenureError as error:
        answered = str(error)
    assert "refused by the test" in answered
    assert plain.everything() == before


def test_a_settlement_that_finds_the_file_locked_waits_and_lands(tmp_path: Path) -> None:
    """Another process writes for a while. (Locks and deadlocks on PostgreSQL: test_races.)"""
    with open_store(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        claimed = running(store, Clock().now)
        other = apsw.Connection(str(tmp_path / "jobs.db"))
        other.execute("begin immediate")
        settling = Background(lambda: store.settle("w1", [succeed(claimed)]))
        assert not settling.ends_within(0.1)
        other.execute("rollback")
        other.close()
        assert settling.result() == [LANDED]
