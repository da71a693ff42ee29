"""Bytes of write-ahead log per job on PostgreSQL, from a bulk enqueue to history, vacuum included.

The server writes no full pages, so what is counted is what the jobs themselves cause, all indexes
included, in tables that have been in use. There is no mode without history: what the rest of a
job's life writes is seen by switching the log off for the tables of history, and for nothing else.
"""

from __future__ import annotations

import psycopg
import pytest

from tenure.store import open_store
from tests.guard import scenes
from tests.guard.budgets import check
from tests.guard.counts import Counts
from tests.guard.places import PostgresPlace
from tests.support.postgres import Server

JOBS = 8_000
LEAVES = """
select format('alter table %s set unlogged', relid)
from pg_partition_tree('tenure.history') where isleaf
"""


def lives(url: str, jobs: int) -> None:
    """Jobs that are enqueued, claimed and settled in blocks; then the tables are cleaned."""
    with open_store(url, connections=1) as store:
        scenes.fill(store, jobs)
        for _ in range(0, jobs, scenes.BLOCK):
            scenes.settle(store, scenes.claim(store))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum")


def measure(place: PostgresPlace, *, history: bool) -> Counts:
    with place.database() as url, place.meter(url) as meter:
        if not history:
            do_not_log_history(url)
        lives(url, JOBS)
        counts = meter.count(lambda: lives(url, JOBS))
        scenes.audit(url, 2 * JOBS)
    return Counts({"WAL bytes": counts.values["WAL bytes"]}, counts.parts).per(JOBS)


def do_not_log_history(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for (statement,) in connection.execute(LEAVES).fetchall():
            connection.execute(statement)


@pytest.mark.slow
@pytest.mark.parametrize("history", [True, False], ids=["with_history", "without_history"])
def test_a_job_writes_no_more_wal_than_it_may(
    quiet_server: Server, quiet_template: str, history: bool
) -> None:
    place = PostgresPlace(quiet_server, quiet_template)
    scene = "postgres.life" if history else "postgres.life_without_history"
    check(scene, measure(place, history=history))
