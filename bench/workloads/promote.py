"""Pages per promote of 1,000 due jobs, among 1,000,000 scheduled ones against among 10,000.

Two databases stand side by side. Jobs come due 2,000 a second; time is given to the store, so that
each promote finds half a second's worth. The line is drained and as many jobs are scheduled again
between the rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from bench import work
from bench.harness import Result, check
from bench.lab import Lab
from bench.workloads.handlers import NOOP
from bench.workloads.meter import Count, metered_place
from bench.workloads.place import KINDS, Kind, Place
from bench.workloads.turns import compare_sides, take_turns
from tenure.rules.job import NewJob

NAMES = tuple(f"workloads.{store}.promote_pages" for store in KINDS)
LARGE, SMALL = 1_000_000, 10_000
PER_SECOND = 2_000
PROMOTES = 4


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store, name in zip(KINDS, NAMES, strict=True):
        if lab.wants(name):
            yield _result(lab, store, name)


def _result(lab: Lab, store: Kind, name: str) -> Result:
    large, small = lab.few(LARGE), min(lab.few(LARGE), SMALL)
    with metered_place(lab, store) as many, metered_place(lab, store) as some:
        sides = [_Side(*many, large), _Side(*some, small)]
        for side in sides:
            side.turn()  # connections, prepared statements, caches
        rounds = take_turns(lab, {"large": sides[0].turn, "small": sides[1].turn})
        for side in sides:
            side.audit()
    against = f"{small:,} scheduled"
    return compare_sides(name, rounds, "large", "small", unit="pages/promote", against=against)


class _Side:
    def __init__(self, place: Place, count: Count, jobs: int) -> None:
        self._place = place
        self._count = count
        self._jobs = jobs
        self._promoted = 0
        self._page = min(1_000, jobs // (2 * PROMOTES))
        self._epoch = datetime.now(UTC) + timedelta(days=1)
        self._scheduled = 0
        self._schedule(jobs)

    def turn(self) -> float:
        """Pages per promote."""
        pages = self._count(self._promote)
        self._drain()
        self._schedule(PROMOTES * self._page)
        return pages / PROMOTES

    def audit(self) -> None:
        """Every job is scheduled or finished."""
        work.check_rows(
            self._place.count,
            due=self._jobs, job=self._jobs, ready=0, lease=0, history=self._promoted,
        )  # fmt: skip

    def _promote(self) -> None:
        for _ in range(PROMOTES):
            self._promoted += self._page
            found = self._place.store.promote(now=self._time(self._promoted - 1))
            check(found == self._page, f"{found} jobs were promoted, not {self._page}")

    def _drain(self) -> None:
        while leases := work.claim(self._place.store):
            work.settle(self._place.store, leases)

    def _schedule(self, jobs: int) -> None:
        first, self._scheduled = self._scheduled, self._scheduled + jobs
        self._place.fill(
            NewJob(task=NOOP, args=work.PAYLOAD, due_at=self._time(number))
            for number in range(first, self._scheduled)
        )
        self._place.count.settle_down()

    def _time(self, number: int) -> datetime:
        return self._epoch + timedelta(seconds=number / PER_SECOND)
