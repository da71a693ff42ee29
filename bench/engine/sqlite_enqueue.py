"""Bulk enqueue on SQLite against a bare executemany.

Ours: `Store.enqueue` of 1,000 jobs at a time, each encoded, made and checked as a client does it.
Bare: executemany of 1,000 payloads per commit. Target: at least 0.2 of the bare rate.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench import work
from bench.engine import bare_sqlite
from bench.harness import Result, compare, race
from bench.lab import Lab
from tenure.store import open_store

NAMES = ("engine.sqlite.enqueue",)


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    path = lab.file("jobs.db")
    bare = bare_sqlite.connect(lab.file("bare.db"))
    with open_store(f"sqlite:///{path}") as store:
        auditor = bare_sqlite.connect(path)
        rounds = race(
            work.Enqueuing(store, bare_sqlite.Count(auditor)),
            bare_sqlite.Inserting(bare),
            jobs=lab.size(100_000, 20_000),
            slice_jobs=5_000,
        )
        auditor.close()
    bare.close()
    yield compare(NAMES[0], rounds, "bare executemany")
