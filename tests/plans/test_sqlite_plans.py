"""No hot statement of SQLite scans a whole table, with or without rows and statistics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tenure.store import open_store
from tenure.store.statements import statements
from tests.plans.sqlite_plans import Scan, full_scans, plan

NAMES = sorted(statements("sqlite", "tenure"))

# What may scan, and why.
_COPY = "a copy looks at everything, while no worker is alive"
_SAMPLE = "counts every live job: one worker does, and for a hundredth of the time at most"
ALLOWED = {
    ("count_all", Scan("history", None)): _COPY,
    ("count_all", Scan("job", None)): _COPY,
    ("count_all", Scan("unique_key", None)): _COPY,
    ("first_running", Scan("job", None)): _COPY,
    ("held_jobs", Scan("lease", None)): "counts the jobs of every lease; never on a worker's path",
    ("count_live", Scan("job", None)): "counts every live job; never on a worker's path",
    ("is_busy", Scan("lease", None)): "leases are few; only before a worker ends",
    ("count_depth", Scan("job", None)): _SAMPLE,
    ("count_depth", Scan("ready", None)): _SAMPLE,
    ("holders", Scan("lease", None)): "leases are few; only for the running jobs of a page",
    ("walk_running", Scan("lease", None)): "leases are few; only to list running jobs",
    (
        "running_tasks",
        Scan("lease", None),
    ): "leases are few; `why` looks at a bounded number of jobs",
    (
        "any_cancel_requested",
        Scan("job", "tenure_job_cancel_requested"),
    ): "holds flagged jobs only; LIMIT 1",
    ("any_featured", Scan("job", "tenure_job_featured")): "holds featured jobs only; LIMIT 1",
}

FILL = (
    """
    with recursive n (n) as (select 1 union all select n + 1 from n where n < 20000)
    insert into tenure_job (id, position, created_at, task, args) select n, n, 0, 'a.b', '{}' from n
    """,
    """
    insert into tenure_ready (queue, priority, position, job_id, token)
    select 'default', 0, id, id, 1 from tenure_job where id <= 10000
    """,
    """
    insert into tenure_due (due_at, job_id, token)
    select id, id, 1 from tenure_job where id between 10001 and 15000
    """,
    """
    insert into tenure_lease (id, claimed_at, boot, expires_tick, expires_at, worker, jobs)
    select id, 0, 'b', id, id, 'w', '[[1,1]]' from tenure_job where id <= 2000
    """,
    """
    insert into tenure_history (
        id, token, created_at, finished_at, state, priority, attempts, max_attempts, crashes,
        features, tenant, queue, task, args)
    select id + 100000, 1, 0, id, 'succeeded', 0, 1, 5, 0, 0, '', 'default', 'a.b', '{}'
    from tenure_job
    """,
    """
    insert into tenure_unique_key (tenant, scope, key, job_id, until, fingerprint, expires_at)
    select '', 'a.b', id, id, 'period', '', id from tenure_job where id <= 5000
    """,
    """
    insert into tenure_event (job_id, at, token, kind)
    select id, 0, 1, 'retried' from tenure_job where id <= 5000
    """,
    "insert into tenure_note (job_id, token) select id, 1 from tenure_job where id <= 5000",
    """
    insert into tenure_parent (job_id, parent_id)
    select id + 1, id from tenure_job where id <= 5000
    """,
    """
    insert into tenure_schedule (
        tenant, name, next_at, done_until, created_at, changed_at, timing, job)
    select '', id, id, -id, 0, 0, '{}', '{}' from tenure_job where id <= 5000
    """,
    """
    insert into tenure_tick (tenant, schedule, tick_at, fired_at, job_id)
    select '', id % 50, id, id, id from tenure_job
    """,
    "analyze",
)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    """A connection to empty tables."""
    yield from _connection(tmp_path_factory.mktemp("empty"), ())


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    """A connection to tables with rows that were analysed."""
    yield from _connection(tmp_path_factory.mktemp("filled"), FILL)


def _connection(folder: Path, prepare: tuple[str, ...]) -> Iterator[apsw.Connection]:
    path = folder / "jobs.db"
    open_store(f"sqlite:///{path}").close()
    connection = apsw.Connection(str(path))
    for statement in prepare:
        connection.execute(statement)
    for statement in statements("sqlite", "tenure")["open_batch"]:
        connection.execute(statement)
    yield connection
    connection.close()


def scans(connection: apsw.Connection, name: str) -> set[str]:
    """The scans of an entry that have no leave."""
    return {str(scan) for scan in full_scans(connection, name) if (name, scan) not in ALLOWED}


@pytest.mark.parametrize("name", NAMES)
def test_no_statement_scans_a_whole_table_when_the_tables_are_empty(
    empty: apsw.Connection, name: str
) -> None:
    assert scans(empty, name) == set()


@pytest.mark.parametrize("name", NAMES)
def test_no_statement_scans_a_whole_table_when_the_statistics_are_good(
    filled: apsw.Connection, name: str
) -> None:
    assert scans(filled, name) == set()


@pytest.mark.parametrize(("name", "scan"), list(ALLOWED), ids=str)
def test_every_exception_is_still_needed(empty: apsw.Connection, name: str, scan: Scan) -> None:
    assert scan in full_scans(empty, name)


def test_the_tickets_of_a_claim_are_dropped_by_lane_and_position(
    filled: apsw.Connection,
) -> None:
    [sql] = statements("sqlite", "tenure")["drop_tickets"]
    assert any(
        "queue=? AND needs=? AND (priority,position)<(?,?)" in line for line in plan(filled, sql)
    )


def test_the_view_of_jobs_finds_one_by_its_id(filled: apsw.Connection) -> None:
    """Of leases, which are few, it reads all, once."""
    steps = plan(filled, "select * from tenure_jobs where id = 5")
    found = " ".join(steps)
    assert "SEARCH j USING INTEGER PRIMARY KEY" in found
    assert "SEARCH h USING INTEGER PRIMARY KEY" in found
    assert not re.search(r"SCAN (j|h|told|r|g|q|p)\b", found)


def test_the_view_of_jobs_looks_up_leases_by_an_index(filled: apsw.Connection) -> None:
    steps = plan(filled, "select count(worker) from tenure_jobs")
    assert any("SEARCH l USING AUTOMATIC" in step for step in steps)
