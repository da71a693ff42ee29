"""Both stores for the tests with real processes; the calling style makes no difference here."""

from __future__ import annotations

from pathlib import Path

import pytest


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
