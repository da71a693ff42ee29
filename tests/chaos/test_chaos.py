"""At least 100 kills and 20 pauses on each store. `python -m tests.chaos` for thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.play import Plan, Play
from tests.chaos.stages import STORES, staged

pytestmark = pytest.mark.slow

PLANS = {
    "sqlite": Plan(seed=1, kills=100, pauses=20, ends=10),
    "shared": Plan(seed=2, kills=20, pauses=4, ends=4),
    "postgres": Plan(seed=3, kills=100, pauses=20, ends=10, cuts=20, restarts=4),
}


@pytest.mark.parametrize("store", STORES)
def test_no_invariant_breaks_whoever_is_killed_or_stopped(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = PLANS[store]
    with staged(store, tmp_path) as (stage, server):
        seen = Play(stage, plan, server, books=store != "sqlite").run()
    with capsys.disabled():
        print(f"\n{store}: {seen}")
    assert seen.done["kill"] == plan.kills
    assert seen.lost_attempts > 0
