"""Transactions and connections: statements 42 to 50."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from tenure.errors import ConfigError, InvalidInput, JobNotFound, StoreBusy, TenureError
from tenure.rules.codec import encode
from tenure.rules.job import NewJob, State, Unique
from tenure.rules.lifecycle import retry, succeed
from tenure.store import LANDED, Store, open_async_store, open_store
from tenure.store.jobs.settle import BUSY
from tenure.store.postgres.connection import Blocking
from tenure.store.sqlite.session import SQLite
from tenure.store.statements import statements
from tests.statements.support import (
    ERROR,
    Background,
    Caller,
    Database,
    Held,
    add,
    callers,
    claim_jobs,
    claim_one,
    defect,
    expire,
    new_jobs,
    rule,
    running,
    session_of,
    statement,
    wait_until,
)
from tests.support.callers import line_of
from tests.support.postgres import Server
from tests.support.stores import Clock

PLANNED = sorted(
    name for name, [sql] in statements("postgres", "tenure").items() if "savepoint" not in sql
)
OPEN_TRANSACTIONS = (
    "select count(*) from pg_stat_activity where datname = current_database() "
    "and pid <> pg_backend_pid() and state <> 'idle'"
)


@statement(42)
def test_an_operation_that_fails_leaves_no_transaction_open(
    store: Store, clock: Clock, database: Database
) -> None:
    """Refused by our checks, by the database, or for lack of a job: the connection that goes back
    is clean, and the next operation does its work."""
    add(store, clock)
    database.break_inserts("event")
    with pytest.raises(TenureError):
        store.hold(1, now=clock.now)
    database.mend_inserts("event")
    with pytest.raises(JobNotFound):
        store.cancel(12345)
    with pytest.raises(InvalidInput):
        store.claim("w1", {})
    if database.is_postgres:
        assert database.one(OPEN_TRANSACTIONS) == 0
    else:
        database.rows("begin immediate")
        database.rows("rollback")
    assert len(claim_jobs(store, clock)) == 1


@statement(42)
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
        threads = [Background(lambda: store.enqueue(new_jobs(1, queue="q"))) for _ in range(3)]
        for thread in threads:
            thread.result()
        job = running(store, Clock(), unique=Unique(key="k"))
        store.enqueue([NewJob(task="app.child", parents=(job.id,))])
        monkeypatch.setattr(Blocking, "fetch", noted)
        assert store.settle("w1", [succeed(job)]) == [LANDED]
    assert len(used) > 3
    assert len(set(used)) == 1


def _other_writer(driver: str, path: Path) -> Any:
    if driver == "apsw":
        return apsw.Connection(str(path))
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


@statement(43, 4)
@defect("C-5")
@rule("begin-immediate")
@pytest.mark.parametrize("driver", ["apsw", "sqlite3"])
def test_a_transaction_that_reads_before_it_writes_waits_for_the_lock_first(
    tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another connection writes, a claim, which reads first, waits for the write lock before
    its first read, and then works on what the other has committed. Begun without the lock, it would
    fail at once with a conflict that no waiting cures.

    Seen failing with `begin` in place of `begin immediate`: claim read before the other's commit,
    and answered that nothing was ready.
    """
    path = tmp_path / "jobs.db"
    options = "" if driver == "apsw" else "?driver=sqlite3&allow_affected_sqlite=1"
    began = threading.Event()
    begin: Callable[[SQLite, Any], float] = SQLite._begin

    def noted(self: SQLite, connection: Any) -> float:
        began.set()
        return begin(self, connection)

    with open_store(f"sqlite:///{path}{options}") as store:
        [added] = store.enqueue([NewJob(task="app.work", queue="other")])
        other = _other_writer(driver, path)
        other.execute("begin immediate")
        monkeypatch.setattr(SQLite, "_begin", noted)
        claiming = Background(lambda: store.claim("w1", {"default": 1}))
        assert began.wait(10)
        for table in ("job", "ready"):
            other.execute(f"update tenure_{table} set queue = 'default'")
        other.execute("commit")
        other.close()
        [lease] = claiming.result()
        assert [job.id for job in lease.jobs] == [added.id]


@statement(44)
def test_a_caller_that_is_cancelled_leaves_no_transaction_open_on_postgres(
    pg_migrated_url: str,
) -> None:
    """Cancelled while it waits for a lock in the middle of its transaction: undone at once, nothing
    written, and the store goes on with the same connections."""

    async def scenario() -> None:
        store = open_async_store(pg_migrated_url, connections=1)
        with psycopg.connect(pg_migrated_url, autocommit=True) as user:
            await store.enqueue(new_jobs(1))
            user.execute("begin; lock table tenure.job in exclusive mode")
            adding = asyncio.create_task(store.enqueue(new_jobs(1)))
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


