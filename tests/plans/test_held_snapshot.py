"""A transaction that stays open elsewhere does not slow claims down.

It keeps dead tickets at the head of the line alive, and a claim that starts at the head walks all
of them: the classic death of queues on PostgreSQL. The floors of the claimers keep claims flat.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tenure.rules.claim import Lease
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import succeed
from tenure.store import Store, open_store
from tests.support.pages import PageCounter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Connection = psycopg.Connection[tuple[Any, ...]]

WORKER = "host-1:42"
WHOLE, SHARE = 200_000, 60_000
ROUND = 10_000
BLOCK = 500
WORST_RATIO = 1.5


@contextmanager
def held_snapshot(url: str) -> Iterator[Connection]:
    """A reader that keeps its snapshot: a forgotten report, a backup."""
    with psycopg.connect(url) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select count(*) from tenure.ready")
        yield connection


@contextmanager
def idle_writer(url: str) -> Iterator[Connection]:
    """A writer that keeps its transaction id, on a table that is none of ours."""
    with psycopg.connect(url) as connection:
        connection.execute("create table elsewhere (x int)")
        connection.commit()
        connection.execute("insert into elsewhere values (1)")
        yield connection


@dataclass
class Run:
    """Pages per claim (all, and those of `ready`) and per settlement by round; the jobs done."""

    claim_pages: list[float] = field(default_factory=list)
    line_pages: list[float] = field(default_factory=list)
    settle_pages: list[float] = field(default_factory=list)
    done: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(
            f"{what}: {' '.join(f'{pages:.0f}' for pages in rounds)}"
            for what, rounds in (
                (f"pages per claim of {BLOCK}", self.claim_pages),
                ("of which of the line", self.line_pages),
                ("pages per settlement", self.settle_pages),
            )
        )


@pytest.fixture
def jobs(whole: bool) -> int:
    """How many."""
    return WHOLE if whole else SHARE


def drain(store: Store, counter: PageCounter, jobs: int) -> Run:
    """Enqueue and drain so many jobs, round by round."""
    run = Run()
    for _ in range(jobs // ROUND):
        one_round(store, counter, run)
    return run


def one_round(store: Store, counter: PageCounter, run: Run) -> None:
    for _ in range(ROUND // 1000):
        store.enqueue([NewJob(task="app.send")] * 1000)
    blocks: list[list[Lease]] = []

    def claim_all() -> None:
        blocks.extend(store.claim(WORKER, {"default": BLOCK}) for _ in range(ROUND // BLOCK))

    def settle_all() -> None:
        for leases in blocks:
            held = [job for lease in leases for job in lease.jobs]
            done = [lease.id for lease in leases]
            answers = store.settle(WORKER, [succeed(job) for job in held], done_leases=done)
            assert all(answer.landed for answer in answers)
            run.done.extend(job.id for job in held)

    touched = counter.by_table(claim_all)
    run.claim_pages.append(sum(touched.values()) / len(blocks))
    run.line_pages.append(touched["ready"] / len(blocks))
    run.settle_pages.append(counter.total(settle_all) / len(blocks))


@contextmanager
def opened(url: str) -> Iterator[tuple[Store, PageCounter]]:
    with ExitStack() as stack:
        store = stack.enter_context(open_store(url, connections=1))
        reader = stack.enter_context(psycopg.connect(url, autocommit=True))
        store.enqueue([NewJob(task="app.send")])
        [lease] = store.claim(WORKER, {"default": 1})
        store.settle(WORKER, [succeed(lease.jobs[0])], done_leases=[lease.id])
        yield store, PageCounter(store, reader)


@pytest.mark.parametrize("obstacle", [held_snapshot, idle_writer])
def test_claims_touch_no_more_pages_after_many_jobs_than_at_first(
    pg_migrated_url: str, obstacle: Any, jobs: int
) -> None:
    with opened(pg_migrated_url) as (store, counter), obstacle(pg_migrated_url):
        run = drain(store, counter, jobs)
        look = counter.by_table(lambda: store.peek(["default"]))["ready"]
    print(run, f"pages of the line per look: {look}", sep="\n")
    assert len(set(run.done)) == len(run.done) == jobs
    assert look <= run.line_pages[0]
    assert run.claim_pages[-1] <= WORST_RATIO * run.claim_pages[0]
    assert run.line_pages[-1] <= 1.2 * run.line_pages[0]
    assert run.settle_pages[-1] <= WORST_RATIO * run.settle_pages[0]


def test_an_enqueue_that_stays_open_for_many_jobs_is_found_when_it_commits(
    pg_migrated_url: str, jobs: int
) -> None:
    """No floor can pass the position that it drew, so claims do walk the void tickets above it.

    That costs about twice the pages after 200,000 jobs, and ends with the transaction.
    """
    with (
        opened(pg_migrated_url) as (store, counter),
        psycopg.connect(pg_migrated_url) as caller,
    ):
        [late] = store.enqueue([NewJob(task="app.send")], on=caller)
        run = drain(store, counter, jobs)
        print(run)
        assert len(set(run.done)) == len(run.done) == jobs
        assert late.id not in run.done
        caller.commit()
        [lease] = store.claim(WORKER, {"default": BLOCK})
        assert [job.id for job in lease.jobs] == [late.id]
    assert run.claim_pages[-1] <= 3 * run.claim_pages[0]
