"""Both stores, an application on each, and what the library logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenure import Tenure
from tests.worker import isolated
from tests.worker.support import Lines, Script

SCRIPTS = Path(__file__).parent / "scripts"
Run = Callable[..., Script]


@pytest.fixture
def app(url: str) -> Iterator[Tenure]:
    """An application without tasks on a fresh store."""
    with Tenure(url) as application:
        yield application


@pytest.fixture
def children_app(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Tenure]:
    """The application whose tasks run in child processes, on a fresh store."""
    monkeypatch.setenv("TENURE_URL", url)
    monkeypatch.setenv("TENURE_TEST_FOLDER", str(tmp_path))
    isolated.app.hooks.listeners.clear()
    yield isolated.app
    isolated.app.close()


@pytest.fixture
def shared_app(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Tenure]:
    """The same, on stores to which a user's own connection may write as well."""
    if url.startswith("sqlite"):
        url += "?driver=sqlite3&allow_affected_sqlite=1"
    monkeypatch.setenv("TENURE_URL", url)
    monkeypatch.setenv("TENURE_TEST_FOLDER", str(tmp_path))
    yield isolated.app
    isolated.app.close()


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Everything that the library logs during the test."""
    kept = Lines()
    logger = logging.getLogger("tenure")
    before = logger.level
    logger.addHandler(kept)
    logger.setLevel(logging.DEBUG)
    yield kept
    logger.removeHandler(kept)
    logger.setLevel(before)


@pytest.fixture
def run_script(url: str, tmp_path: Path) -> Iterator[Run]:
    """Starts scripts of this folder on the store; they end with the test."""
    started: list[Script] = []

    def run(name: str, *args: str, store: str = url) -> Script:
        started.append(Script(SCRIPTS / f"{name}.py", store, *args, folder=tmp_path))
        return started[-1]

    yield run
    for script in started:
        script.__exit__(None, None, None)
