"""Pages touched per claim on PostgreSQL while a transaction elsewhere stays open.

An old snapshot keeps dead tickets at the head of the line alive; a queue that walks them dies
slowly. Ten rounds of jobs are enqueued, claimed and settled, once with a REPEATABLE READ snapshot
held open and once with an idle transaction that has written to another table. The value is the
pages per claim of 500 in the last round; the ratio is against the first round, and the spread is
that of all rounds. Target: at most 1.5. `.claim_rate` is the rate of the claims alone, in the same
way: there, higher is better.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg

from bench import work
from bench.engine import bare_postgres
from bench.harness import Result, check
from bench.lab import Lab
from tenure.rules.claim import Lease
from tenure.store import Store
from tests.support.pages import PageCounter

NAMES = ("engine.postgres.held_snapshot_pages", "engine.postgres.held_writer_pages")
ROUNDS = 10


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    yield from _measure(
        lab, NAMES[0], "begin isolation level repeatable read; select 1 from pg_class"
    )
    yield from _measure(
        lab, NAMES[1], "create table elsewhere (x int); begin; insert into elsewhere values (1)"
    )


def _measure(lab: Lab, name: str, obstacle: str) -> Iterator[Result]:
    jobs = lab.size(20_000, 4_000)
    pages: list[float] = []
    rates: list[float] = []
    with (
        lab.database() as url,
        lab.postgres_store(url) as store,
        psycopg.connect(url, autocommit=True) as auditor,
        psycopg.connect(url, autocommit=True) as holder,
    ):
        _life(store, 2_000)
        count = bare_postgres.Count(auditor)
        count.settle_down()
        counter = PageCounter(store, auditor)
        for statement in obstacle.split("; "):
            holder.execute(statement)
        for _ in range(ROUNDS):
            per_claim, rate = _round(store, counter, jobs)
            pages.append(per_claim)
            rates.append(rate)
        holder.execute("rollback")
        work.check_rows(count, ready=0, job=0, lease=0, history=2_000 + ROUNDS * jobs)
    against = f"first of {ROUNDS} rounds of {jobs:,}"
    yield _last_against_first(name, pages, "pages/claim", against)
    yield _last_against_first(f"{name}.claim_rate", rates, "claims: jobs/s", against)


def _last_against_first(name: str, rounds: list[float], unit: str, against: str) -> Result:
    ratios = [value / rounds[0] for value in rounds]
    return Result(
        name=name,
        value=round(rounds[-1], 1),
        unit=unit,
        ratio=round(ratios[-1], 3),
        against=f"{against}: {rounds[0]:,.0f}",
        spread=(round(min(ratios), 3), round(max(ratios), 3)),
    )


def _life(store: Store, jobs: int) -> None:
    work.enqueue(store, jobs)
    for _ in range(0, jobs, work.BLOCK):
        work.settle(store, work.claim(store))


def _round(store: Store, counter: PageCounter, jobs: int) -> tuple[float, float]:
    """Pages per claim and claimed jobs per second of one round."""
    enqueued = work.enqueue(store, jobs)
    blocks: list[list[Lease]] = []

    def claim_all() -> None:
        blocks.extend(work.claim(store) for _ in range(0, jobs, work.BLOCK))

    start = time.perf_counter()
    touched = counter.total(claim_all)
    seconds = time.perf_counter() - start
    done = [id for leases in blocks for id in work.settle(store, leases)]
    check(sorted(done) == sorted(enqueued), "not every job was claimed exactly once")
    return touched / len(blocks), jobs / seconds
