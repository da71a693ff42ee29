"""More worker processes on one database: 2, 4 and 8 on PostgreSQL, 8 on SQLite, against one.

`async` handlers that do nothing: this is the cost of getting in each other's way. More processes
than cores cannot be faster; they must not be much slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.harness import Result
from bench.lab import Lab
from bench.workloads.drain import drain
from bench.workloads.place import Kind
from bench.workloads.turns import compare_sides, take_turns

COUNTS: dict[Kind, tuple[int, ...]] = {"postgres": (2, 4, 8), "sqlite": (8,)}
NAMES = tuple(
    f"workloads.{store}.workers{count}" for store, counts in COUNTS.items() for count in counts
)
JOBS = 40_000


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store, counts in COUNTS.items():
        wanted = [count for count in counts if lab.wants(f"workloads.{store}.workers{count}")]
        if not wanted:
            continue
        rounds = take_turns(
            lab,
            {
                str(count): partial(drain, lab, store, "async", workers=count, jobs=lab.few(JOBS))
                for count in (1, *wanted)
            },
        )
        for count in wanted:
            name = f"workloads.{store}.workers{count}"
            yield compare_sides(name, rounds, str(count), "1", unit="jobs/s", against="1 worker")
