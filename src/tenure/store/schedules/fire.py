"""fire: jobs are enqueued by the clock. There is no leader: any worker fires what is due.

One transaction writes a row per tick, enqueues the jobs of the new rows, and notes for each
schedule up to which time its ticks are done. The row is unique, so a tick has one job, no matter
how many workers fire it, how often, and what the clock does. `tenure.rules.ticks` says when a
schedule ticks.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import NamedTuple

import msgspec

from tenure.errors import TenureError
from tenure.rules.job import NewJob
from tenure.rules.limits import LONG_AGO
from tenure.rules.ticks import FiredBy, ScheduleTiming, due, due_at, first_after
from tenure.store.jobs.enqueue import enqueue_in
from tenure.store.schedules.records import (
    AddedTick,
    DueSchedule,
    Name,
    ScheduleKey,
    ScheduleOutlook,
    Stored,
    job_of,
    named,
    read_timing,
)
from tenure.store.session import Mode, Scope, Tx, for_all_tenants, to_json

PAGE = 50
KEEP_TICKS_SECONDS = 86_400.0
"""Ticks are kept at least this long, whatever the retention: the clock may be set back."""
CANNOT_TICK = (TenureError, msgspec.MsgspecError)
"""Of a schedule whose time zone is unknown here, or that another version of the code has stored."""
AGAIN_SECONDS = 1.0
"""When to look again at due schedules that another worker had locked."""


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """What `fire` did: the ids of the jobs, and in how many seconds something is due again.

    `refused` says of schedules by name why they cannot tick here; another worker may do better.
    """

    jobs: tuple[int, ...] = ()
    wait_seconds: float | None = None
    refused: dict[str, str] = {}


async def fire(scope: Scope, *, now: datetime | None = None) -> Fired:
    """Enqueue a job for each tick that is due. One indexed look when nothing is.

    The ticks, their jobs and the progress of their schedules are one transaction per page. What
    another worker is firing just now is left to it.
    """
    for_all_tenants("fire", scope.tenant)
    wait, early = await scope.transact(partial(_look, now=now), Mode.GLANCE)
    is_due = wait is not None and wait <= 0
    if not is_due and not early:
        return Fired(wait_seconds=wait)
    jobs: list[int] = []
    refused: dict[str, str] = {}
    for statement in ["lock_early_schedules"] * early + ["lock_due_schedules"] * is_due:
        after: _Reached | None = _FIRST
        while after is not None:
            page = await scope.transact(
                partial(_fire_page, statement=statement, after=after, now=now)
            )
            jobs += page.jobs
            refused |= page.refused
            after = page.next
    wait, _ = await scope.transact(partial(_look, now=now), Mode.GLANCE)
    if wait is not None and wait <= 0:
        wait = AGAIN_SECONDS
    return Fired(jobs=tuple(jobs), wait_seconds=wait, refused=refused)


class _Reached(NamedTuple):
    """Up to where a page of due schedules went."""

    at: datetime
    tenant: str
    name: str


_FIRST = _Reached(LONG_AGO, "", "")


class _Page(NamedTuple):
    jobs: list[int]
    refused: dict[str, str]
    next: _Reached | None


class Tick(NamedTuple):
    """A row to write. Without a job it is skipped."""

    key: Name
    at: datetime
    job_id: int | None
    triggered: bool = False


async def _look(tx: Tx, now: datetime | None) -> tuple[float | None, bool]:
    tx.at(now)
    [outlook] = await tx.fetch_as(ScheduleOutlook, "look_at_schedules")
    return outlook.wait_seconds, bool(outlook.is_early)


async def _fire_page(tx: Tx, statement: str, after: _Reached, now: datetime | None) -> _Page:
    tx.at(now)
    rows = await tx.fetch_as(
        DueSchedule, statement, after=tx.time(after.at), tenant=after.tenant, name=after.name,
        most=PAGE,
    )  # fmt: skip
    ticking: list[_Ticking] = []
    refused: dict[str, str] = {}
    for row in rows:
        try:
            key, timing = (row.tenant, row.name), read_timing(row.timing)
            until = tx.when(row.now)
            ticking.append(_ticking(key, timing, row.job, tx.when(row.done_until), until))
        except CANNOT_TICK as error:
            refused[row.name] = str(error)
    jobs = await _fire(tx, ticking, now)
    if len(rows) < PAGE:
        return _Page(jobs, refused, None)
    last = rows[-1]
    return _Page(jobs, refused, _Reached(tx.when(last.sorted_by), last.tenant, last.name))


class _Ticking(NamedTuple):
    """A schedule that is due: the jobs of its ticks, and when it is due again."""

    key: Name
    jobs: dict[datetime, NewJob]
    alone: bool
    done_until: datetime
    next_at: datetime | None


def _ticking(
    key: Name, timing: ScheduleTiming, job: str, done_until: datetime, until: datetime
) -> _Ticking:
    tenant, name = key
    since = min(done_until, until)  # later than now: the clock was set back
    jobs = {
        tick: job_of(tenant, job, FiredBy(name, tick), due_at(timing, name, tick))
        for tick in due(timing, since, until)
    }
    alone = timing.overlap == "skip"
    return _Ticking(key, jobs, alone, until, first_after(timing, until))


async def fire_before_change(tx: Tx, stored: Stored, clock: datetime, now: datetime | None) -> None:
    """edit, pause, declare: fire what is due of a locked schedule, as it is before the change.

    While it is paused nothing is due. If it cannot tick here, its ticks stay unknown: a change must
    still be possible, because it may be the repair.
    """
    if stored.paused_at is not None:
        return
    key = (stored.tenant, stored.name)
    try:
        ticking = _ticking(key, stored.timing, stored.job, stored.done_until, clock)
    except CANNOT_TICK:
        return
    if ticking.jobs:
        await _fire(tx, [ticking], now)


async def _fire(tx: Tx, ticking: list[_Ticking], now: datetime | None) -> list[int]:
    """Write the ticks, and enqueue the jobs of those that were not written before."""
    busy = await _busy(tx, [each.key for each in ticking if each.alone])
    wanted = sum(len(each.jobs) for each in ticking if each.key not in busy)
    ids = iter(await tx.draw_ids(wanted) if wanted else [])
    jobs = {
        Tick(each.key, at, None if each.key in busy else next(ids)): job
        for each in ticking
        for at, job in each.jobs.items()
    }
    new = await add_ticks(tx, list(jobs))
    fired = {tick: job for tick, job in jobs.items() if tick.job_id is not None and tick in new}
    made = await enqueue_ticks(tx, fired, now)
    last = {tick.key: (tick.at, job_id) for tick, job_id in zip(fired, made, strict=True)}
    await _advance(tx, ticking, last)
    return made


async def _busy(tx: Tx, keys: list[Name]) -> set[Name]:
    if not keys:
        return set()
    rows = to_json([named(key) for key in keys])
    return set(await tx.fetch_as(ScheduleKey, "busy_schedules", rows=rows))


async def add_ticks(tx: Tx, ticks: list[Tick]) -> set[Tick]:
    """Those of them that were not there."""
    if not ticks:
        return set()
    rows = to_json([_tick_row(tx, tick) for tick in ticks])
    added = {
        ((tick.tenant, tick.schedule), tx.when(tick.tick_at))
        for tick in await tx.fetch_as(AddedTick, "add_ticks", rows=rows)
    }
    return {tick for tick in ticks if (tick.key, tick.at) in added}


async def enqueue_ticks(tx: Tx, jobs: Mapping[Tick, NewJob], now: datetime | None) -> list[int]:
    """The job of each tick. One that a unique key keeps from being made is the key's holder."""
    if not jobs:
        return []
    ids = [tick.job_id for tick in jobs if tick.job_id is not None]
    answers = await enqueue_in(tx, list(jobs.values()), ids, now)
    other = [
        _tick_row(tx, tick._replace(job_id=answer.id))
        for tick, answer in zip(jobs, answers, strict=True)
        if not answer.created
    ]
    if other:
        await tx.fetch("correct_ticks", rows=to_json(other))
    return [answer.id for answer in answers]


