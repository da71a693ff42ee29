"""Kills and pauses on each store: a share of them in `make test`, 100 and 20 with --whole.

`make trust ARGS=chaos` for hundreds and thousands.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.company import ENDS, KINDS
from tests.chaos.deck import Deck
from tests.chaos.figures import table
from tests.chaos.play import BOUND_SECONDS, Plan, Play, Seen
from tests.chaos.pulse import Pulse
from tests.chaos.sessions import AWAKE_SECONDS, Idle, held_up
from tests.chaos.stages import STORES, staged
from tests.support.books import Stall
from tests.support.patience import PATIENCE_SECONDS
from tests.support.recovery import Recovery, merged

SHARES = {
    "sqlite": Plan(seed=1, kills=12, pauses=3, ends=2),
    "shared": Plan(seed=2, kills=12, pauses=3, ends=2),
    "postgres": Plan(seed=3, kills=12, pauses=3, ends=2, cuts=4, restarts=2),
}
PLANS = {
    "sqlite": Plan(seed=1, kills=100, pauses=20, ends=8),
    "shared": Plan(seed=2, kills=100, pauses=20, ends=8),
    "postgres": Plan(seed=3, kills=100, pauses=20, ends=8, cuts=15, restarts=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_no_invariant_breaks_whoever_is_killed_or_stopped(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], whole: bool
) -> None:
    plan = (PLANS if whole else SHARES)[store]
    with staged(store, tmp_path) as (stage, server):
        seen = Play(stage, plan, server, books=store != "sqlite").run()
    with capsys.disabled():
        print(f"\n{store}: {seen}")
        print("\n".join([*table({store: [seen]})][4:]))
    for act, wanted in wanted_by(plan).items():
        assert seen.done[act] >= wanted, act
    assert seen.killed.keys() == KINDS.keys()
    assert seen.ended.keys() == ENDS.keys()
    assert seen.gates.keys() == {"one", "two", "three", "paced"}
    for count in (seen.in_child, seen.workflows, seen.ticks, seen.lost_attempts, seen.audits):
        assert count > 0


def wanted_by(plan: Plan) -> Counter[str]:
    """How many each act is to hit. A pause that ends before a lease does not count as one."""
    wanted: Counter[str] = Counter()
    for act, size in plan.drawn():
        wanted[act] += size
    return wanted


def test_a_seed_draws_the_same_disturbances_again() -> None:
    plan = PLANS["postgres"]
    assert plan.drawn() == plan.drawn()
    assert plan.drawn() != Plan(4, 100, 20, 8, 15, 4).drawn()
    assert wanted_by(plan) == {
        "kill": 100,
        "pause": 20,
        "end": 8,
        "cut": 15,
        "restart": 2,
        "crash": 2,
    }


def test_a_deck_has_every_card_first_and_keeps_what_cannot_be_played() -> None:
    deck = Deck(random.Random(1), {"a": 3, "b": 1, "c": 1})
    assert deck.draw(lambda card: card == "a") == "a"
    assert {deck.draw(), deck.draw()} == {"b", "c"}
    assert [deck.draw(), deck.draw()] == ["a", "a"]
    assert deck.draw(lambda card: card == "d") is None


def test_only_who_is_stopped_may_leave_a_transaction_open() -> None:
    open_since = [Idle(7, 10.0), Idle(8, 19.5)]
    assert held_up(open_since, {7: 12.0}, {}, 20.0) == [
        Stall("process 7 is stopped in a transaction", 12.0, 20.0)
    ]
    assert held_up(open_since, {}, {7: 20.0 - AWAKE_SECONDS}, 20.0) == []
    with pytest.raises(AssertionError, match="process 7 has a transaction open"):
        held_up(open_since, {}, {7: 19.0 - AWAKE_SECONDS}, 20.0)
    with pytest.raises(AssertionError, match="process 7 has a transaction open"):
        held_up(open_since, {8: 12.0}, {}, 20.0)


def test_time_without_an_idle_processor_does_not_count() -> None:
    open_since = [Idle(7, 10.0)]
    busy = [Stall("no idle CPU", 9.0, 15.0), Stall("not scheduled", 14.0, 18.0)]
    assert held_up(open_since, {}, {}, 20.0, busy) == []
    with pytest.raises(AssertionError, match=r"busy for 5\.000 s of them"):
        held_up(open_since, {}, {}, 20.0, busy[:1])


def test_the_control_notices_a_machine_at_its_limit() -> None:
    """Here it is the interpreter itself that lets nobody else run."""
    with Pulse() as pulse:
        deadline = time.monotonic() + PATIENCE_SECONDS
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
