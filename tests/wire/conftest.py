"""What the tests of the wire share: one database for many calls, and two ways to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.support.postgres import Server, database_name
from tests.support.proxy import Proxy
from tests.wire.bench import Bench

TURNS = 4
Share = Callable[[Iterable[int]], list[int]]


@pytest.fixture(params=["postgres-sync", "postgres-async"])
def colour(request: pytest.FixtureRequest) -> str:
    """How the store is called."""
    return str(request.param)


@pytest.fixture
def share(request: pytest.FixtureRequest, colour: str) -> Share:
    """Which messages this test is to cut: all with --whole, else those that are its turn.

    The tests of one deed take turns, so that each message is cut in one way and colour at least.
    """
    if request.config.getoption("--whole"):
        return list
    way = request.node.callspec.params.get("way", "")
    turn = 2 * (colour == "postgres-sync") + (way == "before")
    return lambda numbers: [number for number in numbers if number % TURNS == turn]


@pytest.fixture
def bench(colour: str, pg_server: Server, pg_migrated_url: str) -> Iterator[Bench]:
    """A database behind a proxy."""
    with Proxy(pg_server.port) as proxy:
        opened = Bench(colour, pg_migrated_url, proxy, database_name(pg_migrated_url))
        yield opened
        opened.close()
