"""Both stores, and processes that end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.crew import Crew
from tests.support.audit import audit


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes that end with the test."""
    folder = tmp_path / "crew"
    folder.mkdir()
    with Crew(folder) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh, migrated database of each kind, audited after the test."""
    if request.param == "sqlite":
        address = f"sqlite:///{tmp_path / 'jobs.db'}"
    else:
        address = str(request.getfixturevalue("pg_migrated_url"))
    yield address
    audit(address)
