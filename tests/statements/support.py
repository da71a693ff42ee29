"""What the tests of the promised properties share: numbering, plain SQL, and ordered races.

`statement`, `rule` and `defect` tie a test to the table in docs/explanation/properties.md.
`Database` looks at the tables from outside the engine. `Held` is one of the engine's own
transactions, kept open just before its COMMIT, so that a race is a fixed order of events instead of
luck.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import apsw
import psycopg
import pytest

from tenure.rules.codec import encode
from tenure.rules.job import Claimed, NewJob
from tenure.rules.lifecycle import (
    HeldJob,
    Outcome,
    Settlement,
    abort,
    fail,
    release,
    retry,
    skip,
    snooze,
    succeed,
)
from tenure.store import AsyncStore, Store
from tenure.store.postgres.connection import Blocking
from tenure.store.session import Mode, Operation, Scope, Session, drive
from tenure.store.statements import qualify
from tests.support.stores import Clock, Face

R = TypeVar("R")
Test = TypeVar("Test", bound=Callable[..., Any])
Row = tuple[Any, ...]

PATIENCE_SECONDS = 20.0
ERROR = encode({"type": "ValueError", "message": "no"})


def statement(*numbers: int) -> Callable[[Test], Test]:
    """This test shows these of the 71 statements."""
    return _tied(numbers)


def defect(*names: str) -> Callable[[Test], Test]:
    """This test would show these defects of earlier systems."""
    return _tied(names)


def rule(*names: str) -> Callable[[Test], Test]:
    """This test fails when one of these rules is taken out of the code."""
    return _tied(names)


def _tied(names: Sequence[object]) -> Callable[[Test], Test]:
    assert names
    return lambda test: test


SETTLEMENTS: dict[Outcome, Callable[[HeldJob], Settlement]] = {
    Outcome.SUCCEED: lambda job: succeed(job, encode({"by": "zombie"})),
    Outcome.RETRY: lambda job: retry(job, ERROR, 5.0),
    Outcome.FAIL: lambda job: fail(job, ERROR),
    Outcome.SNOOZE: lambda job: snooze(job, 5.0),
    Outcome.RELEASE: release,
    Outcome.ABORT: abort,
    Outcome.SKIP: skip,
}
"""One way to end an attempt per outcome."""


@dataclass(frozen=True)
class Presented:
    """What a worker presents, true or not."""

    id: int
    token: int
    lease_id: int


class Database:
    """The tables as plain SQL sees them. Texts say `tenure.job` on both databases."""

    def __init__(self, style: str, url: str) -> None:
        self.is_postgres = style.startswith("postgres")
        path = url.removeprefix("sqlite:///").split("?", maxsplit=1)[0]
        if self.is_postgres:
            self._connection: Any = psycopg.connect(url, autocommit=True)
        elif style == "sqlite-sqlite3":  # the library that the store uses in this process
            self._connection = sqlite3.connect(path, timeout=10, isolation_level=None)
        else:
            self._connection = apsw.Connection(path)
            self._connection.set_busy_timeout(10_000)

    def rows(self, sql: str) -> list[Row]:
        """Run one statement and return what it answers."""
        text = qualify(sql, "postgres" if self.is_postgres else "sqlite", "tenure")
        cursor = self._connection.execute(text)
        if self.is_postgres and not cursor.description:
            return []
        return [tuple(row) for row in cursor]

    def one(self, sql: str) -> Any:
        """The only value of the only row."""
        [(value,)] = self.rows(sql)
        return value

    def count(self, table: str, where: str = "true") -> int:
        """How many rows there are."""
        return int(self.one(f"select count(*) from tenure.{table} where {where}"))

    def tables(self) -> list[str]:
        """The names of all our tables."""
        if self.is_postgres:
            found = self.rows("select tablename from pg_tables where schemaname = 'tenure'")
            return sorted(f"tenure.{row[0]}" for row in found)
        found = self.rows("select name from sqlite_master where type = 'table'")
        return sorted(row[0] for row in found if row[0].startswith("tenure_"))

    def snapshot(self) -> dict[str, list[str]]:
        """Every row of every table, as text, in a fixed order."""
        return {
            table: sorted(repr(row) for row in self.rows(f"select * from {table}"))
            for table in self.tables()
        }

    def break_inserts(self, table: str) -> None:
        """From now on an insert into this table fails."""
        if self.is_postgres:
            self.rows(
                "create function public.refuse() returns trigger language plpgsql as "
                "$$ begin raise exception 'refused by the test'; end $$"
            )
            self.rows(
                f"create trigger refuse before insert on tenure.{table} "
                "for each row execute function public.refuse()"
            )
        else:
            self.rows(
                f"create trigger refuse before insert on tenure.{table} "
                "begin select raise(abort, 'refused by the test'); end"
            )

    def mend_inserts(self, table: str) -> None:
        """Undo `break_inserts`."""
        where = f" on tenure.{table}" if self.is_postgres else ""
        self.rows(f"drop trigger refuse{where}")
        if self.is_postgres:
            self.rows("drop function public.refuse()")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


callers = pytest.mark.parametrize(
    "style", ["sqlite-sqlite3", "postgres-sync", "postgres-async"], indirect=True
)
"""Where a store can take part in the user's transaction; a file of its own cannot."""


