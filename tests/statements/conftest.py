"""Fixtures for the tests of the promised properties."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure import Tenure
from tenure.store import Store, open_store
from tests.statements import children
from tests.statements.support import Background, Caller, Database, Held, session_of, wait_until
from tests.support.stores import url_of
from tests.worker.support import Lines

Opener = Callable[[], Store]


@pytest.fixture
def database(style: str, store: Store, store_url: str) -> Iterator[Database]:
    """Plain SQL on the tables of `store`."""
    assert store is not None  # opened first: its driver is the one to use
    opened = Database(style, store_url)
    yield opened
    opened.close()


@pytest.fixture
def caller(style: str, store: Store, store_url: str, database: Database) -> Caller:
    """A user with transactions of their own. Goes with `support.callers`."""
    return Caller(style, store, store_url, database)


@pytest.fixture(params=["sqlite", "postgres"])
def shared_style(request: pytest.FixtureRequest) -> str:
    """The style of the stores that `open_shared` opens."""
    return {"sqlite": "sqlite-apsw", "postgres": "postgres-sync"}[str(request.param)]


@pytest.fixture
def shared_url(shared_style: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A file, or a database on a server: never in memory, where concurrency proves nothing."""
    postgres = shared_style.startswith("postgres")
    pg_url = request.getfixturevalue("pg_migrated_url") if postgres else None
    return url_of(shared_style, str(tmp_path / "jobs.db"), pg_url)


@pytest.fixture
def open_shared(shared_url: str) -> Iterator[Opener]:
    """Opens stores on one database, one for each thread."""
    opened: list[Store] = []

    def open_one() -> Store:
        opened.append(open_store(shared_url))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def shared_database(shared_style: str, shared_url: str, open_shared: Opener) -> Iterator[Database]:
    """Plain SQL on the shared database."""
    open_shared()
    opened = Database(shared_style, shared_url)
    yield opened
    opened.close()


@pytest.fixture
def pg(pg_migrated_url: str) -> Iterator[Store]:
    """A store on PostgreSQL for threads."""
    store = open_store(pg_migrated_url, connections=8)
    yield store
    store.close()


@pytest.fixture
def pg_sql(pg: Store, pg_migrated_url: str) -> Iterator[Database]:
    """Plain SQL on the tables of `pg`."""
    assert pg is not None
    opened = Database("postgres-sync", pg_migrated_url)
    yield opened
    opened.close()


@pytest.fixture
def hold(pg: Store, pg_migrated_url: str) -> Iterator[Callable[[], Held]]:
    """Opens transactions that stay open until the test ends them."""
    opened: list[Held] = []

    def open_one() -> Held:
        opened.append(Held(pg_migrated_url, session_of(pg)))
        return opened[-1]

    yield open_one
    for held in opened:
        held.close()


@pytest.fixture
def blocked_by(pg_sql: Database) -> Callable[..., None]:
    """Waits until somebody waits for a lock of this transaction, or has not waited at all."""

    def wait(held: Held, or_over: Background[Any] | None = None) -> None:
        blocked = (
            f"select count(*) from pg_stat_activity where {held.pid} = any (pg_blocking_pids(pid))"
        )
        wait_until(
            lambda: pg_sql.one(blocked) or (or_over is not None and or_over.is_over_within(0))
        )

    return wait


@pytest.fixture
def app(shared_url: str) -> Iterator[Tenure]:
    """An application without tasks, on each store."""
    with Tenure(shared_url) as application:
        yield application


@pytest.fixture
def children_app(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenure]:
    """The application whose handlers run in child processes, on each store."""
    monkeypatch.setenv("TENURE_URL", shared_url)
    with children.app:
        yield children.app


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What the worker logs."""
    kept = Lines()
    logger = logging.getLogger("tenure")
    logger.addHandler(kept)
    yield kept
    logger.removeHandler(kept)
