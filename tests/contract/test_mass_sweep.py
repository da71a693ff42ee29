"""Many expired leases at once, and leases whose jobs other transactions have locked."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tenure.rules.job import State
from tenure.store import Store
from tenure.store.jobs import sweep as sweeping
from tenure.store.jobs.sweep import Swept
from tests.support.plain import Plain
from tests.support.races import session_of
from tests.support.stores import Clock
from tests.support.work import add, add_many, take

Connection = psycopg.Connection[tuple[Any, ...]]

MANY = 3000
MOST_TRANSACTIONS = 20
"""Of a sweep of so many leases; one that has a transaction for each lease has 3,000."""

# Each job of the one lease gets a lease of its own.
SPLIT = {
    "postgres": """
        insert into tenure.lease (id, claimed_at, expires_at, worker, jobs)
        select 1000000 + (pair ->> 0)::bigint, claimed_at, expires_at, worker,
               json_build_array(pair)
        from tenure.lease, json_array_elements(jobs) as pair
    """,
    "sqlite": """
        insert into tenure.lease (id, claimed_at, boot, expires_tick, expires_at, worker, jobs)
        select 1000000 + (pair.value ->> 0), claimed_at, boot, expires_tick, expires_at, worker,
               json_array(json(pair.value))
        from tenure.lease cross join json_each(jobs) as pair
    """,
}


def dead_leases(store: Store, plain: Plain, clock: Clock, count: int, database: str) -> list[int]:
    """Jobs that a dead worker has on a lease each."""
    ids = []
    for _ in range(count // 1000):
        ids += add_many(store, clock.now, 1000)
    assert len(take(store, clock.now, count, worker="dead")) == count
    plain.rows(SPLIT[database])
    plain.rows("delete from tenure.lease where id < 1000000")
    return ids


def sweep_all(store: Store, clock: Clock) -> tuple[int, int]:
    """Sweep until there is no more; answers how many jobs are back, and in how many calls."""
    back = calls = 0
    more = True
    while more:
        swept = store.sweep(now=clock.now)
        back, calls, more = back + swept.requeued, calls + 1, swept.more
    return back, calls


def test_many_leases_are_swept_in_few_transactions(
    store: Store, plain: Plain, clock: Clock, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = dead_leases(
        store, plain, clock, MANY, store_url.split(":", maxsplit=1)[0].removesuffix("ql")
    )
    clock.advance(31)
    session = session_of(store)
    transactions = []
    transact = session.transact

    def count(*args: Any) -> Any:
        transactions.append(args)
        return transact(*args)

    monkeypatch.setattr(session, "transact", count)
    assert sweep_all(store, clock) == (MANY, 1 + MANY // 1000)
    assert len(transactions) <= MOST_TRANSACTIONS
    assert len(take(store, clock.now, 1)) == 1  # one suspect at a time
    assert plain.one("select count(*) from tenure.lease") == 1
    assert {(job.token, job.crashes) for job in map(store.get, ids[:50])} == {(2, 1)}


@pytest.fixture
def locked(pg: Store, pg_plain: Plain, clock: Clock, pg_migrated_url: str) -> Any:
    """More dead leases than one sweep passes over; another transaction has locked their jobs."""
    dead_leases(pg, pg_plain, clock, MANY, "postgres")
    with psycopg.connect(pg_migrated_url) as connection:
        connection.execute("select from tenure.job for update")
        yield connection


def test_leases_of_locked_jobs_hold_up_no_others(
    pg: Store, locked: Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen failing with each sweep from the start: the jobs behind the locked ones never came."""
    monkeypatch.setattr(sweeping, "PASSED_PER_CALL", MANY // 2)
    other = add(pg, clock.now)
    take(pg, clock.now, 1, worker="other", lease_seconds=30.5)
    clock.advance(31)

    assert pg.sweep(now=clock.now) == Swept(more=True)  # it has done enough
    assert pg.sweep(now=clock.now) == Swept(requeued=1)
    assert pg.get(other).state is State.QUEUED
    assert sweep_all(pg, clock)[0] == 0
    locked.rollback()
    assert sweep_all(pg, clock)[0] == MANY


def test_a_sweep_writes_nothing_about_leases_that_it_passes_over(
    pg: Store, locked: Connection, pg_plain: Plain, clock: Clock
) -> None:
    clock.advance(31)
    before = pg_plain.rows("select id, xmax::text, jobs::text from tenure.lease order by id")
    assert sweep_all(pg, clock)[0] == 0
    assert (
        pg_plain.rows("select id, xmax::text, jobs::text from tenure.lease order by id") == before
    )
    assert not locked.closed


def test_a_lease_whose_child_is_locked_holds_up_no_others(
    pg: Store, clock: Clock, pg_migrated_url: str
) -> None:
    """The sweep of many meets a lock that it cannot pass over, and goes on in smaller parts."""
    parents = [add(pg, clock.now, max_attempts=1) for _ in range(6)]
    child = add(pg, clock.now, parents=(parents[2],))
    for _ in parents:
        take(pg, clock.now, 1, worker="dead")
    clock.advance(31)
    with psycopg.connect(pg_migrated_url) as connection:
        connection.execute("select from tenure.job where id = %s for update", [child])
        assert sum(pg.sweep(now=clock.now).finished for _ in range(2)) == 5
        connection.rollback()
    assert pg.sweep(now=clock.now).finished == 1
    assert {pg.get(id).state for id in parents} == {State.FAILED}
    assert pg.get(child).state is State.SKIPPED
