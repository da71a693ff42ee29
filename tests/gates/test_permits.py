"""Workers with more jobs in hand than permits: killed, stopped past their leases, many at work."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from typing import Any

import pytest

from tenure import Gate, Tenure
from tenure.rules.job import State
from tests.gates.cast import (
    FAST,
    Fleet,
    Limit,
    application,
    by_key,
    most_at_once,
    runs,
    while_leased,
)
from tests.processes.crew import Crew
from tests.support.patience import until
from tests.support.plain import Plain
from tests.worker.support import working

KEYS = ["a", "b"]
JOBS = 250


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_more_handlers_run_than_permits(crew: Crew, url: str, seed: int) -> None:
    chance = random.Random(seed)
    gates: list[Limit] = [
        ("keyed", {"max_running": 2}, True),
        ("shared", {"max_running": chance.randint(3, 6)}, False),
    ]
    with application(url, gates) as app:

        def add() -> list[int]:
            calls = [
                task.call(chance.choice(KEYS), chance.uniform(0, 0.002))
                for task in app for _ in range(JOBS)
            ]  # fmt: skip
            chance.shuffle(calls)
            return [handle.id for handle in app.enqueue_many(calls)]

        def left() -> int:
            return sum(count.jobs for count in app.count_live())

        ids = add()
        task_of = {id: app.get(id).task for id in ids}
        fleet = Fleet(crew, url, gates)
        for _ in range(3):
            fleet.start(async_slots=10)
        until(lambda: left() <= 1.5 * JOBS, "some jobs have ended")
        fleet.kill(chance.choice(fleet.alive))
        paused = chance.choice(fleet.alive)
        paused.signal(signal.SIGSTOP)
        over_at = time.monotonic() + 2 * FAST["lease_seconds"]
        fleet.start(async_slots=10)
        # It may have stopped with the write lock of a file: then all others wait for it.
        until(lambda: left() == 0 or time.monotonic() > over_at, "its leases are over")
        paused.signal(signal.SIGCONT)
        until(lambda: left() == 0, "all jobs have ended, those of the stopped one too")
        _check(app, fleet, gates, ids, task_of)


def _check(
    app: Tenure, fleet: Fleet, gates: list[Limit], ids: list[int], task_of: dict[int, str]
) -> None:
    fleet.stop()
    assert all(app.get(id).state is State.SUCCEEDED for id in ids)
    attempts = while_leased(app, runs(fleet.ended))
    assert {run.job for run in attempts} == set(ids)
    for name, limits, keyed in gates:
        own = [run for run in attempts if task_of[run.job] == name]
        lines = by_key(own).values() if keyed else [own]
        assert max(map(most_at_once, lines)) <= limits["max_running"], name


class Watched:
    """A handler that counts how many of it run at once."""

    def __init__(self) -> None:
        self.now = self.most = self.ended = 0

    async def run(self) -> None:
        """One job."""
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        self.ended += 1


def test_a_worker_takes_more_than_it_may_run_and_keeps_to_its_permits(url: str) -> None:
    with Tenure(url) as app:
        seen = Watched()

        @app.task(gate=Gate("few", max_running=3))
        async def work() -> None:
            await seen.run()

        added = len(app.enqueue_many([work.call()] * 500))
        plain = Plain(url)

        def has_shared() -> bool:
            nonlocal added
            shared = bool(plain.rows("select 1 from tenure.gate_share limit 1"))
            if seen.ended >= added:
                app.enqueue_many([work.call()] * 500)
                added += 500
            return shared

        with working(app, async_slots=10):
            until(has_shared, "it has more jobs than permits")
            until(lambda: seen.ended == added, "all have run")
        plain.close()
        assert seen.most == 3


def test_what_it_has_in_hand_goes_back_when_it_stops(url: str) -> None:
    """Jobs that wait for a permit are neither lost nor charged."""
    with Tenure(url) as app:
        long = asyncio.Event()
        begun: Counter[str] = Counter()

        @app.task(gate=Gate("few", max_running=2))
        async def work(what: str) -> None:
            begun[what] += 1
            if what == "long":
                await long.wait()

        app.enqueue_many([work.call("short")] * 300 + [work.call("long")] * 2)
        last = app.enqueue_many([work.call("short")] * 300)
        with working(app, drain_seconds=0.1, kill_seconds=0.1):
            until(lambda: begun["long"] == 2, "two hold both permits")
        assert begun["short"] >= 300
        assert all(app.get(handle.id).attempts <= 1 for handle in last)
        with working(app):
            long.set()
            until(lambda: not list(app.count_live()), "all have run")
        assert {app.get(handle.id).state for handle in last} == {State.SUCCEEDED}


@pytest.mark.slow
def test_a_worker_with_all_permits_lets_others_in(url: str) -> None:
    """Another queue waits at the same gate, and the first one is never empty."""
    with Tenure(url) as app:
        gate = Gate("few", max_running=2)
        ended: Counter[str] = Counter()

        def task(queue: str) -> Any:
            @app.task(name=queue, queue=queue, gate=gate)
            async def work() -> None:
                ended[queue] += 1

            return work

        busy, quiet = task("busy"), task("quiet")
        added = 0

        def quiet_ones_have_run() -> bool:
            nonlocal added
            if added - ended["busy"] < 1000:
                app.enqueue_many([busy.call()] * 1000)
                added += 1000
            return ended["quiet"] == 5

        quiet_ones_have_run()
        with working(app, {"busy": 0}):
            until(lambda: ended["busy"] > 100, "the busy queue has the gate")
            app.enqueue_many([quiet.call()] * 5)
            with working(app, {"quiet": 0}):
                until(quiet_ones_have_run, "the others have run")
                assert added > ended["busy"], "nobody waited, so this shows nothing"
