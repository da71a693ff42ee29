"""Both stores for the tests with real processes; the calling style makes no difference here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.crew import Crew


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store: a file that does not exist yet, or a migrated database."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    return str(request.getfixturevalue("pg_migrated_url"))


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store without a schema."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    return str(request.getfixturevalue("pg_url"))


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """A SQLite store."""
    return sqlite_url(tmp_path)


def sqlite_url(folder: Path) -> str:
    """A file in the test's folder."""
    return f"sqlite:///{folder / 'jobs.db'}"


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes that end with the test."""
    folder = tmp_path / "crew"
    folder.mkdir()
    with Crew(folder) as running:
        yield running
