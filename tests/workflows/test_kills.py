"""A workflow that grows while its workers are killed: all of it runs, and it ends once."""

from __future__ import annotations

import random
import signal

import pytest

from tenure.rules.graph import Outcome
from tenure.rules.job import State
from tests.processes.crew import Crew, Member
from tests.support.patience import until
from tests.workflows.cast import application, work

pytestmark = pytest.mark.slow

WIDTH, FANS, GROWN = 30, 4, 15


@pytest.mark.parametrize("seed", [1])
def test_a_workflow_outlives_its_workers(crew: Crew, url: str, seed: int) -> None:
    chance = random.Random(seed)
    with application(url) as app:
        tasks: dict[str, object] = {task.name: task for task in app}
        call = {name: task.call for name, task in tasks.items()}  # type: ignore[attr-defined]
        flow = app.workflow("killed", finaliser=call["final"]())
        root = flow.add(call["root"]())
        leaves = [
            flow.add(call["leaf"](chance.uniform(0, 0.1)), after=[root]) for _ in range(WIDTH)
        ]
        fans = [flow.add(call["fan"](GROWN, 0.3), after=[root]) for _ in range(FANS)]
        join = flow.add(call["join"](), after=[*leaves, *fans])
        run = flow.enqueue()

        workers: list[Member] = [crew.start(work, url) for _ in range(2)]
        for share in (0.1, 0.3, 0.6):
            most = share * run.status().total
            until(lambda: run.status().finished >= most, "some nodes have ended")  # noqa: B023
            workers.pop(chance.randrange(len(workers))).kill()
            workers.append(crew.start(work, url))
        until(lambda: run.status().outcome is not None, "the workflow has ended")
        for member in workers:
            member.signal(signal.SIGTERM)

        seen = run.status()
        total = 1 + WIDTH + FANS * (1 + GROWN) + 2
        assert (seen.outcome, seen.total) == (Outcome.SUCCEEDED, total)
        assert {node.state for node in run.nodes()} == {State.SUCCEEDED}
        assert run.result(join) == 2 * (WIDTH + FANS * GROWN)
        for node in run.nodes():
            started = app.get(node.id).claimed_at
            ends = [app.get(parent).finished_at for parent in node.after]
            assert started is not None
            assert all(end is not None and end <= started for end in ends), node.name
