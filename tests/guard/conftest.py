"""A fresh database of each kind, with a meter on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import migrate
from tests.guard.places import Place, PostgresPlace, SQLitePlace
from tests.support.postgres import Server, Setting

QUIET_SERVER: dict[str, Setting] = {
    "autovacuum": False,
    "checkpoint_timeout": "1h",
    "max_wal_size": "8GB",
}
"""Nothing but the work itself is counted."""


@pytest.fixture(scope="session")
def quiet_server() -> Iterator[Server]:
    """A server that does nothing on its own account."""
    with Server(settings=QUIET_SERVER) as server:
        yield server


@pytest.fixture(scope="session")
def quiet_template(quiet_server: Server) -> str:
    """A migrated database, to copy."""
    url = quiet_server.create_database()
    migrate(url)
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Where the work is done; a test that asks for it runs once per store."""
    if request.param == "sqlite":
        return SQLitePlace(tmp_path_factory)
    server: Server = request.getfixturevalue("quiet_server")
    return PostgresPlace(server, request.getfixturevalue("quiet_template"))
