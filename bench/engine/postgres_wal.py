"""Bytes of write-ahead log per job on PostgreSQL, from enqueue to history, all indexes included.

Measured as the difference of `pg_current_wal_insert_lsn`, with no checkpoint in between and after a
warm-up, so that no full-page image of an old page is counted. Jobs have a 100-byte payload and no
result; they are enqueued 1,000 and claimed and settled 500 at a time. Limit: 950 bytes; the ratio
is against the limit, so it should be at most 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from bench import work
from bench.engine import bare_postgres
from bench.harness import ROUNDS, Result, check, summarise
from bench.lab import Lab
from tenure.store import Store

NAMES = ("engine.postgres.wal_bytes_per_job",)
LIMIT = 950


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    jobs = lab.size(40_000, 10_000)
    with (
        lab.database() as url,
        lab.postgres_store(url) as store,
        psycopg.connect(url, autocommit=True) as auditor,
    ):
        count = bare_postgres.Count(auditor)
        values = []
        for _ in range(ROUNDS):
            count.settle_down()
            _life(store, 4_000)
            values.append(_measure(store, auditor, jobs))
        work.check_rows(count, ready=0, job=0, lease=0, history=ROUNDS * (4_000 + jobs))
    yield summarise(
        NAMES[0],
        values=values,
        ratios=[value / LIMIT for value in values],
        unit="bytes/job",
        against=f"limit: {LIMIT} bytes/job",
    )


def _life(store: Store, jobs: int) -> None:
    enqueued = work.enqueue(store, jobs)
    done = [id for _ in range(0, jobs, work.BLOCK) for id in work.settle(store, work.claim(store))]
    check(sorted(done) == sorted(enqueued), "not every job was claimed exactly once")


def _measure(store: Store, auditor: bare_postgres.Connection, jobs: int) -> float:
    before, checkpoint = _position(auditor)
    _life(store, jobs)
    after, checkpoint_after = _position(auditor)
    check(checkpoint == checkpoint_after, "a checkpoint fell into the measurement")
    return (after - before) / jobs


def _position(auditor: bare_postgres.Connection) -> tuple[int, str]:
    row = auditor.execute(
        "select (pg_current_wal_insert_lsn() - '0/0')::bigint, checkpoint_lsn::text"
        " from pg_control_checkpoint()"
    ).fetchone()
    assert row is not None
    return int(str(row[0])), str(row[1])
