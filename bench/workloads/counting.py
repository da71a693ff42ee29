"""What statistics cost: a worker that counts and writes, against one that does not.

Statistics may cost 3 % of the drain rate. One worker process drains plain jobs of one task.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.harness import Result, check
from bench.lab import Lab
from bench.workloads.crew import APP, crew
from bench.workloads.place import KINDS, Kind, fresh_place, plain
from bench.workloads.turns import compare_sides, take_turns

NAMES = tuple(f"workloads.{store}.statistics" for store in KINDS)
JOBS = 100_000
PROGRAMS = {"with statistics": APP, "without": ("bench.workloads.uncounted",)}


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store in KINDS:
        name = f"workloads.{store}.statistics"
        if lab.wants(name):
            jobs = lab.few(JOBS)
            sides = {side: partial(drain_counted, lab, store, side, jobs) for side in PROGRAMS}
            rounds = take_turns(lab, sides)
            yield compare_sides(name, rounds, "with statistics", "without", unit="jobs/s")


def drain_counted(lab: Lab, store: Kind, side: str, jobs: int) -> float:
    """Jobs per second of one worker on a fresh database, and whether it has counted them."""
    with fresh_place(lab, store) as place:
        with crew(place, program=PROGRAMS[side]) as team:
            rate = team.drain(list(plain(jobs)))
        counted = place.number("select coalesce(sum(ends), 0) from {t}statistic")
        check(counted == (team.done if side == "with statistics" else 0), f"counted {counted}")
        return rate