@statement(44)
def test_a_caller_that_is_cancelled_leaves_no_transaction_open_on_sqlite(tmp_path: Path) -> None:
    """The operation runs as a whole in its thread: it ends by itself, whoever waits for it."""

    async def scenario() -> None:
        store = open_async_store(f"sqlite:///{tmp_path / 'jobs.db'}")
        other = apsw.Connection(str(tmp_path / "jobs.db"))
        other.execute("begin immediate")
        adding = asyncio.create_task(store.enqueue(new_jobs(1)))
        await asyncio.to_thread(wait_until, lambda: line_of(store))  # its thread wants to write
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        other.execute("rollback")
        added = await store.enqueue(new_jobs(1))
        assert added[0].id == 2
        other.execute("begin immediate; rollback")
        other.close()
        await store.close()

    asyncio.run(scenario())


@statement(45)
@pytest.mark.parametrize("change", ["retry", "hold", "cancel", "sweep", "replay"])
def test_a_change_and_its_line_in_the_story_are_one(
    store: Store, clock: Clock, database: Database, change: str
) -> None:
    """When the event cannot be written, the change has not happened either."""
    job = running(store, clock)
    if change == "replay":
        store.settle("w1", [succeed(job)], now=clock.now)
    if change == "sweep":
        clock.advance(31)
    database.break_inserts("event")
    before = database.snapshot()
    calls: dict[str, Callable[[], object]] = {
        "retry": lambda: store.settle("w1", [retry(job, ERROR, 0.0)], now=clock.now),
        "hold": lambda: store.hold(job.id, now=clock.now),
        "cancel": lambda: store.cancel(job.id, now=clock.now),
        "sweep": lambda: store.sweep(now=clock.now),
        "replay": lambda: store.replay(job.id, now=clock.now),
    }
    answered = ""
    try:
        answer = calls[change]()
        if isinstance(answer, list):  # a settlement that the database refuses says so in its answer
            answered = str(answer[0].error)
    except TenureError as error:
        answered = str(error)
    assert "refused by the test" in answered
    assert database.snapshot() == before


@statement(46)
@defect("C-6", "B-7")
def test_times_compare_correctly_whatever_zone_they_come_in(
    store: Store, clock: Clock, database: Database
) -> None:
    """Deadlines are kept as moments, to the microsecond, not as text: a `now` in another zone is
    the same moment, and a fraction of a second counts."""
    kolkata = timezone(timedelta(hours=5, minutes=30))
    clock.now = datetime(2026, 3, 1, 9, 59, 59, 999999, tzinfo=UTC)
    add(store, clock)
    [lease] = store.claim("w1", {"default": 1}, lease_seconds=0.5, now=clock.now)
    deadline = clock.now + timedelta(seconds=0.5)
    assert lease.expires_at == deadline
    early = (deadline - timedelta(microseconds=1)).astimezone(kolkata)
    assert store.sweep(now=early).requeued == 0
    assert store.sweep(now=deadline.astimezone(kolkata)).requeued == 1
    if database.is_postgres:
        kinds = {
            row[0]
            for row in database.rows(
                "select data_type from information_schema.columns where table_schema = 'tenure' "
                "and (column_name like '%\\_at' or column_name = 'at')"
            )
        }
        assert kinds == {"timestamp with time zone"}


@statement(47)
@defect("F-5", "F-6")
@pytest.mark.parametrize("name", PLANNED)
def test_every_statement_is_accepted_by_a_real_postgres(planner: Any, name: str) -> None:
    """Each one is planned by the server with parameters of unknown type, as the driver sends them:
    a missing cast, or a parameter that is not bound, is refused here and not in production."""
    [sql] = statements("postgres", "tenure")[name]
    if copy := re.fullmatch(r"\s*copy (\S+) \((.*)\)\s+from stdin\s*", sql, re.DOTALL):
        sql = f"select {copy[2]} from {copy[1]}"  # a COPY cannot be explained
    planner.execute(f"explain {sql}", _Nothing())


@pytest.fixture(scope="module")
def planner(pg_server: Server) -> Iterator[Any]:
    """A connection to one migrated database for all statements; nothing is executed on it."""
    url = pg_server.create_database()
    with open_store(url) as store:
        store.migrate()
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


class _Nothing(dict[str, None]):
    """Every parameter is null."""

    def __missing__(self, name: str) -> None:
        return None