class Caller:
    """A user's own transaction next to the store, with one table of the user's own."""

    def __init__(self, style: str, store: Store, url: str, database: Database) -> None:
        self._style, self._store, self._url, self._database = style, store, url, database
        database.rows("create table effect (job_id bigint)")

    def effects(self) -> list[int]:
        """What the user's transactions have committed."""
        return sorted(row[0] for row in self._database.rows("select job_id from effect"))

    @contextmanager
    def transaction(self, effect: int) -> Iterator[object]:
        """Write an effect, run the block, commit; an exception rolls everything back."""
        connection = self._open()
        try:
            self._run(connection, f"insert into effect values ({effect})")
            yield connection
            self._run(connection, "commit")
        except BaseException:
            self._run(connection, "rollback")
            raise
        finally:
            self._wait(connection.close())

    def _open(self) -> Any:
        if self._style == "sqlite-sqlite3":
            path = self._url.removeprefix("sqlite:///").split("?", maxsplit=1)[0]
            connection: Any = sqlite3.connect(path, timeout=10, isolation_level=None)
        elif self._style == "postgres-async":
            connection = self._wait(psycopg.AsyncConnection.connect(self._url, autocommit=True))
        else:
            connection = psycopg.connect(self._url, autocommit=True)
        self._run(connection, "begin immediate" if "sqlite" in self._style else "begin")
        return connection

    def _run(self, connection: Any, sql: str) -> None:
        self._wait(connection.execute(sql))

    def _wait(self, answer: Any) -> Any:
        if isinstance(answer, Awaitable):
            return cast(Face, self._store).loop.run_until_complete(answer)
        return answer


class Background(Generic[R]):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], R]) -> None:
        self._call = call
        self._answer: R | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as error:  # noqa: BLE001 - handed to the caller of `result`
            self._error = error

    def is_over_within(self, seconds: float) -> bool:
        """Wait at most so long for the end."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> R:
        """The answer, or the error raised again."""
        assert self.is_over_within(PATIENCE_SECONDS), "the call is still waiting for something"
        if self._error is not None:
            raise self._error
        return cast(R, self._answer)


def at_once(calls: Sequence[Callable[[], R]]) -> list[R]:
    """Run all of these in threads that start together; answers in order."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], R]) -> R:
        barrier.wait(PATIENCE_SECONDS)
        return call()

    running = [Background(lambda call=call: run(call)) for call in calls]  # type: ignore[misc]
    return [call.result() for call in running]


