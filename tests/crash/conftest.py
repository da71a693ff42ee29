"""Stages on both stores; where handlers bring their own transactions, in a file they share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import ledger
from tests.crash.cast import Stage
from tests.processes.crew import Crew


@pytest.fixture(params=["sqlite", "postgres"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, crew: Crew) -> Iterator[Stage]:
    """A stage on each store."""
    yield from _stage(request, tmp_path, crew, "")


@pytest.fixture(params=["postgres"])
def postgres_stage(request: pytest.FixtureRequest, tmp_path: Path, crew: Crew) -> Iterator[Stage]:
    """A stage for what only PostgreSQL has: locks on single rows, connections to cut."""
    yield from _stage(request, tmp_path, crew, "")


@pytest.fixture(params=["sqlite", "postgres"])
def shared_stage(request: pytest.FixtureRequest, tmp_path: Path, crew: Crew) -> Iterator[Stage]:
    """A stage whose database holds the ledger as well, in reach of the users' own transactions."""
    for stage in _stage(request, tmp_path, crew, "?driver=sqlite3&allow_affected_sqlite=1"):
        ledger.create(stage.url)
        yield stage


def _stage(
    request: pytest.FixtureRequest, tmp_path: Path, crew: Crew, options: str
) -> Iterator[Stage]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'jobs.db'}{options}"
    else:
        url = str(request.getfixturevalue("pg_migrated_url"))
    folder = tmp_path / "stage"
    folder.mkdir()
    stage = Stage(url, folder, crew)
    yield stage
    stage.close()
