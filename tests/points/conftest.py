"""A warm process for all tests of this folder, and a database in which it may do as it likes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.points.play import Report
from tests.points.warm import Warm, Wish, quick_folder
from tests.support.postgres import Server

STORES = ("sqlite", "postgres")
SHARE = {"sqlite": 6, "postgres": 12}
"""In `make test`: every n-th point."""

Ask = Callable[..., Report]


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """The process."""
    with quick_folder(tmp_path_factory.mktemp("points")) as folder, Warm(folder) as process:
        yield process


@pytest.fixture(scope="session")
def points_url(pg_server: Server, pg_template: str) -> str:
    """The database."""
    return pg_server.create_database(template=pg_template)


@pytest.fixture(params=STORES)
def ask(request: pytest.FixtureRequest, warm: Warm) -> Ask:
    """Have an operation played on a store: a share of its points, or all of them."""
    store = str(request.param)
    url = request.getfixturevalue("points_url") if store == "postgres" else None
    every = 1 if request.config.getoption("--whole") else SHARE[store]

    def asked(operation: str, **options: Any) -> Report:
        return warm.play(Wish(operation=operation, url=url, **{"every": every} | options))

    return asked
