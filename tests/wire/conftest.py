"""What the tests of the wire share: one database for many calls, and two ways to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import pytest

from tests.support.postgres import Server, database_name
from tests.support.proxy import Proxy
from tests.wire.bench import Bench

TURNS = 8


class Share(Protocol):
    """Chooses some of the messages of an operation."""

    def __call__(self, numbers: Iterable[int], rarer: int = 1) -> list[int]: ...


@pytest.fixture(params=["postgres-sync", "postgres-async"])
def colour(request: pytest.FixtureRequest) -> str:
    """How the store is called."""
    return str(request.param)


@pytest.fixture
def share(request: pytest.FixtureRequest, colour: str) -> Share:
    """Which messages are this test's to hurt: all with --whole, else every eighth or so.

    The tests of one deed take turns, so that they do not all hurt the same ones.
    """
    if request.config.getoption("--whole"):
        return lambda numbers, rarer=1: list(numbers)  # noqa: ARG005 - all of them
    way = request.node.callspec.params.get("way", "")
    turn = 4 * (colour == "postgres-sync") + 2 * (way == "before")
    return lambda numbers, rarer=1: list(numbers)[turn :: TURNS * rarer] or list(numbers)[-1:]


@pytest.fixture
def bench(colour: str, pg_server: Server, pg_migrated_url: str) -> Iterator[Bench]:
    """A database behind a proxy."""
    with Proxy(pg_server.port) as proxy:
        opened = Bench(colour, pg_migrated_url, proxy, database_name(pg_migrated_url))
        yield opened
        opened.close()
