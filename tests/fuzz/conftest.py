"""How many examples: some with every change, as many as TENURE_EXAMPLES says by `make trust`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tenure.store import Store, open_store
from tests.support.postgres import Server

EXAMPLES = os.environ.get("TENURE_EXAMPLES")


def examples(usual: int) -> settings:
    """So many with every change. The slowness of a machine is not a failing test."""
    return settings(
        max_examples=int(EXAMPLES or usual),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@pytest.fixture(scope="module")
def stores(
    pg_server: Server, pg_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Store, Store]]:
    """One of each kind, for all examples of a file."""
    url = pg_server.create_database(template=pg_template)
    path: Path = tmp_path_factory.mktemp("fuzz") / "jobs.db"
    with open_store(f"sqlite:///{path}?synchronous=NORMAL") as file, open_store(url) as server:
        yield file, server
    pg_server.drop_database(url)
