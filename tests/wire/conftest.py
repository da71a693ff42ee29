"""What the tests of the wire share: one database for many calls, and two ways to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import Server, database_name
from tests.support.proxy import Proxy
from tests.wire.bench import Bench


@pytest.fixture(params=["postgres-sync", "postgres-async"])
def colour(request: pytest.FixtureRequest) -> str:
    """How the store is called."""
    return str(request.param)


@pytest.fixture
def bench(colour: str, pg_server: Server, pg_migrated_url: str) -> Iterator[Bench]:
    """A database behind a proxy."""
    with Proxy(pg_server.port) as proxy:
        opened = Bench(colour, pg_migrated_url, proxy, database_name(pg_migrated_url))
        yield opened
        opened.close()
