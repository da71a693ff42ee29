"""Bulk enqueue on PostgreSQL against a bare COPY.

Ours: `Store.enqueue` of 1,000 jobs at a time, each encoded, made and checked as a client does it.
Bare: COPY of 1,000 payloads at a time into the narrow table. Target: at least 0.3 of the bare rate.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from bench import work
from bench.engine import bare_postgres
from bench.harness import Result, compare, race
from bench.lab import Lab

NAMES = ("engine.postgres.enqueue",)


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    with (
        lab.database() as url,
        lab.postgres_store(url) as store,
        psycopg.connect(url, autocommit=True) as bare,
        psycopg.connect(url, autocommit=True) as auditor,
    ):
        rounds = race(
            work.Enqueuing(store, bare_postgres.Count(auditor)),
            bare_postgres.Copying(bare),
            jobs=lab.size(100_000, 20_000),
            slice_jobs=5_000,
        )
    yield compare(NAMES[0], rounds, "bare COPY")