async def _advance(
    tx: Tx, ticking: list[_Ticking], last: Mapping[Name, tuple[datetime, int]]
) -> None:
    rows = []
    for each in ticking:
        at, job_id = last.get(each.key, (None, None))
        rows.append(
            {**named(each.key), "next_at": tx.time(each.next_at),
             "done_until": tx.time(each.done_until), "last_at": tx.time(at), "last_job_id": job_id}
        )  # fmt: skip
    if rows:
        await tx.fetch("advance_schedules", rows=to_json(rows))


async def forget_ticks(scope: Scope, before: datetime, most: int) -> None:
    """A part of `prune`: ticks that were fired before this, unless their job is not finished."""

    async def step(tx: Tx, after: datetime) -> datetime | None:
        fired = await tx.fetch_column(
            "prune_ticks", after=tx.time(after), before=tx.time(before), most=most
        )
        return max(map(tx.when, fired), default=None)

    after: datetime | None = LONG_AGO
    while after is not None:
        after = await scope.transact(partial(step, after=after))


def _tick_row(tx: Tx, tick: Tick) -> dict[str, object]:
    tenant, name = tick.key
    row: dict[str, object] = {
        "tenant": tenant, "schedule": name, "tick_at": tx.time(tick.at), "job_id": tick.job_id,
    }  # fmt: skip
    return row | {"triggered": True} if tick.triggered else row
