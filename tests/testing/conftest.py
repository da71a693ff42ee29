"""An application on each store, frozen; and one that nobody froze."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure import Tenure
from tenure.testing import Clock, frozen
from tests.support.audit import audit


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the jobs live; a test that asks for it runs once per store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue("pg_migrated_url"))


@pytest.fixture
def app(url: str, tenure_clock: Clock) -> Iterator[Tenure]:
    """An application that lives by `tenure_clock`; its rows are audited at the end."""
    app = Tenure()
    with frozen(app, url=url, clock=tenure_clock):
        yield app
    audit(url)


@pytest.fixture
def local(tenure_url: str, tenure_clock: Clock) -> Iterator[Tenure]:
    """The same on SQLite, where the store makes no difference."""
    app = Tenure()
    with frozen(app, url=tenure_url, clock=tenure_clock):
        yield app
