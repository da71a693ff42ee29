"""A caller with one of the libraries, on a database of their own, audited at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.borrowing.libraries import Caller, Library, params
from tests.support.audit import audit
from tests.support.stores import open_face


@pytest.fixture(params=params())
def library(request: pytest.FixtureRequest) -> Library:
    """The library under test; a test that asks for it runs once per library."""
    chosen: Library = request.param
    return chosen


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    """The application's own SQLite file."""
    return tmp_path / "app.db"


@pytest.fixture
def url(
    library: Library,
    app_file: Path,
    request: pytest.FixtureRequest,
    reach: Callable[[str], str],
) -> str:
    """The store's address, on the caller's database; with --pooler, behind PgBouncer."""
    if library.is_postgres:
        return reach(request.getfixturevalue("pg_migrated_url"))
    if library.driver in ("sqlite-apsw", "sqlite-lent"):
        return f"sqlite:///{app_file}"
    return f"sqlite:///{app_file}?driver=sqlite3&allow_affected_sqlite=1"


@pytest.fixture
def caller(library: Library, url: str, app_file: Path) -> Iterator[Caller]:
    """A caller with a table, without a transaction."""
    store = open_face("async" if library.is_async else "sync", url)
    address = url if library.is_postgres else str(app_file)
    someone = library.make(store, address, library.driver)
    someone.begin()
    someone.rows("create table payment (n integer)")
    someone.commit()
    yield someone
    someone.close()
    someone.end()
    store.close()
    audit(url)
