"""Random gates and keys, workers that are killed: limits hold, nothing is stuck, order is kept."""

from __future__ import annotations

import random

import pytest

from tenure.rules.job import State
from tests.gates.cast import Fleet, Limit, application, by_key, most_at_once, runs
from tests.processes.crew import Crew
from tests.support.patience import until

pytestmark = pytest.mark.slow

KEYS = ["a", "b", "c", "d"]
LEASE_SECONDS = 2.5
"""Long enough that nobody loses a lease but those who are killed, on a busy machine, too."""


@pytest.mark.parametrize("seed", [1, 2])
def test_limits_hold_and_nothing_is_stuck(crew: Crew, url: str, seed: int) -> None:
    chance = random.Random(seed)
    gates: list[Limit] = [
        ("strict", {"max_running": 1}, True),
        ("keyed", {"max_running": chance.randint(2, 3)}, True),
        ("shared", {"max_running": chance.randint(1, 4)}, False),
        ("paced", {"rate": 200, "burst": chance.randint(1, 20)}, False),
    ]
    with application(url, gates) as app:
        calls = [
            task.call(chance.choice(KEYS), chance.uniform(0, 0.03))
            for task in app for _ in range(40)
        ]  # fmt: skip
        chance.shuffle(calls)
        ids = []
        while calls:  # in bulks of all sizes
            part, calls = calls[: (size := chance.randint(1, 30))], calls[size:]
            ids += [handle.id for handle in app.enqueue_many(part)]
        task_of = {id: app.get(id).task for id in ids}

        def left() -> int:
            return sum(count.jobs for count in app.count_live())

        fleet = Fleet(crew, url, gates)
        for _ in range(3):
            fleet.start(lease_seconds=LEASE_SECONDS)
        for share in (0.8, 0.6, 0.4):
            most = share * len(ids)
            until(lambda: left() <= most, "some jobs have ended")  # noqa: B023 - called here
            fleet.kill(chance.choice(fleet.alive))
            fleet.start(lease_seconds=LEASE_SECONDS)
        until(lambda: left() == 0, "all jobs have ended")
        fleet.stop()
        assert all(app.get(id).state is State.SUCCEEDED for id in ids)
        crashed = {id for id in ids if any(e.kind == "crashed" for e in app.timeline(id))}

    attempts = runs(fleet.ended)
    assert {run.job for run in attempts} == set(ids)
    for name, limits, keyed in gates:
        own = [run for run in attempts if task_of[run.job] == name]
        if "max_running" not in limits:
            continue
        lines = by_key(own).values() if keyed else [own]
        assert max(map(most_at_once, lines)) <= limits["max_running"], name
    strict = [r for r in attempts if task_of[r.job] == "strict" and r.job not in crashed]
    for key, line in by_key(strict).items():
        order = [run.job for run in line]
        assert order == sorted(order), f"key {key} ran out of order"


def test_a_permit_comes_back_within_the_lease(crew: Crew, url: str) -> None:
    """One permit, and the worker that uses it dies: the next job runs when the lease is over."""
    gates: list[Limit] = [("only", {"max_running": 1}, False)]
    with application(url, gates) as app:
        [task] = app
        fleet = Fleet(crew, url, gates)
        first, second = (task.enqueue("k", seconds).id for seconds in (60.0, 0.0))
        victim = fleet.start()
        until(lambda: victim.said("begin"), "the first job runs")
        heir = fleet.start()
        fleet.kill(victim)
        until(lambda: app.get(second).state is State.SUCCEEDED, "the second job ran")
        assert app.get(first).crashes == 1
        fleet.kill(heir)
    [(job, *_)] = [said for said in heir.said("begin") if said[0] == second]
    assert job == second
