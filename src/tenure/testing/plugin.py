"""The pytest plugin: fixtures for tests of code that enqueues or runs jobs.

tenure_url          an empty SQLite database, one per test
tenure_postgres_url an empty schema in the database of --tenure-postgres or TENURE_TEST_POSTGRES
tenure_clock        a clock that stands still
"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.app import Tenure
from tenure.testing.clock import Clock


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the tests' PostgreSQL is."""
    parser.getgroup("tenure").addoption(
        "--tenure-postgres", help="postgresql://... for tests that use tenure_postgres_url"
    )


@pytest.fixture
def tenure_clock() -> Clock:
    """A clock that stands still until it is told to advance."""
    return Clock()


@pytest.fixture
def tenure_url(tmp_path: Path) -> str:
    """The URL of an empty SQLite database."""
    return f"sqlite:///{tmp_path / 'tenure.db'}"


@pytest.fixture
def tenure_postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty schema, dropped after the test."""
    import psycopg

    url = request.config.getoption("--tenure-postgres") or os.environ.get("TENURE_TEST_POSTGRES")
    if not url:
        pytest.fail("tenure_postgres_url needs --tenure-postgres or TENURE_TEST_POSTGRES")
    schema = f"tenure_test_{secrets.token_hex(6)}"
    with Tenure(f"{url}{'&' if '?' in url else '?'}schema={schema}") as app:
        app.migrate()
        yield app.url
    with psycopg.connect(url) as connection:
        connection.execute(f"drop schema {schema} cascade")
