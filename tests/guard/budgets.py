"""What work may cost, in one table: counts, never seconds.

`measured` is what it costs now; `allowance` is how much more is not worth a question. Where a count
is exact the allowance is zero: a change that calls one function more per job, or sends one
statement more, has to change this table, where a reader sees it. `ceiling` is a promise, whatever
is measured. After an improvement, lower the number.

`python -m pytest tests/guard -s` prints what is measured beside the limits. Measured on Python 3.11
and PostgreSQL 15; the allowances leave room for other versions where those count differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.guard.counts import Counts


@dataclass(frozen=True, slots=True)
class Budget:
    """What one count may be."""

    measured: float
    allowance: float = 0.05
    ceiling: float = math.inf
    slack: float = 0.0
    """What may come on top by chance, however small the count is."""

    @property
    def limit(self) -> float:
        """The most that passes."""
        return min(self.measured * (1 + self.allowance) + self.slack, self.ceiling)


Table = Mapping[str, Mapping[str, Budget]]


def exactly(measured: float) -> Budget:
    """A count that does not depend on chance."""
    return Budget(measured, allowance=0.0)


def _sqlite(
    statements: float, commits: float, rows: float, pages: float, written: float, steps: float
) -> dict[str, Budget]:
    """One operation on SQLite: it waits for the disk once for each commit that writes."""
    return {
        "statements": exactly(statements),
        "commits": exactly(commits),
        "rows": exactly(rows),
        "pages": Budget(pages),
        "pages written": Budget(written, allowance=0.1),
        "steps": Budget(steps),
        "syncs": exactly(1 if written else 0),
    }


def _postgres(
    statements: float, commits: float, rows: float, pages: float, wal: float
) -> dict[str, Budget]:
    """One operation on PostgreSQL. (The server adds a record to its log now and then.)"""
    return {
        "statements": exactly(statements),
        "commits": exactly(commits),
        "rows": exactly(rows),
        "pages": Budget(pages),
        "WAL bytes": Budget(wal, slack=50),
    }


def _calls(python: float, c: float, library: float, batch: float) -> dict[str, Budget]:
    """Calls per job. Those of libraries change with their versions, those of batches by chance."""
    return {
        "python calls": exactly(python),
        "C calls": Budget(c),
        "library calls": Budget(library, allowance=0.25),
        "batch calls": Budget(batch, allowance=4.0),
    }


# How many jobs share a transaction depends on how fast the disk is beside the processor. What goes
# by transactions may therefore be many times more, up to what is promised: one for twenty jobs.
_DRAIN_SQLITE = {
    "statements": Budget(1.03, allowance=0.5),
    "commits": Budget(0.002, allowance=24.0, ceiling=0.05),
    "rows": Budget(5.1),
    "pages": Budget(5.5, allowance=0.1),
    "pages written": Budget(0.12, allowance=2.0),
    "steps": Budget(228.5),  # two nullable columns and an index for jobs with a time to start
    "syncs": Budget(0.002, allowance=24.0, ceiling=0.05),
}
_DRAIN_POSTGRES = {
    "statements": Budget(0.01, allowance=24.0),
    "commits": Budget(0.002, allowance=24.0, ceiling=0.05),
    "rows": Budget(3.0),
    "pages": Budget(20.6, allowance=0.1),
    "WAL bytes": Budget(528.0, allowance=0.08),
}

# A look a second, and a sign of life every ten. By chance there is one more or less; and on SQLite
# the bell looks at the file until the disk has it. Of the pages of a look on SQLite, two are for
# gates: whether there are any, and whether somebody waits there.
_IDLE_SQLITE = {
    "statements": Budget(416, allowance=0.5),
    "commits": Budget(6, slack=2),
    "rows": Budget(6, slack=2),
    "pages": Budget(560, allowance=0.1),
    "pages written": Budget(6, slack=6),
    "steps": Budget(7421, allowance=0.3),
    "syncs": Budget(6, slack=2),
}
_IDLE_POSTGRES = {
    "statements": Budget(77, allowance=0.1, slack=6),
    "commits": Budget(65, allowance=0.1, slack=4),
    "rows": Budget(6, slack=2),
    "pages": Budget(590, allowance=0.3),
    "WAL bytes": Budget(
        2568, allowance=0.5, slack=500
    ),  # six announcements, with slots and rates for `why`
}

BUDGETS: Table = {
    # One operation: statements, commits, rows, pages, ... A write to SQLite reads the version of
    # the schema: code that is too old must not write to it, from the migration on.
    "sqlite.enqueue_bulk": _sqlite(45, 1, 2002, 1243, 50.5, 137_780),
    "sqlite.enqueue_one": _sqlite(7, 1, 4, 11.2, 3.11, 293),
    "sqlite.claim": _sqlite(7, 1, 501, 76.1, 11.1, 33_648),
    "sqlite.settle": _sqlite(510, 1, 2001, 2578, 56.8, 77_174),
    "sqlite.claim_nothing": _sqlite(4, 1, 0, 4, 0, 53),
    "sqlite.heartbeat": _sqlite(5, 1, 1, 11, 2.38, 135),
    "sqlite.peek": _sqlite(3, 0, 0, 9, 0, 108),  # whether there are gates among it
    "postgres.enqueue_bulk": _postgres(5.25, 1.25, 2000, 4124, 366_900),
    "postgres.enqueue_one": _postgres(1.02, 1.02, 2, 8.7, 510),
    "postgres.claim": _postgres(2, 2.375, 501, 3542, 59_100),
    "postgres.settle": _postgres(4, 1, 1001, 6988, 221_200),
    "postgres.claim_nothing": _postgres(1, 1, 0, 16.1, 0),
    "postgres.peek": _postgres(1, 1, 0, 13.7, 0),
    "postgres.heartbeat": _postgres(4, 1, 1, 13.9, 981),
    # A minute of a worker that has nothing to do.
    "sqlite.idle_minute": _IDLE_SQLITE,
    "postgres.idle_minute": _IDLE_POSTGRES,
    # One job of many that a worker drains.
    "sqlite.drain.async": _DRAIN_SQLITE,
    "sqlite.drain.thread": _DRAIN_SQLITE,
    "postgres.drain.async": _DRAIN_POSTGRES,
    "postgres.drain.thread": _DRAIN_POSTGRES,
    # One job from enqueue to history, vacuum included; and without what history writes.
    "postgres.life": {"WAL bytes": Budget(897.5, allowance=0.01, ceiling=900)},
    "postgres.life_without_history": {"WAL bytes": Budget(563.2, allowance=0.02, ceiling=600)},
    # One job: calls of our functions, of C functions, of libraries; and its share of a batch.
    "sqlite.worker_calls.async": _calls(19, 28, 0, 0.7),
    "sqlite.worker_calls.thread": _calls(21, 33, 0, 0.5),
    "postgres.worker_calls.async": _calls(18, 28, 0, 1.05),
    "postgres.worker_calls.thread": _calls(20, 33, 0, 0.7),
    "sqlite.enqueue_calls.bulk": _calls(11, 20, 0, 0.07),
    "sqlite.enqueue_calls.one": _calls(79, 67, 4, 0.07),
    "postgres.enqueue_calls.bulk": _calls(14, 26, 0, 0.07),
    "postgres.enqueue_calls.one": _calls(66, 44, 158, 0.35),
}


class TooExpensive(AssertionError):
    """Work costs more than its budget."""


def check(scene: str, counts: Counts) -> None:
    """Raise unless every count of the scene is within its budget, and none is without one."""
    table = BUDGETS[scene]
    assert set(counts.values) == set(table), f"{scene}: counts and budgets have other names"
    lines = [_line(name, counts.values[name], budget) for name, budget in table.items()]
    print(f"{scene}:", *lines, sep="\n")
    over = [name for name, budget in table.items() if _is_over(counts.values[name], budget)]
    if over:
        raise TooExpensive(
            f"{scene} costs more {' and '.join(over)} than tests/guard/budgets.py allows:\n"
            + "\n".join(lines)
            + f"\nwhere it goes:\n{counts.most_of()}"
        )


def check_cheapest(scene: str, measure: Callable[[], Counts], *, tries: int = 3) -> None:
    """The same for work of which chance makes more and never less: one of three tries must do."""
    for left in reversed(range(tries)):
        try:
            check(scene, measure())
            return
        except TooExpensive:
            if not left:
                raise


def _is_over(value: float, budget: Budget) -> bool:
    return value > budget.limit + 1e-9


def _line(name: str, value: float, budget: Budget) -> str:
    verdict = "  TOO MUCH" if _is_over(value, budget) else ""
    if value < 0.9 * budget.measured and budget.allowance < 1:
        verdict = "  (cheaper than the table says: lower it)"
    return (
        f"  {name:14} {value:12.4f}  budget {budget.measured:g}, limit {budget.limit:.4f}{verdict}"
    )
