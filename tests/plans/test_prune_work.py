"""The last row that a prune removes costs as much as the first one.

The tables were analysed while they were empty and nobody vacuums: the worst that a prune can meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tenure.store import Store, open_store
from tenure.store.session import Mode, Operation, drive
from tests.plans import backlog
from tests.support.pages import PageCounter
from tests.support.postgres import Server

pytestmark = pytest.mark.slow

ROWS = 100_000
MOST_PAGES = 14.0
"""Per row that goes: its page twice, its neighbour's that stays, and three small tables."""
WORST_RATIO = 1.3

# Every second job has failed and is not due; every tenth one has a story.
FILL = """
insert into tenure.history (
    id, token, created_at, claimed_at, finished_at, state, priority, attempts, max_attempts,
    crashes, features, tenant, queue, task, args, worker)
select n, 1, %(day)s, %(day)s, %(day)s + n * interval '0.4 s',
       case when n %% 2 = 0 then 'failed' else 'succeeded' end::tenure.state, 0, 1, 5, 0, 0, '',
       'default', 'app.send', '{"user_id": 1234567, "template": "welcome"}', 'w'
from generate_series(%(first)s::int, %(last)s) as n
"""
STORIES = """
insert into tenure.event (job_id, at, token, kind)
select n, now(), 1, 'retried' from generate_series(1, 2 * %s, 10) as n
"""


@dataclass(frozen=True)
class Step:
    """One transaction of a prune."""

    pages: int
    removed: int


def watch(store: Store, counter: PageCounter, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """From now on, count the pages of every transaction of a store."""
    steps: list[Step] = []
    session = store._scope.session
    transact = session.transact

    async def counted(op: Operation[Any], mode: Mode = Mode.WRITE) -> Any:
        answers = []

        async def once() -> None:
            answers.append(await transact(op, mode))

        pages = counter.total(lambda: drive(once()))
        rows = answers[0] if isinstance(answers[0], list) else []
        steps.append(Step(pages, sum(isinstance(row[0], int) for row in rows)))
        return answers[0]

    monkeypatch.setattr(session, "transact", counted)
    return steps


@pytest.fixture
def filled(pg_server: Server, pg_template: str) -> Iterator[tuple[Store, psycopg.Connection]]:
    """Half of the rows in the partitions of two days, half in the default one."""
    url = pg_server.create_database(template=pg_template)
    with psycopg.connect(url, autocommit=True) as admin, open_store(url, connections=1) as store:
        admin.execute("set timezone = 'UTC'")
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        starts = [today - timedelta(days=ago) for ago in (12, 11, 10, 9)]
        for start in starts[1:3]:
            admin.execute(
                f"create table tenure.history_{start:%Y%m%d} partition of tenure.history"
                f" for values from ('{start}') to ('{start + timedelta(days=1)}')"
            )
        backlog.make_room(admin)
        admin.execute("analyze")
        for _ in range(8):
            store.prune()
        each = ROWS // len(starts)
        for n, start in enumerate(starts):
            first = n * each + 1
            row = {"day": start - first * timedelta(seconds=0.4), "first": first}
            admin.execute(FILL, row | {"last": first + each - 1})
        admin.execute(STORIES, [ROWS])
        yield store, admin
    pg_server.drop_database(url)


@pytest.mark.timeout(300)
def test_the_pages_per_removed_row_do_not_grow_with_what_is_old(
    filled: tuple[Store, psycopg.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, admin = filled
    steps = watch(store, PageCounter(store, admin), monkeypatch)
    assert store.prune() == ROWS // 2
    removing = [step for step in steps if step.removed]
    assert [step.removed for step in removing] == [500] * (ROWS // 1000)
    size = len(removing) // 4
    quarters = [cost(removing[n : n + size]) for n in range(0, 4 * size, size)]
    print("pages per removed row, by quarter of the run:", [f"{each:.1f}" for each in quarters])
    print(f"in the whole run: {cost(steps):.1f}")
    assert max(quarters) <= WORST_RATIO * min(quarters)
    assert cost(steps) <= MOST_PAGES
    [(left,)] = admin.execute("select count(*) from tenure.history where state = 'failed'")
    assert left == ROWS // 2


def cost(steps: list[Step]) -> float:
    """Pages per removed row."""
    return sum(step.pages for step in steps) / sum(step.removed for step in steps)


@pytest.mark.timeout(300)
def test_a_prune_after_a_prune_walks_what_is_left(filled: tuple[Store, psycopg.Connection]) -> None:
    store, admin = filled
    admin.execute("delete from tenure.history where state = 'failed' and id % 100 <> 0")
    store.prune()
    left = ROWS // 100
    counter = PageCounter(store, admin)
    fresh = counter.total(store.prune)
    admin.execute("vacuum")
    cleaned = counter.total(store.prune)
    print(f"pages to prune nothing among {left} rows: {fresh}, after vacuum: {cleaned}")
    assert cleaned <= 3 * left + 200
