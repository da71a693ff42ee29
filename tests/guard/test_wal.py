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
from tests.guard.budgets import TooExpensive, check
from tests.guard.counts import Counts
from tests.guard.places import PostgresPlace
from tests.support.postgres import Server

JOBS = 8_000
HISTORY_IS_NOT_LOGGED = """
select format('alter table %s set unlogged', relid)
from pg_partition_tree('tenure.history') where isleaf
"""
ONE_INDEX_MORE = "select 'create index extra on tenure.job (task)'"


def lives(url: str, jobs: int) -> None:
    """Jobs that are enqueued, claimed and settled in blocks; then the tables are cleaned."""
    with open_store(url, connections=1) as store:
        scenes.fill(store, jobs)
        for _ in range(0, jobs, scenes.BLOCK):
            scenes.settle(store, scenes.claim(store))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum")


def measure(place: PostgresPlace, *, change: str = "") -> Counts:
    """Per job. `change` is a query that answers the statements of a change of the schema."""
    with place.database() as url, place.meter(url) as meter:
        if change:
            alter(url, change)
        lives(url, JOBS)
        counts = meter.count(lambda: lives(url, JOBS))
        scenes.audit(url, 2 * JOBS)
    return Counts({"WAL bytes": counts.values["WAL bytes"]}, counts.parts).per(JOBS)


def alter(url: str, change: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for (statement,) in connection.execute(change).fetchall():
            connection.execute(statement)


@pytest.fixture
def place(quiet_server: Server, quiet_template: str) -> PostgresPlace:
    """PostgreSQL alone."""
    return PostgresPlace(quiet_server, quiet_template)


@pytest.mark.slow
def test_a_job_writes_no_more_wal_than_it_may(place: PostgresPlace) -> None:
    check("postgres.life", measure(place))


@pytest.mark.slow
def test_a_job_writes_no_more_wal_than_it_may_apart_from_history(place: PostgresPlace) -> None:
    check("postgres.life_without_history", measure(place, change=HISTORY_IS_NOT_LOGGED))


@pytest.mark.slow
def test_the_guard_notices_an_index_more(place: PostgresPlace) -> None:
    with pytest.raises(TooExpensive, match="costs more WAL bytes than"):
        check("postgres.life", measure(place, change=ONE_INDEX_MORE))
