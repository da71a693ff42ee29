"""Drain by one worker with gates against the same without: at capacity, long jobs, 10,000 keys.

`at_capacity`: jobs that do nothing, and a gate that lets as many run at once as the worker has
slots for coroutines. `long_at_capacity`: the same with jobs of 200 ms, which nobody claims ahead.
`keys10000`: short jobs of 10,000 keys, one of each at a time, in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench import work
from bench.harness import Result
from bench.lab import Lab
from bench.workloads.crew import crew
from bench.workloads.handlers import NOOP, WAIT
from bench.workloads.place import KINDS, Kind, fresh_place
from bench.workloads.turns import compare_sides, take_turns
from tenure.rules.gates import Limits
from tenure.rules.job import NewJob

SCENES = ("at_capacity", "long_at_capacity", "keys10000")
NAMES = tuple(f"gates.{store}.{scene}" for store in KINDS for scene in SCENES)
SLOTS = 100
"""The slots for coroutines of a worker with stock settings."""
KEYS = 10_000
JOBS = {"at_capacity": 40_000, "long_at_capacity": 4_000, "keys10000": 20_000}
GATES = {"capacity": Limits(max_running=SLOTS), "key": Limits(max_running=1, keyed=True)}


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store in KINDS:
        for scene in SCENES:
            name = f"gates.{store}.{scene}"
            if lab.wants(name):
                yield _result(lab, store, scene, name)


def _result(lab: Lab, store: Kind, scene: str, name: str) -> Result:
    rounds = take_turns(
        lab,
        {
            "at a gate": lambda: _drain(lab, store, scene, gated=True),
            "without a gate": lambda: _drain(lab, store, scene, gated=False),
        },
    )
    return compare_sides(name, rounds, "at a gate", "without a gate", unit="jobs/s")


def _drain(lab: Lab, store: Kind, scene: str, *, gated: bool) -> float:
    with fresh_place(lab, store) as place:
        place.store.declare_gates(GATES)
        with crew(place) as team:
            return team.drain(_jobs(scene, lab.few(JOBS[scene]), gated=gated))


def _jobs(scene: str, count: int, *, gated: bool) -> list[NewJob]:
    task = WAIT if scene == "long_at_capacity" else NOOP
    gate = "key" if scene == "keys10000" else "capacity"
    return [
        NewJob(
            task=task, args=work.PAYLOAD, gate=gate if gated else None,
            gate_key=str(n % KEYS) if gated and gate == "key" else None,
        )
        for n in range(count)
    ]  # fmt: skip
