"""An application on each store. That is all a test of the tour needs."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure import Tenure
from tests.support.audit import audit

Connect = Callable[[], AbstractContextManager[Any]]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    """A test that asks for it runs once on each."""
    return str(request.param)


@pytest.fixture
def url(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where the jobs live."""
    if database == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue("pg_migrated_url"))


@pytest.fixture
def app(url: str) -> Iterator[Tenure]:
    """An application. At the end every row of its database is accounted for."""
    with Tenure(url) as app:
        app.migrate()
        yield app
    audit(url)


@pytest.fixture
def shared_url(database: str, url: str) -> str:
    """Where the jobs live in the application's own database, beside the application's tables."""
    # Two SQLite libraries in one process must not open the same file, so ours is told to use the
    # application's. Its version may have a known defect; a test may risk that.
    return f"{url}?driver=sqlite3&allow_affected_sqlite=1" if database == "sqlite" else url


@pytest.fixture
def shared_app(shared_url: str, connect: Connect) -> Iterator[Tenure]:
    """An application whose jobs live beside its own table `ledger`."""
    with connect() as connection:
        connection.execute("create table ledger (entry text)")
        connection.commit()
    with Tenure(shared_url) as app:
        app.migrate()  # before a transaction of the application's own holds the file
        yield app
    audit(shared_url)


@pytest.fixture
def connect(database: str, url: str) -> Connect:
    """How the application itself connects to its database: sqlite3 or psycopg."""
    if database == "sqlite":
        file = url.removeprefix("sqlite:///")
        return lambda: closing(sqlite3.connect(file, timeout=30))
    return lambda: closing(psycopg.connect(url))
