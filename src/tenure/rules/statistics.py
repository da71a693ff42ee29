"""Statistics of ended attempts and jobs: what is counted, in fixed buckets, and what follows.

A process counts in memory, in a `Tally`, by queue, task and outcome, and writes the counts every
ten seconds. The bounds of the buckets never change, so counts of any processes and times can be
added.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal, Self

import msgspec

from tenure.rules.record import Record

BOUNDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
    10_800.0, 36_000.0,
)  # fmt: skip
"""The upper bounds of the buckets, in seconds. A bound belongs to its bucket. One more bucket has
all that is longer."""
BUCKETS = len(BOUNDS) + 1

FINAL_OUTCOMES = ("succeeded", "failed", "cancelled", "skipped")
"""The job has finished."""
OUTCOMES = (*FINAL_OUTCOMES, "retried", "snoozed", "crashed")
"""All that is counted. After the last three the job runs again."""

WRITE_SECONDS = 10
"""How often a process writes what it has counted."""
HOUR_SECONDS, DAY_SECONDS = 3600, 86_400

By = Literal["queue", "task", "outcome"]


class Histogram(Record, msgspec.Struct, frozen=True):
    """How long something took: the number of times in each bucket, and their sum."""

    counts: tuple[int, ...] = (0,) * BUCKETS
    """One for each of `BOUNDS`, and one for all that is longer."""
    seconds: float = 0.0
    """All times together."""

    @property
    def count(self) -> int:
        """The number of times."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The mean in seconds; None: there are none."""
        return self.seconds / self.count if self.count else None

    @property
    def p50(self) -> float | None:
        """The median in seconds, estimated within its bucket; None: there are none."""
        return self.quantile(0.5)

    @property
    def p95(self) -> float | None:
        """95 % took no longer than this many seconds, estimated within its bucket."""
        return self.quantile(0.95)

    def quantile(self, share: float) -> float | None:
        """The time that this share did not exceed: a straight line within its bucket.

        Beyond the last bound, the last bound. None: there are no times.
        """
        wanted, below = share * self.count, 0
        low = 0.0
        for bound, count in zip(BOUNDS, self.counts, strict=False):
            if count and below + count >= wanted:
                return low + (bound - low) * max(0.0, wanted - below) / count
            below += count
            low = bound
        return BOUNDS[-1] if self.count else None

    def plus(self, other: Self) -> Self:
        """Both together."""
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return type(self)(counts, self.seconds + other.seconds)


class Counted(msgspec.Struct, omit_defaults=True):
    """What was counted for one queue, task and outcome; one row of the table."""

    queue: str
    task: str
    outcome: str
    ends: int = 0
    wait_seconds: float = 0.0
    run_seconds: float = 0.0
    waits: list[int] | None = None
    """By bucket; None: it has no times."""
    runs: list[int] | None = None

    def add(self, other: Self) -> None:
        """Add what was counted elsewhere."""
        self.ends += other.ends
        self.wait_seconds += other.wait_seconds
        self.run_seconds += other.run_seconds
        self.waits = _sum(self.waits, other.waits)
        self.runs = _sum(self.runs, other.runs)


def _sum(one: Sequence[int] | None, other: Sequence[int] | None) -> list[int] | None:
    if one is None or other is None:
        return list(one or other or ()) or None
    return [a + b for a, b in zip(one, other, strict=True)]


Cell = tuple[Counted, list[int], list[int]]
"""A row, and its buckets of waits and runs."""


class Tally:
    """What one process has counted since it last took it. Used by one thread."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str, str], Cell] = {}

    def add(
        self, queue: str, task: str, outcome: str, wait_seconds: float, run_seconds: float
    ) -> None:
        """An attempt has ended."""
        counted, waits, runs = self.cell(queue, task, outcome)
        counted.ends += 1
        counted.wait_seconds += wait_seconds
        counted.run_seconds += run_seconds
        waits[bisect_left(BOUNDS, wait_seconds)] += 1
        runs[bisect_left(BOUNDS, run_seconds)] += 1

    def cell(self, queue: str, task: str, outcome: str) -> Cell:
        """Where these are counted until the next `take`, with its buckets."""
        key = (queue, task, outcome)
        if key not in self._cells:
            waits, runs = [0] * BUCKETS, [0] * BUCKETS
            self._cells[key] = Counted(queue, task, outcome, waits=waits, runs=runs), waits, runs
        return self._cells[key]

    def take(self) -> list[Counted]:
        """Remove and return all that was counted."""
        cells, self._cells = self._cells, {}
        return [counted for counted, _, _ in cells.values()]


class Statistics(Record, msgspec.Struct, frozen=True):
    """What ended in one group of jobs, within a time."""

    since: datetime
    seconds: float
    """The length of the time."""
    queue: str | None
    """None: of all queues. The same for the next two."""
    task: str | None
    outcome: str | None
    counts: Mapping[str, int]
    """By outcome: succeeded, failed, cancelled and skipped jobs; retried, snoozed and crashed
    attempts, after which the job runs again. What is missing is 0."""
    wait: Histogram
    """From the time at which a job was ready, or due, until its handler started."""
    run: Histogram
    """From the start of a handler until its end."""

    @property
    def finished(self) -> int:
        """The number of jobs that have finished, however they ended."""
        return sum(self.counts.get(outcome, 0) for outcome in FINAL_OUTCOMES)

    @property
    def per_second(self) -> float:
        """Throughput: finished jobs per second."""
        return self.finished / self.seconds if self.seconds else 0.0

    @property
    def failure_ratio(self) -> float | None:
        """The share of failed jobs among those that succeeded or failed; None: there are none."""
        failed = self.counts.get("failed", 0)
        ran = failed + self.counts.get("succeeded", 0)
        return failed / ran if ran else None


def add_up(
    counted: Iterable[Counted], since: datetime, seconds: float, by: Iterable[By]
) -> list[Statistics]:
    """One record for each group, in order of their names."""
    by = frozenset(by)
    groups: dict[tuple[str | None, ...], list[Counted]] = {}
    for row in counted:
        names = (
            row.queue if "queue" in by else None,
            row.task if "task" in by else None,
            row.outcome if "outcome" in by else None,
        )
        groups.setdefault(names, []).append(row)
    return [
        _group(rows, since, seconds, names)
        for names, rows in sorted(groups.items(), key=lambda item: tuple(map(str, item[0])))
    ]


def _group(
    rows: Sequence[Counted],
    since: datetime,
    seconds: float,
    names: tuple[str | None, ...],
) -> Statistics:
    queue, task, outcome = names
    counts: dict[str, int] = {}
    wait, run = Histogram(), Histogram()
    for row in rows:
        counts[row.outcome] = counts.get(row.outcome, 0) + row.ends
        if row.waits is not None:
            wait = wait.plus(Histogram(tuple(row.waits), row.wait_seconds))
        if row.runs is not None:
            run = run.plus(Histogram(tuple(row.runs), row.run_seconds))
    return Statistics(since, seconds, queue, task, outcome, counts, wait, run)


class QueueDepth(Record, msgspec.Struct, frozen=True):
    """How many live jobs of one queue are in one state."""

    queue: str
    state: str
    jobs: int
    oldest_at: datetime | None = None
    """Of queued jobs: since when the first one is ready."""


class Depth(Record, msgspec.Struct, frozen=True):
    """How many live jobs there were, by queue and state, when they were last counted."""

    sampled_at: datetime
    age_seconds: float
    """How old the sample is."""
    took_seconds: float
    queues: tuple[QueueDepth, ...]
