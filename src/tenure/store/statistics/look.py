"""statistics: what has ended within a time, by queue, task and outcome. It reads no job."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import get_args

from tenure.errors import InvalidInput
from tenure.rules.limits import check_int, check_name, check_time, not_this
from tenure.rules.statistics import WRITE_SECONDS, By, Counted, Statistics, add_up
from tenure.store.schedules.records import read_clock
from tenure.store.session import Mode, Tx, for_all_tenants, transaction
from tenure.store.statistics.records import StatisticSum, counted

DEFAULT_SECONDS = 3600
MAX_STRETCHES = 1000


@transaction(Mode.READ)
async def statistics(
    tx: Tx,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    queue: str | None = None,
    task: str | None = None,
    by: By | Collection[By] = ("queue", "task"),
    every_seconds: int | None = None,
    now: datetime | None = None,
) -> list[Statistics]:
    """Statistics of jobs and attempts that have ended within a time: the last hour, if not given.

    There is one record for each queue and task, or for what `by` names: queue, task and outcome, or
    none of them. `every_seconds` cuts the time into stretches: there are records for each stretch
    in which something has ended.

    Rows of the last two hours stand for ten seconds, older ones for an hour or, after 14 days, for
    a day (UTC). A row that begins before `since` and reaches into the time counts as a whole.
    Workers write every ten seconds, so the last ten seconds are incomplete.
    """
    for_all_tenants("statistics", tx.tenant)
    by = _checked_by(by)
    for name, value in (("queue", queue), ("task", task)):
        if value is not None:
            check_name(name, value)
    tx.at(now)
    clock = await read_clock(tx)
    until = _checked("until", until) or clock + timedelta(seconds=1)
    since = _checked("since", since) or until - timedelta(seconds=DEFAULT_SECONDS)
    seconds = (until - since).total_seconds()
    if seconds <= 0:
        raise InvalidInput(f"since must be before until, and {since} is not before {until}")
    if every_seconds is not None:
        check_int("every_seconds", every_seconds, WRITE_SECONDS, 10**9)
        if seconds / every_seconds > MAX_STRETCHES:
            raise InvalidInput(
                f"every_seconds must be at least {seconds / MAX_STRETCHES:.0f} for this time: it "
                f"may have {MAX_STRETCHES} stretches, not {seconds / every_seconds:.0f}"
            )
    rows = await tx.fetch_as(
        StatisticSum, "read_statistics", since=tx.time(since), until=tx.time(until), queue=queue,
        task=task, every=every_seconds,
    )  # fmt: skip
    stretches: dict[int, list[Counted]] = {}
    for row in rows:
        stretches.setdefault(row.stretch, []).append(counted(row))
    return _records(stretches, since, until, by, every_seconds)


def _records(
    stretches: dict[int, list[Counted]],
    since: datetime,
    until: datetime,
    by: Sequence[By],
    every_seconds: int | None,
) -> list[Statistics]:
    records: list[Statistics] = []
    for stretch, rows in sorted(stretches.items()):
        begin = since + timedelta(seconds=stretch * (every_seconds or 0))
        end = until if every_seconds is None else begin + timedelta(seconds=every_seconds)
        seconds = (min(end, until) - begin).total_seconds()
        records += add_up(rows, begin, seconds, by)
    return records


def _checked(what: str, value: datetime | None) -> datetime | None:
    if value is not None:
        check_time(what, value)
    return value


def _checked_by(by: object) -> tuple[By, ...]:
    names = (by,) if isinstance(by, str) else by
    if not isinstance(names, Collection) or any(name not in get_args(By) for name in names):
        raise InvalidInput(f'by must be of "queue", "task" and "outcome", {not_this(by)}')
    return tuple(names)
