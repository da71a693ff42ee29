"""A tenant with 100,000 jobs and ten with 100 each, at a gate that lets tenants take turns.

Four worker processes, jobs of 200 ms. Measured is the time until all jobs of the ten are done. The
other side has no large tenant, but an eleventh small one: all eleven have an equal share.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from bench import work
from bench.harness import Result
from bench.lab import Lab
from bench.workloads.crew import crew
from bench.workloads.handlers import WAIT
from bench.workloads.place import KINDS, Kind, fresh_place
from bench.workloads.turns import compare_sides, take_turns
from tenure.rules.gates import Limits
from tenure.rules.job import NewJob

NAMES = tuple(f"gates.{store}.fairness" for store in KINDS)
LARGE, SMALL, TENANTS = 100_000, 100, 10
WORKERS = 4


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store in KINDS:
        name = f"gates.{store}.fairness"
        if lab.wants(name):
            sides = {
                "beside a large one": partial(_seconds, lab, store, lab.few(LARGE)),
                "with an equal share": partial(_seconds, lab, store, SMALL),
            }
            yield compare_sides(name, take_turns(lab, sides), *sides, unit="s")


def _seconds(lab: Lab, store: Kind, others: int) -> float:
    """How long the small tenants take beside another one with so many jobs."""
    with fresh_place(lab, store) as place:
        place.store.declare_gates({"fair": Limits()})
        with crew(place, workers=WORKERS) as team:
            first = team.line_up(_jobs("large", others))
            small = [job for n in range(TENANTS) for job in _jobs(f"small-{n}", SMALL)]
            last = team.line_up(small)
            left = f"select count(*) from {{t}}job where id > {first} and id <= {last}"
            start = time.perf_counter()
            team.run_until(lambda: not place.number(left), "the small ones did not end")
            return time.perf_counter() - start


def _jobs(tenant: str, count: int) -> list[NewJob]:
    return [
        NewJob(task=WAIT, args=work.PAYLOAD, gate="fair", gate_key=tenant) for _ in range(count)
    ]
