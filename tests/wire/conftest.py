"""What the tests of the wire share: one database for many calls, and two ways to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.support.postgres import Server, database_name
from tests.support.proxy import Fault, Proxy
from tests.wire.bench import Bench

TURN = 36
Share = Callable[[Sequence[Fault], int], list[Fault]]


@pytest.fixture(params=["postgres-sync", "postgres-async"])
def colour(request: pytest.FixtureRequest) -> str:
    """How the store is called."""
    return str(request.param)


@pytest.fixture
def share(request: pytest.FixtureRequest, colour: str) -> Share:
    """Which of the faults are to strike: all with --whole, else every 36th, or fewer still.

    The two colours take other ones.
    """
    if request.config.getoption("--whole"):
        return lambda faults, _: list(faults)
    first = 4 * (colour == "postgres-sync")
    return lambda faults, rarer: list(faults)[first :: TURN * rarer]


@pytest.fixture
def bench(colour: str, pg_server: Server, pg_migrated_url: str) -> Iterator[Bench]:
    """A database behind a proxy."""
    with Proxy(pg_server.port) as proxy:
        opened = Bench(colour, pg_migrated_url, proxy, database_name(pg_migrated_url))
        yield opened
        opened.close()
