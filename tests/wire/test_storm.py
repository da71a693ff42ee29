"""Real workers on a wire that is cut again and again, at messages drawn by lot."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tenure.rules.job import State
from tests.crash.cast import Stage
from tests.crash.handlers import quick
from tests.processes.crew import Crew
from tests.support.patience import until
from tests.support.postgres import Server, database_name
from tests.support.proxy import SIDES, Fault, Proxy, Way

STRIKES = 40
MESSAGES = 30
"""More than most operations have."""
WAYS: tuple[Way, ...] = ("before", "after")


@pytest.fixture
def stage(pg_migrated_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage whose own way to the database is undisturbed."""
    folder, crew_folder = tmp_path / "stage", tmp_path / "crew"
    folder.mkdir()
    crew_folder.mkdir()
    with Crew(crew_folder) as crew:
        stage = Stage(pg_migrated_url, folder, crew)
        yield stage
        stage.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_workers_lose_nothing_in_a_storm_of_cuts(
    stage: Stage, pg_server: Server, seed: int
) -> None:
    lots = random.Random(seed)
    with Proxy(pg_server.port) as proxy:
        url = proxy.url(database_name(stage.url))
        workers = [stage.worker(url=url) for _ in range(2)]
        ids = []
        for _ in range(STRIKES):
            ids += stage.add(*[quick.call() for _ in range(5)])
            fault = Fault(lots.choice(SIDES), lots.randint(1, MESSAGES), lots.choice(WAYS))
            proxy.order(fault)
            until(partial(getattr, fault, "times"), "the cut")
        stage.drained(60)
        assert {stage.store.get(id).state for id in ids} == {State.SUCCEEDED}
        stage.check(disturbed={worker.pid for worker in workers})
