"""What this machine can do without any queue: a bare claim and finish loop on both databases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import psycopg

from bench.engine import bare_postgres, bare_sqlite
from bench.harness import Side
from bench.lab import Lab


def bare_loops(lab: Lab) -> Iterator[str]:
    """One line per database: one connection, blocks of 500, one narrow table, durable."""
    jobs = lab.size(20_000, 5_000)
    with lab.database() as url, psycopg.connect(url, autocommit=True) as connection:
        yield _line("PostgreSQL", bare_postgres.Draining(connection), jobs)
    with closing(bare_sqlite.connect(lab.file("bare.db"))) as file:
        yield _line("SQLite", bare_sqlite.Draining(file), jobs)


def _line(database: str, side: Side, jobs: int) -> str:
    side.fill(jobs)
    start = time.perf_counter()
    done = 0
    while done < jobs:
        done += side.step()
    seconds = time.perf_counter() - start
    side.audit(jobs)
    return f"{jobs / seconds:,.0f} jobs/s claimed and finished by a bare loop on {database}"
