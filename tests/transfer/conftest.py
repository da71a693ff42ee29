"""Two fresh stores, in all four directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tenure.store import Store, open_store
from tests.support.recycled import Recycled

Urls = tuple[str, str]
NewUrl = Callable[[str], str]

CROSSING = [("sqlite", "postgres"), ("postgres", "sqlite")]
DIRECTIONS = [*CROSSING, ("sqlite", "sqlite"), ("postgres", "postgres")]


def _name(pair: Urls) -> str:
    return f"{pair[0]}-to-{pair[1]}"


across = pytest.mark.parametrize("urls", CROSSING, ids=_name, indirect=True)
"""For what takes long: each engine once as a source, and once as a target."""


@pytest.fixture
def new_url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NewUrl]:
    """The address of a fresh, migrated store; as many as a test wants."""
    made: list[str] = []

    def make(engine: str) -> str:
        if engine == "sqlite":
            url = f"sqlite:///{tmp_path / f'jobs-{len(made)}.db'}"
            with open_store(url):
                pass
        else:
            databases: Recycled = request.getfixturevalue("recycled")
            url = databases.take()
        made.append(url)
        return url

    yield make
    for url in made:
        if url.startswith("postgres"):
            request.getfixturevalue("recycled").give_back(url)


@pytest.fixture(params=DIRECTIONS, ids=_name)
def urls(request: pytest.FixtureRequest, new_url: NewUrl) -> Urls:
    """A source and a target."""
    source, target = request.param
    return new_url(source), new_url(target)


@pytest.fixture
def stores(urls: Urls) -> Iterator[tuple[Store, Store]]:
    """The same, open."""
    with ExitStack() as stack:
        source, target = (stack.enter_context(open_store(url)) for url in urls)
        yield source, target
