"""No hot statement of PostgreSQL walks a whole table, whatever the statistics say.

The plans are the generic ones under our planner settings: what a worker's connection ends up with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest

from tenure.store.statements import statements
from tests.plans.postgres_plans import Connection, plan_like_our_connections, plannable, scans
from tests.support.postgres import Server

NAMES = sorted(name for name in statements("postgres", "tenure") if plannable(name))

# What may read more than its answer, and why.
_COPY = "a copy looks at everything, while no worker is alive"
_SAMPLE = "counts every live job: one worker does, and for a hundredth of the time at most"
ALLOWED = {
    ("count_all", "history"): _COPY,
    ("count_all", "job"): _COPY,
    ("count_all", "unique_key"): _COPY,
    ("first_running", "job"): _COPY,
    ("held_jobs", "lease"): "counts the jobs of every lease; an overview, never on a worker's path",
    ("count_live", "job"): "counts every live job; an overview, never on a worker's path",
    ("is_busy", "lease"): "leases are few; only before a worker ends",
    ("count_depth", "job"): _SAMPLE,
    ("count_depth", "ready"): _SAMPLE,
    ("holders", "lease"): "leases are few; only looked at for the running jobs of a page",
    ("running_tasks", "lease"): "leases are few; `why` looks at a bounded number of their jobs",
    ("walk_running", "lease"): "leases are few; only looked at to list running jobs",
    ("jobs_held_by", "lease"): "leases are few; never on a worker's path",
    ("claimed_before", "lease"): "leases are few; only after a COMMIT that got no answer",
}

FILL = """
insert into tenure.job (id, position, created_at, task, args)
select n, n, now(), 'a.b', '{}' from generate_series(1, 20000) as n;
insert into tenure.ready (position, job_id, token, priority, queue)
select n, n, 1, 0, 'default' from generate_series(1, 10000) as n;
insert into tenure.due (due_at, job_id, token)
select now() + n * interval '1 second', n, 1 from generate_series(10001, 15000) as n;
insert into tenure.lease (id, claimed_at, expires_at, worker, jobs)
select n, now(), now() + n * interval '1 second', 'w', '[[1,1]]' from generate_series(1, 2000) as n;
insert into tenure.history (
    id, token, created_at, finished_at, state, priority, attempts, max_attempts, crashes, features,
    tenant, queue, task, args)
select n, 1, now(), now(), 'succeeded', 0, 1, 5, 0, 0, '', 'default', 'a.b', '{}'
from generate_series(100001, 120000) as n;
insert into tenure.unique_key (tenant, scope, key, job_id, until, fingerprint)
select '', 'a.b', n::text, n, 'finished', '' from generate_series(1, 5000) as n;
insert into tenure.event (job_id, at, token, kind)
select n, now(), 1, 'retried' from generate_series(1, 5000) as n;
insert into tenure.note (job_id, token) select n, 1 from generate_series(1, 5000) as n;
insert into tenure.step (job_id, name, n, token, recorded_at, bytes, function, result)
select n % 500, n::text, 1, 1, now(), 1, 'f', '1' from generate_series(1, 5000) as n;
insert into tenure.parent (job_id, parent_id) select n, n - 1 from generate_series(2, 5000) as n;
insert into tenure.schedule (
    tenant, name, next_at, done_until, created_at, changed_at, timing, job)
select '', n, now() + n * interval '1 second', now() - n * interval '1 second', now(), now(), '{}',
       '{}'
from generate_series(1, 5000) as n;
insert into tenure.tick (tenant, schedule, tick_at, fired_at, job_id)
select '', n % 50, now() - n * interval '1 minute', now() - n * interval '1 minute', n
from generate_series(1, 20000) as n;
"""


@pytest.fixture(scope="module")
def empty(pg_server: Server, pg_template: str) -> Iterator[Connection]:
    """A connection to empty tables that were analysed while they were empty."""
    yield from _connection(pg_server, pg_template, "analyze")


@pytest.fixture(scope="module")
def filled(pg_server: Server, pg_template: str) -> Iterator[Connection]:
    """A connection to tables with rows that were analysed."""
    yield from _connection(pg_server, pg_template, FILL + "analyze")


@pytest.fixture(scope="module")
def grown(pg_server: Server, pg_template: str) -> Iterator[Connection]:
    """A connection to tables that grew after they were analysed."""
    yield from _connection(pg_server, pg_template, "analyze;" + FILL)


def _connection(server: Server, template: str, prepare: str) -> Iterator[Connection]:
    url = server.create_database(template=template)
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in prepare.split(";"):
            if statement.strip():
                connection.execute(statement)
        plan_like_our_connections(connection)
        yield connection
    server.drop_database(url)


def walks(connection: Connection, name: str) -> list[str]:
    """The scans of a statement that walk a whole table without leave."""
    return [
        str(scan)
        for scan in scans(connection, name)
        if (scan.walks_everything or scan.kind == "Seq Scan") and (name, scan.table) not in ALLOWED
    ]


@pytest.mark.parametrize("name", NAMES)
def test_no_statement_walks_a_whole_table_when_planned_on_empty_tables(
    empty: Connection, name: str
) -> None:
    assert walks(empty, name) == []


@pytest.mark.parametrize("name", NAMES)
def test_no_statement_walks_a_whole_table_when_planned_on_full_tables(
    filled: Connection, name: str
) -> None:
    assert walks(filled, name) == []


@pytest.mark.parametrize("name", NAMES)
def test_no_statement_walks_a_whole_table_when_the_statistics_are_out_of_date(
    grown: Connection, name: str
) -> None:
    assert walks(grown, name) == []


def test_the_check_sees_a_walk_when_there_is_one(filled: Connection) -> None:
    found = [scan for scan in scans(filled, "count_live") if scan.table == "job"]
    assert any(scan.walks_everything for scan in found)


@pytest.mark.parametrize(("name", "table"), sorted(ALLOWED))
def test_every_exception_is_still_needed(filled: Connection, name: str, table: str) -> None:
    found = [scan for scan in scans(filled, name) if scan.table == table]
    assert any(scan.walks_everything or scan.kind == "Seq Scan" for scan in found)


def test_the_view_of_jobs_finds_one_by_its_id(filled: Connection) -> None:
    """Of leases, which are few, it reads all, once, and only for a live job."""
    with filled.transaction(force_rollback=True):
        filled.execute("set local enable_seqscan = on")  # as anybody who looks at it
        rows = filled.execute(
            "explain (analyze, timing off) select * from tenure.jobs where id = 5"
        )
        steps = [step for (step,) in rows]
    reads = [step for step in steps if re.search(r"Scan.* on (job|history|note|ready|edge)", step)]
    assert any("job_pkey on job" in step for step in reads)
    assert all("Index" in step for step in reads), steps
