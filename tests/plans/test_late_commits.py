"""A ticket that becomes visible late, below positions that are long consumed, is never lost.

Transactions draw positions before they commit, and they commit out of order. The claimers' floors
must wait for the slow ones. Here the safety scan is turned off, so that a floor that is too high
loses a job for good; one test turns it on and sees it repair a wrong floor.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tenure.rules.job import NewJob
from tenure.rules.lifecycle import succeed
from tenure.store import Store, open_store
from tenure.store.postgres.floors import Floors
from tenure.store.postgres.session import Postgres
from tests.support.patience import PATIENCE_SECONDS, until

Connection = psycopg.Connection[tuple[Any, ...]]

WORKER = "host-1:42"
LANES = [
    (queue, needs, priority)
    for queue in ("mail", "default", "slow")
    for needs, priority in ((0, -5), (0, 0), (1, 0), (2, 0), (2, 7))
]
QUEUES = {"mail": 50, "default": 50, "slow": 50}


@pytest.fixture
def store(pg_migrated_url: str) -> Iterator[Store]:
    """A claimer that looks for a new floor at every claim and never scans for safety."""
    with open_store(pg_migrated_url, connections=1) as opened:
        floors_of(opened).full_scan_seconds = math.inf
        floors_of(opened).step_tickets = 1
        yield opened


def floors_of(store: Store) -> Floors:
    session = store._scope.session
    assert isinstance(session, Postgres)
    return session.floors


def new_job(lane: tuple[str, int, int] = ("default", 0, 0)) -> NewJob:
    queue, needs, priority = lane
    return NewJob(task="app.send", queue=queue, needs=needs, priority=priority)


def claim_and_settle(store: Store) -> list[int]:
    """One claim; answers the ids of the jobs, all of them settled."""
    leases = store.claim(WORKER, QUEUES)
    jobs = [job for lease in leases for job in lease.jobs]
    answers = store.settle(
        WORKER, [succeed(job) for job in jobs], done_leases=[lease.id for lease in leases]
    )
    assert all(answer.landed for answer in answers)
    return [job.id for job in jobs]


def drain(store: Store) -> list[int]:
    """Claim until nothing is ready."""
    done: list[int] = []
    while claimed := claim_and_settle(store):
        done += claimed
    return done


def test_a_job_with_a_low_place_that_commits_late_is_claimed_at_once(
    store: Store, pg_migrated_url: str
) -> None:
    with psycopg.connect(pg_migrated_url) as caller:
        drain_some(store, 300)
        [late] = store.enqueue([new_job()], on=caller)
        drain_some(store, 1500)
        assert floors_of(store)._floors.get(("default", 0, 0), 0) > 0
        caller.commit()
    assert claim_and_settle(store) == [late.id]


def drain_some(store: Store, jobs: int) -> None:
    store.enqueue([new_job()] * jobs)
    assert len(drain(store)) == jobs


def test_a_job_whose_writer_rolls_back_holds_the_floor_no_longer(
    store: Store, pg_migrated_url: str
) -> None:
    with psycopg.connect(pg_migrated_url) as caller:
        drain_some(store, 300)
        store.enqueue([new_job()], on=caller)
        drain_some(store, 300)
        stuck = floors_of(store)._floors.get(("default", 0, 0), 0)
        caller.rollback()
    drain_some(store, 300)
    drain_some(store, 300)
    assert floors_of(store)._floors.get(("default", 0, 0), 0) > stuck + 200


def test_the_safety_scan_finds_a_job_below_a_floor_that_is_wrong(store: Store) -> None:
    drain_some(store, 300)
    floors = floors_of(store)
    [lost] = store.enqueue([new_job()])
    floors._floors["default", 0, 0] = 10**9
    assert claim_and_settle(store) == []
    floors.full_scan_seconds = 0.2
    assert until(lambda: claim_and_settle(store), "the scan") == [lost.id]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_schedule_of_commits_and_claims_loses_a_job_in_any_lane(
    store: Store, pg_migrated_url: str, seed: int
) -> None:
    """Eight writers on one server, each with a transaction open as long as chance wants it."""
    dice = random.Random(seed)
    committed: set[int] = set()
    done: list[int] = []
    with ExitStack() as stack:
        writers = [stack.enter_context(psycopg.connect(pg_migrated_url)) for _ in range(8)]
        pending: dict[int, list[int]] = {n: [] for n in range(len(writers))}
        for _ in range(250):
            n = dice.randrange(len(writers))
            match dice.choices(("enqueue", "commit", "rollback", "claim"), (6, 3, 1, 4))[0]:
                case "enqueue":
                    jobs = [new_job(dice.choice(LANES)) for _ in range(dice.choice((1, 3, 40)))]
                    answers = store.enqueue(jobs, on=writers[n])
                    pending[n] += [answer.id for answer in answers]
                case "commit":
                    writers[n].commit()
                    committed.update(pending[n])
                    pending[n] = []
                case "rollback":
                    writers[n].rollback()
                    pending[n] = []
                case "claim":
                    done += claim_and_settle(store)
        for n, writer in enumerate(writers):
            writer.commit()
            committed.update(pending[n])
            done += claim_and_settle(store)
    done += drain(store)
    assert len(done) == len(set(done))
    assert set(done) == committed
    assert any(floors_of(store)._floors.get(lane, 0) > 0 for lane in LANES)


@pytest.mark.slow
def test_writers_in_threads_and_three_claimers_lose_and_repeat_nothing(
    store: Store, pg_migrated_url: str
) -> None:
    """Real concurrency: transactions of random length in every lane, claimed by three at once."""
    enqueued: list[int] = []
    done: list[int] = []
    writing = threading.Event()
    writing.set()

    def write(seed: int) -> None:
        dice = random.Random(seed)
        with psycopg.connect(pg_migrated_url) as connection:
            for _ in range(60):
                jobs = [new_job(dice.choice(LANES)) for _ in range(dice.choice((1, 2, 30)))]
                ids = [answer.id for answer in store.enqueue(jobs, on=connection)]
                if dice.random() < 0.3:
                    connection.execute("select pg_sleep(%s)", (dice.random() * 0.1,))
                if dice.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                    enqueued.extend(ids)

    def claim(claimer: Store) -> None:
        while writing.is_set() or len(done) < len(enqueued):
            done.extend(claim_and_settle(claimer))
            if not writing.is_set() and time.monotonic() > deadline:
                return

    deadline = math.inf
    with ExitStack() as stack:
        claimers = [store]
        for _ in range(2):
            claimer = stack.enter_context(open_store(pg_migrated_url, connections=1))
            floors_of(claimer).full_scan_seconds = math.inf
            floors_of(claimer).step_tickets = 1
            claimers.append(claimer)
        claiming = [threading.Thread(target=claim, args=(claimer,)) for claimer in claimers]
        writers = [threading.Thread(target=write, args=(seed,)) for seed in range(8)]
        for thread in [*claiming, *writers]:
            thread.start()
        for thread in writers:
            thread.join()
        writing.clear()
        deadline = time.monotonic() + PATIENCE_SECONDS
        for thread in claiming:
            thread.join()
    assert sorted(done) == sorted(enqueued)
