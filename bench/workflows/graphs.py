"""Drain of a workflow by one worker against the same number of plain jobs: a random graph, a fan.

`random`: 10,000 nodes, each of which waits for up to three of those before it; the longest path has
some thirty. `fanout`: one node, 10,000 that wait for it, and one that waits for all of these.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from bench import work
from bench.harness import Result
from bench.lab import Lab
from bench.workloads.crew import Crew, crew
from bench.workloads.handlers import NOOP
from bench.workloads.place import KINDS, Kind, Place, fresh_place, plain
from bench.workloads.turns import compare_sides, take_turns
from tenure.rules.graph import NewNode, NewWorkflow
from tenure.rules.job import NewJob

SCENES = ("random", "fanout")
NAMES = tuple(f"workflows.{store}.{scene}" for store in KINDS for scene in SCENES)
NODES = 10_000
MOST_PARENTS = 3
SEED = 7


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store in KINDS:
        for scene in SCENES:
            name = f"workflows.{store}.{scene}"
            if lab.wants(name):
                yield _result(lab, store, scene, name)


def _result(lab: Lab, store: Kind, scene: str, name: str) -> Result:
    nodes = graph(scene, lab.few(NODES))
    rounds = take_turns(
        lab,
        {
            "as a workflow": lambda: _flow(lab, store, nodes),
            "as plain jobs": lambda: _plain(lab, store, len(nodes)),
        },
    )
    return compare_sides(name, rounds, "as a workflow", "as plain jobs", unit="jobs/s")


def graph(scene: str, count: int) -> tuple[NewNode, ...]:
    """The nodes, parents first."""
    if scene == "fanout":
        parents = [(), *([(0,)] * count), tuple(range(1, count + 1))]
    else:
        chance = random.Random(SEED)
        parents = [
            tuple(chance.sample(range(n), min(n, chance.randint(0, MOST_PARENTS))))
            for n in range(count)
        ]
    job = NewJob(task=NOOP, args=work.PAYLOAD)
    return tuple(NewNode(name=f"n{n}", job=job, after=those) for n, those in enumerate(parents))


def _plain(lab: Lab, store: Kind, count: int) -> float:
    with fresh_place(lab, store) as place, crew(place) as team:
        return team.drain(list(plain(count)))


def _flow(lab: Lab, store: Kind, nodes: tuple[NewNode, ...]) -> float:
    with fresh_place(lab, store) as place, crew(place) as team:
        return _drain(place, team, nodes)


def _drain(place: Place, team: Crew, nodes: tuple[NewNode, ...]) -> float:
    """The same as `Crew.drain` for a workflow: enqueued while its queue is paused."""
    team.line_up([])
    added = place.store.enqueue_workflow(NewWorkflow(name="bench", nodes=nodes))
    team.done += len(nodes)
    place.count.settle_down()
    start = time.perf_counter()
    team.run(added.nodes[-1])
    seconds = time.perf_counter() - start
    place.check_finished(team.done)
    return len(nodes) / seconds
