"""What is looked at during a soak, and what it means to stay bounded."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psutil

from bench.workloads.place import Kind, Place


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One look."""

    seconds: float
    finished: int
    backlog: int
    memory_mib: float
    threads: int
    descriptors: int
    connections: int
    wal_mib: float
    dead_rows: int


class Bound(msgspec.Struct, frozen=True):
    """In the last third of a soak nothing is above the middle third by more than this."""

    figure: str
    unit: str
    share: float
    more: float


WORKER = (
    Bound("memory_mib", "MiB", 0.1, 4.0),
    Bound("threads", "threads", 0.0, 1.0),
    Bound("descriptors", "descriptors", 0.0, 3.0),
    Bound("connections", "connections", 0.0, 1.0),
)
BOUNDS: dict[Kind, tuple[Bound, ...]] = {
    "postgres": (
        *WORKER,
        Bound("wal_mib", "MiB", 0.0, 64.0),
        Bound("dead_rows", "rows", 0.5, 0.0),
        Bound("backlog", "jobs", 1.0, 100.0),
    ),
    "sqlite": (
        *WORKER,
        Bound("wal_mib", "MiB", 1.0, 1.0),
        Bound("dead_rows", "free pages", 1.0, 100.0),
        Bound("backlog", "jobs", 1.0, 100.0),
    ),
}
"""What a database keeps may double: in twenty minutes of SQLite free pages rose from 2,410 to
3,847, backlogs from 674 to 1,118. PostgreSQL is told to keep 1 GiB of log, and may have four files
more; dead rows, which it removes in its own time, may be half as many again."""


def highest(samples: Sequence[Sample], bound: Bound) -> tuple[float, float, float]:
    """The highest value of each third."""
    third = max(1, len(samples) // 3)
    values = [float(getattr(sample, bound.figure)) for sample in samples]
    return max(values[:third]), max(values[third : 2 * third]), max(values[2 * third :])


def is_bounded(samples: Sequence[Sample], bound: Bound) -> bool:
    """Did it stop growing?"""
    _, middle, last = highest(samples, bound)
    return last <= middle * (1 + bound.share) + bound.more


class Watch:
    """Looks at a worker and at its database. PostgreSQL counts dead rows, SQLite free pages."""

    def __init__(self, place: Place, family: Callable[[], list[psutil.Process]]) -> None:
        self._place = place
        self._family = family

    def look(self, seconds: float, finished: int, backlog: int) -> Sample:
        """Now."""
        family = self._family()
        postgres = self._place.kind == "postgres"
        return Sample(
            seconds=round(seconds, 1),
            finished=finished,
            backlog=backlog,
            memory_mib=round(sum(each.memory_info().rss for each in family) / 2**20, 1),
            threads=sum(each.num_threads() for each in family),
            descriptors=sum(each.num_fds() for each in family),
            connections=self._connections() if postgres else self._open_files(family),
            wal_mib=round((self._postgres_wal() if postgres else self._sqlite_wal()) / 2**20, 2),
            dead_rows=self._place.number(DEAD_ROWS if postgres else "pragma freelist_count"),
        )

    def _connections(self) -> int:
        return self._place.number(
            "select count(*) from pg_stat_activity where datname = current_database()"
        )

    def _postgres_wal(self) -> int:
        return self._place.number("select coalesce(sum(size), 0) from pg_ls_waldir()")

    @property
    def _path(self) -> Path:
        return Path(self._place.url.removeprefix("sqlite:///"))

    def _sqlite_wal(self) -> int:
        return Path(f"{self._path}-wal").stat().st_size

    def _open_files(self, family: list[psutil.Process]) -> int:
        return sum(
            os.path.realpath(file.path) == os.path.realpath(self._path)
            for each in family
            for file in each.open_files()
        )


DEAD_ROWS = "select coalesce(sum(n_dead_tup), 0) from pg_stat_user_tables"
