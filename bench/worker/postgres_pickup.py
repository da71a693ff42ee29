"""Idle pick-up on PostgreSQL: from a commit elsewhere to the handler's first line.

Limits: 2.5 ms for half of the jobs, 10 ms for 99 of 100; the ratio is against the limit, so it
should be at most 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness import Result
from bench.lab import Lab
from bench.worker import pickup

NAMES = ("worker.postgres.pickup", "worker.postgres.pickup_p99")


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    with lab.database() as url, lab.postgres_store(url) as store:
        rounds = pickup.measure(lab, store, url)
    yield from pickup.results(NAMES[0], rounds, p50_limit=2.5, p99_limit=10.0)
