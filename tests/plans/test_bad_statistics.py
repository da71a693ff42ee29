"""A connection that planned its statements on empty tables stays fast when a million jobs come.

Every operation runs often enough for PostgreSQL to keep a generic plan, on tables that were
analysed while they were empty. Then a million rows come, and nobody analyses. The pages that the
old connection touches per job are compared with those of a fresh one after ANALYZE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
import pytest

from tenure.rules.codec import encode
from tenure.rules.job import NewJob, State
from tenure.rules.lifecycle import fail, retry, succeed
from tenure.rules.limits import MAX_ID
from tenure.store import Store, open_store
from tests.plans import backlog
from tests.plans.backlog import Cost
from tests.support.pages import PageCounter
from tests.support.patience import until
from tests.support.postgres import Server

# One process loads the rows once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bad-statistics")]

WORST_RATIO = 1.5
WORKER = "host-1:42"
ERROR = encode({"type": "E"})

# Pages per job, whatever the plan's age: a plan that is bad for both must not pass.
BOUNDS = {
    "claim": 12.0,
    "succeed": 18.0,
    "retry": 32.0,
    "promote": 38.0,
    "sweep": 42.0,
    "extend": 25.0,
    "get_live": 22.0,
    "get_finished": 12.0,
    "get_running": 4_000.0,
    "cancel": 40.0,
    "list_all": 16.0,
    "list_queued": 30.0,
    "list_failed": 8.0,
    "list_rare": 2_000.0,
}
Costs = dict[str, Cost]


@dataclass(frozen=True)
class Held:
    """What a worker would present for a job that never was."""

    id: int
    token: int
    lease_id: int


@pytest.fixture(scope="module")
def costs(pg_server: Server, pg_template: str) -> Iterator[tuple[Costs, Costs]]:
    """The costs of every operation: on the old connection, and on a fresh one."""
    url = pg_server.create_database(template=pg_template)
    with (
        psycopg.connect(url, autocommit=True) as admin,
        open_store(url, connections=1) as old,
    ):
        backlog.make_room(admin)
        admin.execute("analyze")
        for step in (ask_for_nothing, exercise):
            for _ in range(8):
                step(old)
        backlog.load(admin)
        stale = measure(old, PageCounter(old, admin), "stale")
        admin.execute("analyze")
        with open_store(url, connections=1) as new:
            fresh = measure(new, PageCounter(new, admin), "fresh")
    yield stale, fresh
    pg_server.drop_database(url)


def ask_for_nothing(store: Store) -> None:
    """Run every operation that has an answer on tables without a single page.

    An operation that raises is no use here: its rollback makes the driver drop all plans.
    """
    nobody = Held(MAX_ID, 1, 1)
    assert store.claim(WORKER, {"warm": 3}) == []
    for settlement in (succeed(nobody), retry(nobody, ERROR, 1.0), fail(nobody, ERROR)):
        [answer] = store.settle(WORKER, [settlement], done_leases=[1])
        assert answer.stale
    assert store.extend(WORKER, {1: [MAX_ID]}).lost == (1,)
    assert store.promote() == 0
    assert store.sweep().requeued == 0
    for listing in LISTINGS.values():
        listing(store)


def exercise(store: Store) -> None:
    """Run every operation on tables that are as good as empty."""
    store.enqueue([NewJob(task="app.send", queue="warm") for _ in range(3)])
    [lease] = store.claim(WORKER, {"warm": 3}, lease_seconds=60)
    store.extend(WORKER, {lease.id: [lease.jobs[0].id]})
    first, second, third = lease.jobs
    store.settle(WORKER, [succeed(first), retry(second, ERROR, 0.001)])
    store.get(third.id)
    store.cancel(third.id)
    store.settle(WORKER, [succeed(third)], done_leases=[lease.id])
    until(lambda: store.promote() == 1)
    [lease] = store.claim(WORKER, {"warm": 1}, lease_seconds=0.001)
    until(lambda: store.sweep().requeued == 1)
    [lease] = store.claim(WORKER, {"warm": 1})
    store.settle(WORKER, [succeed(lease.jobs[0])], done_leases=[lease.id])
    for listing in LISTINGS.values():
        listing(store)
    store.enqueue([NewJob(task="app.send", queue="warm")])
    store.cancel(store.list_jobs(states=[State.QUEUED]).jobs[0].id)


LISTINGS: dict[str, Callable[[Store], object]] = {
    "list_all": lambda store: store.list_jobs(limit=100),
    "list_queued": lambda store: store.list_jobs("state=queued id<500000", limit=100),
    "list_failed": lambda store: store.list_jobs(limit=100, states=[State.FAILED]),
    "list_rare": lambda store: store.list_jobs(limit=100, task=backlog.RARE_TASK),
}


def measure(store: Store, counter: PageCounter, queue: str) -> Costs:
    """Run every operation on the backlog and count the pages."""
    odd = 1 if queue == "stale" else 0
    found: Costs = {}

    def cost(name: str, jobs: int, work: Callable[[], object]) -> None:
        found[name] = Cost(counter.total(work), jobs)

    store.list_jobs(limit=1)  # connect, so that the counter has a connection to ask through
    blocks = [store.claim(WORKER, {queue: 200}, lease_seconds=600)]
    cost("claim", 1000, lambda: blocks.extend(store.claim(WORKER, {queue: 200}) for _ in range(5)))
    jobs = [job for leases in blocks for lease in leases for job in lease.jobs]
    assert len(jobs) == 1200
    cost("succeed", 600, lambda: store.settle(WORKER, [succeed(job) for job in jobs[:600]]))
    cost(
        "retry", 400, lambda: store.settle(WORKER, [retry(j, ERROR, 60.0) for j in jobs[600:1000]])
    )
    held = {leases[0].id: [leases[0].jobs[0].id] for leases in blocks[-1:]}
    cost("extend", 1, lambda: store.extend(WORKER, held))
    cost("promote", 500, lambda: store.promote(most=500))
    cost("sweep", 500, lambda: store.sweep(most=1))
    live = [id + odd for id in range(200_000, 200_200, 2)]
    cost("get_live", 100, lambda: [store.get(id) for id in live])
    finished = [id + odd for id in range(1_500_000, 1_500_200, 2)]
    cost("get_finished", 100, lambda: [store.get(id) for id in finished])
    running = [id + odd for id in range(950_000, 950_020, 2)]
    cost("get_running", 10, lambda: [store.get(id) for id in running])
    cost("cancel", 20, lambda: [store.cancel(id) for id in live[:20]])
    for name, listing in LISTINGS.items():
        cost(name, 1 if name == "list_rare" else 100, lambda listing=listing: listing(store))  # type: ignore[misc]
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("operation", BOUNDS)
def test_an_old_plan_touches_about_as_many_pages_as_a_fresh_one(
    costs: tuple[Costs, Costs], operation: str
) -> None:
    stale, fresh = costs[0][operation], costs[1][operation]
    print(
        f"pages per job: {stale.per_job:.1f} with an old plan, {fresh.per_job:.1f} with a fresh one"
    )
    assert stale.per_job <= WORST_RATIO * fresh.per_job + 1, (stale, fresh)
    assert max(stale.per_job, fresh.per_job) <= BOUNDS[operation], (stale, fresh)
