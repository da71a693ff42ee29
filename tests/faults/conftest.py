"""What the tests of faults share: a store behind a proxy that can be unkind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenure.store import Store
from tests.support.postgres import Server, database_name
from tests.support.proxy import Proxy
from tests.support.stores import open_face


@pytest.fixture
def proxy(pg_server: Server) -> Iterator[Proxy]:
    """A proxy in front of the server. Afterwards: no COMMIT was sent where no BEGIN was."""
    with Proxy(pg_server.port) as running:
        yield running
        for link in running.links:
            check_transactions(link.said)


def check_transactions(said: list[str]) -> None:
    """On each connection every COMMIT belongs to a BEGIN of that same connection."""
    is_open = False
    for statement in said:
        if statement.startswith("begin"):
            is_open = True
        elif statement.endswith("commit"):
            assert is_open, said
            is_open = False
        elif statement == "rollback":
            is_open = False


@pytest.fixture(params=["postgres-sync", "postgres-async"])
def far(request: pytest.FixtureRequest, proxy: Proxy, pg_migrated_url: str) -> Iterator[Store]:
    """A store that reaches its database through the proxy, in both colours."""
    style = str(request.param)
    opened = open_face(style, proxy.url(database_name(pg_migrated_url)), give_up_seconds=20.0)
    yield opened
    opened.close()


@pytest.fixture
def near(pg_migrated_url: str) -> Iterator[Store]:
    """A store on the same database that no fault reaches."""
    opened = open_face("postgres-sync", pg_migrated_url)
    yield opened
    opened.close()
