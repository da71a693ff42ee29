"""At least 100 kills and 20 pauses on each store. `python -m tests.chaos` for thousands."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.chaos.figures import table
from tests.chaos.play import BOUND_SECONDS, Plan, Play, Seen
from tests.chaos.pulse import Pulse
from tests.chaos.stages import STORES, staged
from tests.support.books import Stall
from tests.support.recovery import Recovery, merged

PLANS = {
    "sqlite": Plan(seed=1, kills=100, pauses=20, ends=8),
    "shared": Plan(seed=2, kills=20, pauses=4, ends=4),
    "postgres": Plan(seed=3, kills=100, pauses=20, ends=8, cuts=15, restarts=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_no_invariant_breaks_whoever_is_killed_or_stopped(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = PLANS[store]
    with staged(store, tmp_path) as (stage, server):
        seen = Play(stage, plan, server, books=store != "sqlite").run()
    with capsys.disabled():
        print(f"\n{store}: {seen}")
        print("\n".join([*table({store: [seen]})][4:]))
    assert seen.done["kill"] >= plan.kills
    assert seen.done["pause"] >= plan.pauses
    assert seen.lost_attempts > 0
    assert seen.workflows > 0
    assert seen.ticks > 0


def test_a_seed_draws_the_same_disturbances_again() -> None:
    plan = PLANS["postgres"]
    assert plan.drawn() == plan.drawn()
    assert plan.drawn() != Plan(4, 100, 20, 8, 15, 4).drawn()
    hits = {act: sum(n for each, n in plan.drawn() if each == act) for act, _ in plan.drawn()}
    assert hits == {"kill": 100, "pause": 20, "end": 8, "cut": 15, "restart": 2, "crash": 2}


def test_the_control_notices_a_machine_at_its_limit() -> None:
    """Here it is the interpreter itself that lets nobody else run."""
    with Pulse() as pulse:
        deadline = time.monotonic() + 30.0
        while not pulse.stalls:
            assert time.monotonic() < deadline, "it never noticed"
            sum(range(3_000_000))  # one long operation, in which threads do not take turns
    assert all(stall.ended > stall.began for stall in pulse.stalls)


def test_no_time_is_left_out_twice() -> None:
    stalls = [Stall("b", 2.0, 4.0), Stall("a", 1.0, 3.0), Stall("c", 5.0, 6.0)]
    assert merged(stalls) == [Stall("a", 1.0, 4.0), Stall("c", 5.0, 6.0)]


def test_the_figures_say_how_long_lost_jobs_waited() -> None:
    waits = [Recovery(n, 1, "kill", 1.0 + n / 10, 0.0) for n in range(11)]
    starved = Recovery(99, 1, "kill", 9.0, 7.0)
    lines = list(table({"sqlite": [Seen(recoveries=[*waits, starved])]}))
    assert lines[-2] == "| sqlite | kill | 12 | 1.55 | 5.15 | 9.00 | 11 | 1.50 | 1.95 | 2.00 |"
    assert f"{BOUND_SECONDS:.2f} s" in lines[-1]