class _HeldScope(Scope):
    """Runs everything in one transaction of the caller, and never commits."""

    __slots__ = ("_connection",)

    def __init__(self, session: Session, connection: object) -> None:
        super().__init__(session)
        self._connection = connection

    async def transact(self, op: Operation[R], mode: Mode = Mode.WRITE) -> R:
        del mode
        return await op(await self.borrow(self._connection))


class Held:
    """One of the engine's operations on PostgreSQL, done but for its COMMIT."""

    def __init__(self, url: str, session: Session) -> None:
        self.connection = psycopg.connect(url)
        self._session = session
        self.pid = self.connection.info.backend_pid

    def do(self, operation: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        """Run one of the engine's operations: what it would commit stays open here."""
        return drive(operation(_HeldScope(self._session, self.connection), *args, **kwargs))

    def sql(self, text: str) -> list[Row]:
        """Run plain SQL in this transaction."""
        cursor = self.connection.execute(cast(Any, text))
        return [tuple(row) for row in cursor] if cursor.description else []

    def commit(self) -> None:
        """Let it become real."""
        self.connection.commit()

    def rollback(self) -> None:
        """Let it never have been."""
        self.connection.rollback()

    def close(self) -> None:
        """End it, undone if it was not committed."""
        self.connection.close()


def lose_the_answer_to_a_commit(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> None:
    """The next COMMIT of a blocking PostgreSQL store lands, then something else happens, and then
    the connection is gone before the answer."""
    script, fetch = Blocking.script, Blocking.fetch
    cut: list[str] = []

    def lose(self: Blocking, sql: str) -> None:
        if not cut:
            cut.append(sql)
            meanwhile()
            self.connection.close()
            raise psycopg.OperationalError("the connection was cut by the test")

    async def cutting_script(self: Blocking, sql: str) -> None:
        await script(self, sql)
        if sql.endswith("commit"):
            lose(self, sql)

    async def cutting_fetch(
        self: Blocking, sql: str, params: Mapping[str, object], *, prepare: bool
    ) -> list[Row]:
        rows = await fetch(self, sql, params, prepare=prepare)
        if "insert into tenure.job" in sql and self.idle:  # it has committed itself
            lose(self, sql)
        return rows

    monkeypatch.setattr(Blocking, "script", cutting_script)
    monkeypatch.setattr(Blocking, "fetch", cutting_fetch)


def wait_until(condition: Callable[[], object]) -> None:
    """Poll, with a deadline."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def session_of(store: Store | AsyncStore) -> Session:
    """The session under a store."""
    if isinstance(store, Face):
        store = store.store
    return store._scope.session


def new_jobs(count: int, **options: Any) -> list[NewJob]:
    """Plain jobs."""
    return [NewJob(**({"task": "app.work"} | options)) for _ in range(count)]


def add(store: Store, clock: Clock, count: int = 1, **options: Any) -> list[int]:
    """Enqueue plain jobs; their ids."""
    return [a.id for a in store.enqueue(new_jobs(count, **options), now=clock.now)]


def claim_jobs(store: Store, clock: Clock, worker: str = "w1", most: int = 100) -> list[Claimed]:
    """Claim from the default queue; the jobs of all leases, in order of their ids."""
    leases = store.claim(worker, {"default": most}, lease_seconds=30, now=clock.now)
    return sorted((job for lease in leases for job in lease.jobs), key=lambda job: job.id)


def claim_one(store: Store, clock: Clock, worker: str = "w1") -> Claimed:
    """Claim the only job that is ready."""
    [job] = claim_jobs(store, clock, worker)
    return job


def running(store: Store, clock: Clock, worker: str = "w1", **options: Any) -> Claimed:
    """A fresh job, enqueued and claimed."""
    add(store, clock, **options)
    return claim_one(store, clock, worker)


def expire(store: Store, clock: Clock) -> None:
    """Let every lease run out and be swept."""
    clock.advance(31)
    while store.sweep(now=clock.now).more:
        pass
