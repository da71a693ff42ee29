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
select n, 1, %(day)s, %(day)s, %(day)s + (n - %(border)s - 1) * interval '10 ms',
       case when n %% 2 = 0 then 'failed' else 'succeeded' end::tenure.state, 0, 1, 5, 0, 0, '',
       'default', 'app.send', '{"user_id": 1234567, "template": "welcome"}', 'w'
from generate_series(1, %(rows)s::int) as n
"""
STORIES = """
insert into tenure.event (job_id, at, token, kind)
select n, now(), 1, 'retried' from generate_series(1, 2 * %s, 10) as n
"""


@dataclass(frozen=True)
class Step:
    """One transaction of a prune."""

    pages: int
    history_pages: int
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

        pages = counter.by_table(lambda: drive(once()))
        of_history = sum(pages[table] for table in pages if table.startswith("history"))
        rows = answers[0] if isinstance(answers[0], list) else []
        removed = sum(isinstance(row[0], int) for row in rows)
        steps.append(Step(sum(pages.values()), of_history, removed))
        return answers[0]

    monkeypatch.setattr(session, "transact", counted)
    return steps


@pytest.fixture
def filled(pg_server: Server, pg_template: str) -> Iterator[tuple[Store, psycopg.Connection]]:
    """Three quarters of the rows in the default partition, the others in that of a day."""
    url = pg_server.create_database(template=pg_template)
    with psycopg.connect(url, autocommit=True) as admin, open_store(url, connections=1) as store:
        day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        day -= timedelta(days=10)
        admin.execute(
            f"create table tenure.history_{day:%Y%m%d} partition of tenure.history"
            f" for values from ('{day}') to ('{day + timedelta(days=1)}')"
        )
        backlog.make_room(admin)
        admin.execute("analyze")
        for _ in range(8):
            store.prune()
        border = ROWS * 3 // 4
        admin.execute(FILL, {"border": border, "day": day, "rows": ROWS})
        admin.execute(STORIES, [ROWS])
        [(in_default,)] = admin.execute("select count(*) from tenure.history_default")
        assert in_default == border
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
    quarters = [
        sum(step.history_pages for step in removing[n : n + size]) / (500 * size)
        for n in range(0, 4 * size, size)
    ]
    whole = sum(step.pages for step in steps) / (ROWS // 2)
    print("pages of history per removed row, by quarter:", [f"{each:.2f}" for each in quarters])
    print(f"pages of all tables per removed row, in the whole run: {whole:.1f}")
    assert max(quarters) <= WORST_RATIO * min(quarters)
    assert whole <= MOST_PAGES
    [(left,)] = admin.execute("select count(*) from tenure.history where state = 'failed'")
    assert left == ROWS // 2


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