@statement(47)
@defect("C-6")
def test_a_session_in_another_time_zone_changes_nothing(pg_migrated_url: str, clock: Clock) -> None:
    """Due times, deadlines and answers are moments; the session's zone is the user's business."""
    zone = "&options=-c%20timezone%3DAsia/Kolkata"
    with open_store(pg_migrated_url + zone) as store:
        [id] = add(store, clock, delay_seconds=10)
        assert store.promote(now=clock.advance(9.9)) == 0
        assert store.promote(now=clock.advance(0.1)) == 1
        job = claim_one(store, clock)
        assert store.get(id).claimed_at == clock.now
        expire(store, clock)
        assert store.get(job.id).state is State.QUEUED


@statement(48)
@defect("C-15", "F-10")
def test_a_settlement_that_finds_the_file_locked_waits_and_lands(tmp_path: Path) -> None:
    """Another process writes for a while: the end of the attempt is neither dropped nor answered
    with the database's own error. (Deadlocks on PostgreSQL: test_races.py.)"""
    with open_store(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        job = running(store, Clock())
        other = apsw.Connection(str(tmp_path / "jobs.db"))
        other.execute("begin immediate")
        settling = Background(lambda: store.settle("w1", [succeed(job)]))
        assert not settling.is_over_within(0.1)
        other.execute("rollback")
        other.close()
        assert settling.result() == [LANDED]


@statement(48)
def test_a_settlement_that_waits_for_a_row_in_vain_is_reported_and_can_be_sent_again(
    pg: Store, clock: Clock, hold: Callable[[], Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody sits on the row for longer than PostgreSQL waits: the worker is told so, nothing is
    dropped, and the same settlement lands once the row is free."""
    session: Any = session_of(pg)
    waiting = session._params["options"] + " -c lock_timeout=50"
    monkeypatch.setitem(session._params, "options", waiting)
    job = running(pg, clock)
    user = hold()
    user.sql(f"select from tenure.job where id = {job.id} for update")
    try:
        [answer] = pg.settle("w1", [succeed(job)], now=clock.now)
    except StoreBusy:
        answer = BUSY
    assert answer == BUSY
    user.rollback()
    assert pg.settle("w1", [succeed(job)], now=clock.now) == [LANDED]


@statement(49)
@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite:///", "sqlite://"])
def test_there_is_no_store_in_memory(url: str) -> None:
    """Each connection would have a database of its own. It is refused, so no test of concurrency
    can prove nothing by accident."""
    with pytest.raises(ConfigError):
        open_store(url)


@statement(50)
def test_values_are_bound_and_never_become_part_of_the_text(
    store: Store, clock: Clock, database: Database
) -> None:
    """Quotes, comments, placeholders and backslashes come back as they went in, in every field
    that takes free text."""
    evil = "'; drop table tenure_job; -- %s %(now)s :now \\ \" ${x} é"
    job = NewJob(
        task="app.work", args=encode({evil: evil}), tenant=evil, unique=Unique(key=evil),
        metadata=encode([evil]),
    )  # fmt: skip
    [added] = store.enqueue([job], now=clock.now)
    assert store.enqueue([job], now=clock.now)[0].id == added.id
    held = claim_one(store, clock)
    store.report_progress("w1", [(held, 0.5, evil)], now=clock.now)
    store.cancel(added.id, reason=evil, now=clock.now)
    store.pause("default", reason=evil, now=clock.now)
    seen = store.for_tenant(evil).get(added.id)
    assert (seen.tenant, seen.unique_key, seen.reason) == (evil, evil, evil)
    assert (seen.args, seen.metadata) == (encode({evil: evil}).decode(), encode([evil]).decode())
    assert store.progress(added.id).message == evil
    assert store.paused_queues()[0].reason == evil
    assert database.count("job") == 1


@defect("B-8")
@callers
def test_enqueue_in_the_users_transaction_commits_with_it_or_not_at_all(
    store: Store, caller: Caller
) -> None:
    """We never commit the caller's connection: rolled back, there is no job; committed, there is,
    together with the caller's rows."""
    seen: list[int] = []

    class Changed(Exception):
        pass

    def scenario(*, change_of_mind: bool) -> None:
        with caller.transaction(1) as connection:
            [added] = store.enqueue(new_jobs(1), on=connection)
            seen.append(added.id)
            if change_of_mind:
                raise Changed

    with pytest.raises(Changed):
        scenario(change_of_mind=True)
    with pytest.raises(JobNotFound):
        store.get(seen[0])
    assert caller.effects() == []
    scenario(change_of_mind=False)
    assert store.get(seen[1]).state is State.QUEUED
    assert caller.effects() == [1]
