"""Claims from a backlog of 1,000,000 jobs against claims from one of 10,000.

Two databases stand side by side. In each round 8 blocks of 500 are claimed from either and settled,
and as many jobs are enqueued again. `backlog_pages` is the pages per claim of 500, at most 1.5
times; `backlog` is the rate of claim and settle together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import itemgetter

from bench import work
from bench.harness import Result, check
from bench.lab import Lab
from bench.workloads.meter import Count, metered_place
from bench.workloads.place import KINDS, Kind, Place, plain
from bench.workloads.turns import compare_sides, part, take_turns
from tenure.rules.claim import Lease

NAMES = tuple(
    f"workloads.{store}.{figure}" for store in KINDS for figure in ("backlog_pages", "backlog")
)
LARGE, SMALL = 1_000_000, 10_000
BLOCKS = 8


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store in KINDS:
        names = [f"workloads.{store}.{figure}" for figure in ("backlog_pages", "backlog")]
        if any(lab.wants(name) for name in names):
            yield from _results(lab, store, *names)


def _results(lab: Lab, store: Kind, pages_name: str, rate_name: str) -> Iterator[Result]:
    large, small = lab.few(LARGE), min(lab.few(LARGE), SMALL)
    with metered_place(lab, store) as many, metered_place(lab, store) as some:
        sides = [_Side(*many, large), _Side(*some, small)]
        for side in sides:
            side.turn()  # connections, prepared statements, caches
        rounds = take_turns(lab, {"large": sides[0].turn, "small": sides[1].turn})
        for side in sides:
            side.audit()
    against = f"a backlog of {small:,}"
    pages, rates = (part(rounds, itemgetter(which)) for which in (0, 1))
    for name, values, unit in ((pages_name, pages, "pages/claim"), (rate_name, rates, "jobs/s")):
        yield compare_sides(name, values, "large", "small", unit=unit, against=against)


class _Side:
    def __init__(self, place: Place, count: Count, jobs: int) -> None:
        self._place = place
        self._count = count
        self._jobs = jobs
        self._done: list[int] = []
        self._block = max(1, min(work.BLOCK, jobs // (2 * BLOCKS)))
        place.fill(plain(jobs))
        place.count.settle_down()

    def turn(self) -> tuple[float, float]:
        """Claim, settle, and fill up again. Answers pages per claim and jobs per second."""
        store = self._place.store
        blocks: list[list[Lease]] = []

        def claim() -> None:
            blocks.extend(work.claim(store, self._block) for _ in range(BLOCKS))

        start = time.perf_counter()
        claim_pages = self._count(claim)
        for leases in blocks:
            self._done += work.settle(store, leases)
        seconds = time.perf_counter() - start
        self._place.fill(plain(BLOCKS * self._block))
        self._place.count.settle_down()
        return claim_pages / BLOCKS, BLOCKS * self._block / seconds

    def audit(self) -> None:
        """Every job is live or finished, none twice."""
        done = len(self._done)
        check(len(set(self._done)) == done, "a job was claimed twice")
        work.check_rows(self._place.count, job=self._jobs, ready=self._jobs, lease=0, history=done)
