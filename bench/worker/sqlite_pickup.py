"""Idle pick-up on SQLite: from a commit in another process to the handler's first line.

Limits: 5 ms for half of the jobs, 20 ms for 99 of 100; the ratio is against the limit, so it should
be at most 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness import Result
from bench.lab import Lab
from bench.worker import pickup
from tenure.store import open_store

NAMES = ("worker.sqlite.pickup", "worker.sqlite.pickup_p99")


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    url = f"sqlite:///{lab.file('jobs.db')}"
    with open_store(url) as store:
        rounds = pickup.measure(lab, store, url)
    yield from pickup.results(NAMES[0], rounds, p50_limit=5.0, p99_limit=20.0)
