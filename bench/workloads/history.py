"""Settlements beside a history of 300,000 jobs against settlements beside one of 10,000.

Two databases stand side by side. In each round 8 blocks of 500 are enqueued and claimed in either.
`history_pages` is the pages per settlement of 500, `history` the rate of claim and settle together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import itemgetter

from bench import work
from bench.harness import Result
from bench.lab import Lab
from bench.workloads.meter import Count, metered_place
from bench.workloads.place import KINDS, Kind, Place, plain
from bench.workloads.turns import compare_sides, part, take_turns

NAMES = tuple(
    f"workloads.{store}.{figure}" for store in KINDS for figure in ("history_pages", "history")
)
LONG, SHORT = 300_000, 10_000
BLOCKS = 8


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store in KINDS:
        names = [f"workloads.{store}.{figure}" for figure in ("history_pages", "history")]
        if any(lab.wants(name) for name in names):
            yield from _results(lab, store, *names)


def _results(lab: Lab, store: Kind, pages_name: str, rate_name: str) -> Iterator[Result]:
    long, short = lab.few(LONG), min(lab.few(LONG), SHORT)
    with metered_place(lab, store) as old, metered_place(lab, store) as young:
        sides = [_Side(*old, long), _Side(*young, short)]
        rounds = take_turns(lab, {"long": sides[0].turn, "short": sides[1].turn})
        for side in sides:
            side.audit()
    against = f"a history of {short:,}"
    pages, rates = (part(rounds, itemgetter(which)) for which in (0, 1))
    for name, values, unit in ((pages_name, pages, "pages/settle"), (rate_name, rates, "jobs/s")):
        yield compare_sides(name, values, "long", "short", unit=unit, against=against)


class _Side:
    def __init__(self, place: Place, count: Count, history: int) -> None:
        self._place = place
        self._count = count
        self._finished = 0
        while self._finished < history:
            self.turn()

    def turn(self) -> tuple[float, float]:
        """Enqueue, claim, settle. Answers pages per settlement and jobs per second."""
        store = self._place.store
        jobs = BLOCKS * work.BLOCK
        self._place.fill(plain(jobs))
        start = time.perf_counter()
        blocks = [work.claim(store) for _ in range(BLOCKS)]
        pages = self._count(lambda: [work.settle(store, leases) for leases in blocks])
        seconds = time.perf_counter() - start
        self._finished += jobs
        self._place.count.settle_down()
        return pages / BLOCKS, jobs / seconds

    def audit(self) -> None:
        """Every job is finished."""
        self._place.check_finished(self._finished)
