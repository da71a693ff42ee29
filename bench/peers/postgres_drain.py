"""No-op jobs through one and two worker processes on PostgreSQL, against each peer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.harness import Result
from bench.lab import Lab
from bench.peers.catalogue import ON_POSTGRES
from bench.peers.contest import Pair, compare_turns, compete, names, take_turns
from bench.peers.drain import drain

WORKLOADS = {"peers.postgres.drain1": 1, "peers.postgres.drain2": 2}
NAMES = tuple(name for workload in WORKLOADS for name in names(workload, ON_POSTGRES))


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for workload in WORKLOADS:
        yield from compete(lab, workload, "tenure-postgres", ON_POSTGRES, _results)


def _results(lab: Lab, pair: Pair) -> Iterator[Result]:
    measure = partial(drain, workers=WORKLOADS[pair.workload])
    rounds = take_turns(lab, pair, measure)
    yield compare_turns(pair.named(), pair, rounds, "jobs_per_second", "jobs/s")
