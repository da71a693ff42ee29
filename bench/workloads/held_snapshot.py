"""Claims on PostgreSQL while a snapshot is held open and 1,000,000 jobs pass through.

An old snapshot keeps dead tickets alive; a queue that walks them dies slowly. Twenty rounds of jobs
are enqueued, claimed and settled. `held_snapshot_pages` is the pages per claim of 500 at the end
against the first round, at most 1.5; `held_snapshot` is the rate of claim and settle. The end is
the median of the last three rounds: a vacuum that passes by touches pages too. The spread is that
of all rounds; the detail has both curves, and the report draws them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

import psycopg

from bench import work
from bench.harness import Result, check
from bench.lab import Lab
from bench.workloads.meter import Count, metered_place
from bench.workloads.place import Place, plain
from tenure.rules.claim import Lease

NAMES = ("workloads.postgres.held_snapshot_pages", "workloads.postgres.held_snapshot")
JOBS = 1_000_000
ROUNDS = 20
END = 3


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    block = min(work.BLOCK, max(1, lab.few(JOBS) // ROUNDS))
    jobs = lab.few(JOBS) // ROUNDS // block * block
    pages: list[float] = []
    rates: list[float] = []
    with (
        metered_place(lab, "postgres") as (place, count),
        psycopg.connect(place.url, autocommit=True) as holder,
    ):
        _round(place, count, 4 * block, block)  # connections, prepared statements, caches
        place.count.settle_down()
        holder.execute("begin isolation level repeatable read")
        holder.execute("select 1 from pg_class")
        for _ in range(ROUNDS):
            per_claim, rate = _round(place, count, jobs, block)
            pages.append(per_claim)
            rates.append(rate)
        holder.execute("rollback")
        place.check_finished(4 * block + ROUNDS * jobs)
    yield _end_against_start(NAMES[0], pages, "pages/claim", jobs)
    yield _end_against_start(NAMES[1], rates, "jobs/s", jobs)


def _end_against_start(name: str, curve: Sequence[float], unit: str, jobs: int) -> Result:
    first, end = curve[0], statistics.median(curve[-END:])
    ratios = [value / first for value in curve]
    return Result(
        name=name,
        value=round(end, 1),
        unit=unit,
        ratio=round(end / first, 3),
        against=f"first of {ROUNDS} rounds of {jobs:,}: {first:,.0f}",
        spread=(round(min(ratios), 3), round(max(ratios), 3)),
        detail={"curve": [round(value, 1) for value in curve]},
    )


def _round(place: Place, count: Count, jobs: int, block: int) -> tuple[float, float]:
    """Pages per claim, and jobs claimed and settled per second."""
    place.fill(plain(jobs))
    blocks: list[list[Lease]] = []

    def claim_all() -> None:
        blocks.extend(work.claim(place.store, block) for _ in range(jobs // block))

    start = time.perf_counter()
    touched = count(claim_all)
    done = [id for leases in blocks for id in work.settle(place.store, leases)]
    seconds = time.perf_counter() - start
    check(len(set(done)) == len(done) == jobs, "not every job was claimed exactly once")
    return touched / len(blocks), jobs / seconds
