"""Claim and settle on PostgreSQL, history kept, against the bare loop's claim and finish.

Ours: `Store.claim` of 500 jobs, `Store.settle` of all of them as succeeded with their lease given
back. Bare: one UPDATE to claim 500, one UPDATE to finish them. Target: at least 0.8 of the bare
rate.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from bench import work
from bench.engine import bare_postgres
from bench.harness import Result, compare, race
from bench.lab import Lab

NAMES = ("engine.postgres.claim_settle",)


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    with (
        lab.database() as url,
        lab.postgres_store(url) as store,
        psycopg.connect(url, autocommit=True) as bare,
        psycopg.connect(url, autocommit=True) as auditor,
    ):
        rounds = race(
            work.Draining(store, bare_postgres.Count(auditor)),
            bare_postgres.Draining(bare),
            jobs=lab.size(60_000, 15_000),
            slice_jobs=5_000,
        )
    yield compare(NAMES[0], rounds, "bare UPDATE loop")
