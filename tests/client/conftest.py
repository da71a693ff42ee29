"""Applications: on both stores, or on a SQLite file where the store makes no difference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure import Tenure
from tests.support.audit import audit


@pytest.fixture
def app(url: str) -> Iterator[Tenure]:
    """An application on each store; its rows are audited at the end."""
    with Tenure(url) as app:
        app.migrate()
        yield app
    audit(url)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Tenure]:
    """An application on a SQLite file, for what happens before any store is asked."""
    with Tenure(f"sqlite:///{tmp_path / 'local.db'}") as app:
        yield app
