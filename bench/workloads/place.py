"""A fresh database for one workload: the store, and a look into the tables behind its back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import psycopg

from bench import work
from bench.engine import bare_postgres, bare_sqlite
from bench.harness import check
from bench.lab import Lab
from bench.workloads.handlers import NOOP
from tenure.rules.job import NewJob
from tenure.store import Store, open_store

Kind = Literal["postgres", "sqlite"]
KINDS: tuple[Kind, ...] = ("postgres", "sqlite")


@dataclass(frozen=True)
class Place:
    """Where a workload runs. `look` answers the single value of a query."""

    kind: Kind
    url: str
    store: Store
    count: work.Count
    look: Callable[[str], object]
    quietly: Callable[[], AbstractContextManager[object]] = nullcontext
    """In this block all looks together make one commit."""

    def number(self, query: str) -> int:
        """The value of a query that writes a table as `{t}job`; a truth is 1 or 0."""
        prefix = "tenure." if self.kind == "postgres" else "tenure_"
        value = self.look(query.format(t=prefix))
        return value if isinstance(value, int) else int(str(value))

    def fill(self, jobs: Iterable[NewJob]) -> int:
        """Enqueue in chunks. Answers the last id."""
        each, last = iter(jobs), 0
        while chunk := list(itertools.islice(each, work.CHUNK)):
            last = self.store.enqueue(chunk)[-1].id
        return last

    def check_finished(self, jobs: int, *, events: int = 0) -> None:
        """Raise unless all jobs of this database succeeded, so many, and nothing is left."""
        work.check_rows(self.count, ready=0, due=0, job=0, lease=0, event=events, history=jobs)
        succeeded = self.number("select count(*) from {t}history where state = 'succeeded'")
        check(succeeded == jobs, f"{succeeded} jobs of {jobs} succeeded")


def plain(jobs: int, **options: object) -> Iterator[NewJob]:
    """So many jobs with the payload of all benchmarks."""
    return (NewJob(task=NOOP, args=work.PAYLOAD, **options) for _ in range(jobs))  # type: ignore[arg-type]


@contextmanager
def fresh_place(lab: Lab, kind: Kind) -> Iterator[Place]:
    """An empty, migrated database, gone afterwards."""
    if kind == "sqlite":
        path = lab.file("jobs.db")
        url = f"sqlite:///{path}"
        with open_store(url) as store, closing(bare_sqlite.connect(path)) as file:
            file.set_busy_timeout(10_000)

            def look_in(query: str) -> object:
                return next(iter(file.execute(query).fetchall()))[0]

            yield Place(kind, url, store, bare_sqlite.Count(file), look_in)
        for each in path.parent.iterdir():
            each.unlink()
        return
    with (
        lab.database() as url,
        lab.postgres_store(url) as store,
        psycopg.connect(url, autocommit=True) as auditor,
    ):

        def look(query: str) -> object:
            row = auditor.execute(query.encode()).fetchone()
            assert row is not None
            return row[0]

        yield Place(kind, url, store, bare_postgres.Count(auditor), look, auditor.transaction)
