"""The pytest plugin: fixtures for tests of code that enqueues or runs jobs.

tenure_url           an empty SQLite database, one per test; override it to use another one
tenure_postgres_url  an empty schema in the database of --tenure-postgres or TENURE_TEST_POSTGRES
tenure_clock         a clock that stands still
tenure_app           the application that `tenure_app = module:name` in pytest's settings names,
                     frozen at tenure_clock, on tenure_url

Every run of pytest loads this module, whatever it tests: it imports nothing that a fixture needs.
"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tenure import Tenure
    from tenure.testing import Clock


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the tests' PostgreSQL is, and their application."""
    parser.getgroup("tenure").addoption(
        "--tenure-postgres",
        metavar="URL",
        help="postgresql://... for tests that use tenure_postgres_url",
    )
    parser.addini("tenure_app", "module:name of the application for the fixture tenure_app")


@pytest.fixture
def tenure_clock() -> "Clock":
    """A clock that stands still until it is told to advance."""
    from tenure.testing import Clock

    return Clock()


@pytest.fixture
def tenure_url(tmp_path: Path) -> str:
    """The URL of an empty SQLite database."""
    return f"sqlite:///{tmp_path / 'tenure.db'}"


@pytest.fixture
def tenure_postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty schema, dropped after the test."""
    url = request.config.getoption("--tenure-postgres") or os.environ.get("TENURE_TEST_POSTGRES")
    if not url:
        pytest.fail(
            "tenure_postgres_url needs a database: --tenure-postgres postgresql://user@host/name, "
            "or TENURE_TEST_POSTGRES",
            pytrace=False,
        )
    from tenure import Tenure

    schema = f"tenure_test_{secrets.token_hex(6)}"
    with Tenure(f"{url}{'&' if '?' in url else '?'}schema={schema}") as app:
        app.migrate()
    try:
        yield app.url
    finally:
        import psycopg

        with psycopg.connect(url) as connection:
            connection.execute(
                "set lock_timeout = '30s'"
            )  # who still works there is not waited for
            connection.execute(f"drop schema {schema} cascade")


@pytest.fixture
def tenure_app(
    request: pytest.FixtureRequest, tenure_url: str, tenure_clock: "Clock"
) -> "Iterator[Tenure]":
    """The application that is tested, on an empty database, frozen."""
    from tenure import Tenure
    from tenure.testing import frozen

    place = str(request.config.getini("tenure_app"))
    if not place:
        pytest.fail(
            "tenure_app needs to know the application: tenure_app = module:name in the settings of "
            "pytest",
            pytrace=False,
        )
    app = resolve_name(place)
    if not isinstance(app, Tenure):
        pytest.fail(f"tenure_app = {place} is not an application, but {app!r:.60}", pytrace=False)
    with frozen(app, url=tenure_url, clock=tenure_clock):
        yield app
