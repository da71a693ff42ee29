"""After a bulk load into tables that were analysed while they were empty, claims stay cheap.

The statistics say that there is nothing. So every way to read a line seems to cost the same, also
one that reads the whole line to take a few jobs of it. Nobody runs ANALYZE. What counts is the
number of pages that a claim touches, for every size of claim, with and without a gate, on a
connection that has planned its statements before the load, on one that plans them afterwards, and
through PgBouncer, where nothing is prepared and no setting of a session is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from tenure.rules.claim import Lease
from tenure.rules.gates import Limits
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import succeed
from tenure.store import Store, open_store
from tests.plans import backlog
from tests.support.pages import PageCounter
from tests.support.pgbouncer import Bouncer
from tests.support.postgres import Server

# One process loads the rows once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bulk-load")]

WORKER = "host-1:42"
JOBS = 100_000
SIZES = (1, 2, 8, 500)
CLAIMS = 12
"""So many that PostgreSQL may keep a generic plan."""
CLAIM_PAGES = 500
"""Of one claim, whatever it takes: above all those of the index with the tickets that were deleted.
To read the line itself is to touch at least 1,000."""
JOB_PAGES = 13
"""Of each job that it takes."""

# The tables are analysed while they have rows, and again when the rows are deleted. What was found
# out about the columns stays; a table with pages and no row seems to have no row ever after.
DRAINED = """
insert into tenure.job (id, position, created_at, task, args)
select n, n, now(), 'a.b', '{}' from generate_series(1, 20000) as n;
insert into tenure.ready (position, job_id, token, priority, queue)
select n, n, 1, 0, 'plain' from generate_series(1, 20000) as n;
insert into tenure.gated (position, job_id, token, priority, queue, gate, key)
select n, n, 1, 0, 'gated', 'wide', '' from generate_series(1, 20000) as n;
analyze;
delete from tenure.ready; delete from tenure.gated; delete from tenure.job;
analyze
"""
NEW = "analyze"


@pytest.fixture(scope="module", params=[NEW, DRAINED], ids=["new", "drained"])
def url(request: pytest.FixtureRequest, pg_server: Server, pg_template: str) -> Iterator[str]:
    """A database whose tables were analysed while they were empty."""
    created = pg_server.create_database(template=pg_template)
    with psycopg.connect(created, autocommit=True) as admin:
        backlog.make_room(admin)
        for statement in request.param.split(";"):
            admin.execute(statement)
    yield created
    pg_server.drop_database(created)


@pytest.fixture(scope="module")
def stores(url: str, pg_server: Server) -> Iterator[dict[str, Store]]:
    """One that worked before the load, and two that were opened after it."""
    with open_store(url, connections=1) as old, open_store(url, connections=1) as new:
        old.declare_gates({"wide": Limits(max_running=100_000)})
        for _ in range(CLAIMS):
            for gate in (None, "wide"):
                old.enqueue([NewJob(task="a.b", queue="warm", gate=gate)] * 2)
                for lease in old.claim(WORKER, {"warm": 2}):
                    ends = [succeed(job) for job in lease.jobs]
                    old.settle(WORKER, ends, done_leases=[lease.id])
        for queue, gate in (("plain", None), ("gated", "wide")):
            job = NewJob(task="a.b", queue=queue, gate=gate)
            for _ in range(JOBS // 1000):
                new.enqueue([job] * 1000)
        new.close()
        with (
            Bouncer(pg_server, pool_size=1) as bouncer,
            open_store(bouncer.url(url, sessions=1), connections=1) as pooled,
            open_store(url, connections=1) as fresh,
        ):
            yield {"old": old, "fresh": fresh, "pooled": pooled}


def claim_into(taken: list[Lease], store: Store, queues: dict[str, int]) -> None:
    """Claim, and remember it."""
    taken += store.claim(WORKER, queues)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("queue", ["plain", "gated"])
@pytest.mark.parametrize("plans", ["old", "fresh", "pooled"])
def test_a_claim_of_any_size_touches_few_pages(
    url: str, stores: dict[str, Store], plans: str, queue: str, size: int
) -> None:
    store = stores[plans]
    for lease in store.claim(WORKER, {queue: 1}):  # and look whether there are gates
        store.settle(WORKER, [succeed(job) for job in lease.jobs], done_leases=[lease.id])
    with psycopg.connect(url, autocommit=True) as admin:
        counter = PageCounter(store, admin)
        worst = 0
        for _ in range(CLAIMS):
            taken: list[Lease] = []
            claim = partial(claim_into, taken, store, {queue: size})
            worst = max(worst, counter.total(claim))
            [lease] = taken
            assert len(lease.jobs) == size
            store.settle(WORKER, [succeed(job) for job in lease.jobs], done_leases=[lease.id])
        counter.report()
    print(f"{plans} {queue} {size}: {worst} pages")
    assert worst <= CLAIM_PAGES + JOB_PAGES * size
