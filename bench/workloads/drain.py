"""Drain with one and with two worker processes: `async`, thread and process handlers, both stores.

One worker is compared with the engine's own claim and settle loop (blocks of 500, one connection,
no handlers), two workers with one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench import work
from bench.harness import Result
from bench.lab import Lab
from bench.workloads import handlers
from bench.workloads.crew import WARM_UP, crew
from bench.workloads.place import KINDS, Kind, fresh_place, plain
from bench.workloads.turns import compare_sides, take_turns

NAMES = tuple(
    f"workloads.{store}.drain{workers}.{kind}"
    for store in KINDS
    for kind in handlers.KINDS
    for workers in (1, 2)
)
JOBS: dict[handlers.Kind, int] = {"async": 40_000, "thread": 20_000, "process": 6_000}


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store in KINDS:
        for kind in handlers.KINDS:
            names = [f"workloads.{store}.drain{workers}.{kind}" for workers in (1, 2)]
            if any(lab.wants(name) for name in names):
                yield from _results(lab, store, kind, names)


def _results(lab: Lab, store: Kind, kind: handlers.Kind, names: list[str]) -> Iterator[Result]:
    jobs = lab.few(JOBS[kind])
    rounds = take_turns(
        lab,
        {
            "engine's claim and settle": lambda: _engine(lab, store, lab.few(JOBS["async"])),
            "1 worker": lambda: drain(lab, store, kind, workers=1, jobs=jobs),
            "2 workers": lambda: drain(lab, store, kind, workers=2, jobs=jobs),
        },
    )
    one, two = names
    yield compare_sides(one, rounds, "1 worker", "engine's claim and settle", unit="jobs/s")
    yield compare_sides(two, rounds, "2 workers", "1 worker", unit="jobs/s")


def drain(lab: Lab, store: Kind, kind: handlers.Kind, *, workers: int, jobs: int) -> float:
    """Jobs per second of so many worker processes on a fresh database."""
    few = min(WARM_UP, jobs)
    with fresh_place(lab, store) as place, crew(place, kind, workers=workers, warm_up=few) as team:
        return team.drain(list(plain(jobs)))


def _engine(lab: Lab, store: Kind, jobs: int) -> float:
    with fresh_place(lab, store) as place:
        place.fill(plain(jobs))
        place.count.settle_down()
        done, start = 0, time.perf_counter()
        while done < jobs:
            done += len(work.settle(place.store, work.claim(place.store)))
        seconds = time.perf_counter() - start
        place.check_finished(jobs)
    return jobs / seconds
