"""Claim and settle on SQLite, history kept, against the bare loop's claim and finish.

Ours: `Store.claim` of 500 jobs, `Store.settle` of all of them as succeeded with their lease given
back. Bare: one UPDATE to claim 500, one UPDATE to finish them. Target: at least 0.35 of the bare
rate.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench import work
from bench.engine import bare_sqlite
from bench.harness import Result, compare, race
from bench.lab import Lab
from tenure.store import open_store

NAMES = ("engine.sqlite.claim_settle",)


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    path = lab.file("jobs.db")
    bare = bare_sqlite.connect(lab.file("bare.db"))
    with open_store(f"sqlite:///{path}") as store:
        auditor = bare_sqlite.connect(path)
        rounds = race(
            work.Draining(store, bare_sqlite.Count(auditor)),
            bare_sqlite.Draining(bare),
            jobs=lab.size(100_000, 20_000),
            slice_jobs=5_000,
        )
        auditor.close()
    bare.close()
    yield compare(NAMES[0], rounds, "bare UPDATE loop")
