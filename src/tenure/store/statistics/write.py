"""add_statistics: what processes have counted is written, and prune adds it up to hours and days.

A row of a process is written once, under the time at which the process began to count: a repeat
changes nothing. Ends that no worker settles are counted in their own transaction: see moves.py.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from tenure.errors import InvalidInput
from tenure.rules.limits import check_name, check_time, not_this
from tenure.rules.statistics import (
    BUCKETS,
    DAY_SECONDS,
    HOUR_SECONDS,
    OUTCOMES,
    WRITE_SECONDS,
    Counted,
)
from tenure.store.session import Mode, Scope, Tx, for_all_tenants, to_json, transaction
from tenure.store.statistics.records import TakenStatistic, counted

KEEP_FINE = timedelta(hours=2)
"""After this time, rows of ten seconds are added up to hours."""
KEEP_HOURS = timedelta(days=14)
"""After this time, hours are added up to days."""
KEEP_DAYS = timedelta(days=400)
"""After this time, days are deleted."""
STEP_ROWS = 1000
"""How many rows one transaction adds up."""


@transaction(Mode.WRITE)
async def add_statistics(
    tx: Tx, process: str, rows: Sequence[Counted], *, at: datetime, now: datetime | None = None
) -> None:
    """Write what a process has counted since `at`. The same call again changes nothing.

    A process uses a time only once.
    """
    for_all_tenants("add_statistics", tx.tenant)
    check_name("process", process)
    check_time("at", at)
    _check(rows)
    tx.at(now)
    if rows:
        await tx.fetch(
            "write_statistics", rows=to_json(list(rows)), span=WRITE_SECONDS, process=process,
            at=tx.time(at), adds=False,
        )  # fmt: skip


def _check(rows: object) -> None:
    if not isinstance(rows, Sequence) or not all(isinstance(row, Counted) for row in rows):
        raise InvalidInput(f"rows must be a list of Counted records, {not_this(rows)}")
    for row in rows:
        check_name("queue", row.queue)
        check_name("task", row.task)
        if row.outcome not in OUTCOMES:
            raise InvalidInput(
                f"the outcome must be one of {', '.join(OUTCOMES)}, {not_this(row.outcome)}"
            )
        for buckets in (row.waits, row.runs):
            if (buckets is None) != (row.waits is None) or len(buckets or [0] * BUCKETS) != BUCKETS:
                raise InvalidInput(f"waits and runs must both have {BUCKETS} buckets, or be None")
    keys = {(row.queue, row.task, row.outcome) for row in rows}
    if len(keys) < len(rows):
        raise InvalidInput("rows has a queue, task and outcome twice; add them up first")


async def roll_up(scope: Scope, clock: datetime) -> None:
    """prune: add up old rows to hours, and hours to days, in small steps. Delete very old days."""
    hour = clock.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    await _add_up(scope, WRITE_SECONDS, HOUR_SECONDS, hour - KEEP_FINE)
    await _add_up(scope, HOUR_SECONDS, DAY_SECONDS, day - KEEP_HOURS)
    await _add_up(scope, DAY_SECONDS, None, day - KEEP_DAYS)


async def _add_up(scope: Scope, span: int, longer: int | None, before: datetime) -> None:
    """Each step is one transaction: rows are gone when, and only when, their sums are there."""

    async def step(tx: Tx) -> int:
        tx.at(None)
        taken = await tx.fetch_as(
            TakenStatistic, "take_statistics", span=span, before=tx.time(before), most=STEP_ROWS
        )
        if longer is not None:
            for at, rows in _by_period(tx, taken, longer).items():
                await tx.fetch(
                    "write_statistics", rows=to_json(rows), span=longer, process="",
                    at=tx.time(at), adds=True,
                )  # fmt: skip
        return len(taken)

    while await scope.transact(step) == STEP_ROWS:
        pass


def _by_period(tx: Tx, taken: Sequence[TakenStatistic], span: int) -> dict[datetime, list[Counted]]:
    """The sums of these rows, by the beginning of the time that they stand for.

    In a fixed order: two processes that prune at the same time wait for each other, and no more.
    """
    sums: dict[tuple[datetime, str, str, str], Counted] = {}
    for row in taken:
        at = tx.when(row.at).replace(minute=0, second=0, microsecond=0)
        if span == DAY_SECONDS:
            at = at.replace(hour=0)
        key = (at, row.queue, row.task, row.outcome)
        if key in sums:
            sums[key].add(counted(row))
        else:
            sums[key] = counted(row)
    periods: dict[datetime, list[Counted]] = {}
    for key in sorted(sums):
        at, *_ = key
        periods.setdefault(at, []).append(sums[key])
    return periods
