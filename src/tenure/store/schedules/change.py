"""What is done to schedules: add, edit, pause, resume, trigger, remove, declare, look.

A schedule belongs to the database, under its name; `fire` makes its jobs. A change divides time:
ticks that were due before it are fired in its own transaction, with the old timing, the old policy
for missed ticks and the old job, as if a worker had looked just before. After it the new timing
counts. So no tick is lost between the two, whether a worker runs or not.

Code declares schedules when a worker starts. A declaration counts once, the first time that it is
seen. So it does not undo what was edited since, and old code that starts again beside new code
changes nothing.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

import msgspec

from tenure.errors import InvalidInput, ScheduleExists
from tenure.rules.job import NewJob, State
from tenure.rules.limits import check_int, check_reason
from tenure.rules.ticks import FiredBy, ScheduleTiming, check_timing, first_after
from tenure.store.moves import stamp
from tenure.store.schedules.fire import Tick, add_ticks, enqueue_ticks, fire_before_change
from tenure.store.schedules.records import (
    Name,
    NewSchedule,
    ScheduleInfo,
    ScheduleRow,
    ScheduleRun,
    Stored,
    TickRow,
    check_job,
    checked,
    get_stored,
    info_of,
    insert,
    job_of,
    lock_stored,
    named,
    not_found,
    own,
    put,
    read_clock,
    stored_of,
    write,
)
from tenure.store.session import Mode, Scope, Tx, for_all_tenants, to_json, transaction
from tenure.store.templates import dump

MAX_LIST = 1000
MAX_PRINTS = 20
"""How many declarations of a schedule are remembered."""


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """What became of declarations, by name.

    `differs`: it was declared before, and edited or declared otherwise since; that stays.
    `left_over`: code has declared it once, and this code does not, though it has the task.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()


@transaction(Mode.WRITE)
async def add_schedule(
    tx: Tx, schedule: NewSchedule, *, now: datetime | None = None
) -> ScheduleInfo:
    """Add a schedule; it ticks from now on. Raises `ScheduleExists` when the name is taken."""
    job = stamp(checked(schedule).job, tx.tenant)
    schedule = msgspec.structs.replace(schedule, job=job)
    tx.at(now)
    added = await insert(tx, schedule, await read_clock(tx))
    stored = await lock_stored(tx, schedule.key)
    # The first try, whose COMMIT got no answer, may have added it.
    if not added and not (tx.repeat and _is_like(stored, schedule)):
        raise ScheduleExists(f"there is a schedule {schedule.name} already; edit or remove it")
    return info_of(stored)


@transaction(Mode.WRITE)
async def edit_schedule(
    tx: Tx,
    name: str,
    *,
    timing: Mapping[str, object] | None = None,
    job: NewJob | None = None,
    now: datetime | None = None,
) -> ScheduleInfo:
    """Change fields of the `ScheduleTiming`, or the job. Ticks that are due fire as before."""
    tx.at(now)
    stored, clock = await lock_stored(tx, own(tx, name)), await read_clock(tx)
    changed = _edited(stored.timing, timing or {})
    check_timing(changed)
    template = stored.job
    if job is not None:
        check_job(job)
        if stamp(job, tx.tenant).tenant != stored.tenant:
            raise InvalidInput(f"schedule {name} belongs to {stored.tenant or 'no tenant'!r}")
        template = dump(job)
    await fire_before_change(tx, stored, clock, now)
    return await write(tx, stored._replace(timing=changed, job=template), clock)


@transaction(Mode.WRITE)
async def pause_schedule(
    tx: Tx, name: str, *, reason: str | None = None, now: datetime | None = None
) -> ScheduleInfo:
    """Let a schedule not tick until it is resumed. Ticks that are due fire first.

    A second pause changes the reason only.
    """
    if reason is not None:
        check_reason(reason)
    tx.at(now)
    stored, clock = await lock_stored(tx, own(tx, name)), await read_clock(tx)
    await fire_before_change(tx, stored, clock, now)
    return await write(
        tx, stored._replace(paused_at=stored.paused_at or clock, reason=reason), clock
    )


@transaction(Mode.WRITE)
async def resume_schedule(tx: Tx, name: str, *, now: datetime | None = None) -> ScheduleInfo:
    """Let it tick again, from now on: what it missed while it was paused is not caught up with."""
    tx.at(now)
    stored = await lock_stored(tx, own(tx, name))
    if stored.paused_at is None:
        return info_of(stored)
    return await write(tx, stored._replace(paused_at=None, reason=None), await read_clock(tx))


@transaction(Mode.WRITE)
async def remove_schedule(tx: Tx, name: str, *, now: datetime | None = None) -> None:
    """Remove a schedule. Its jobs stay. What code declares comes back when a worker starts."""
    tx.at(now)
    if not await tx.fetch("remove_schedule", **named(own(tx, name))) and not tx.repeat:
        raise not_found(name)


async def trigger_schedule(scope: Scope, name: str, *, now: datetime | None = None) -> int:
    """Enqueue a job of this schedule now, paused or not, and answer its id. Ticks stay the same."""
    ids = await scope.session.reserve_ids(1)
    return await scope.transact(partial(_trigger, name=name, ids=ids, now=now))


async def _trigger(tx: Tx, name: str, ids: list[int] | None, now: datetime | None) -> int:
    tx.at(now)
    key = own(tx, name)
    stored = await lock_stored(tx, key)
    if ids is None:
        ids = await tx.draw_ids(1)
    elif tx.repeat and await tx.fetch("stored_jobs", ids=to_json(ids)):
        return ids[0]  # the first try, whose COMMIT got no answer
    at = await read_clock(tx)
    while first_after(stored.timing, at - timedelta(microseconds=1)) == at or not await add_ticks(
        tx, [Tick(key, at, ids[0], True)]
    ):
        at += timedelta(microseconds=1)  # that moment is taken: by a tick, or by another trigger
    tick = Tick(key, at, ids[0], True)
    job = job_of(stored.tenant, stored.job, FiredBy(stored.name, at, triggered=True), None)
    [job_id] = await enqueue_ticks(tx, {tick: job}, now)
    await tx.fetch("note_run", last_at=tx.time(at), last_job_id=job_id, **named(key))
    return job_id


@transaction(Mode.READ)
async def get_schedule(tx: Tx, name: str, *, now: datetime | None = None) -> ScheduleInfo:
    """One schedule. Raises `ScheduleNotFound`."""
    tx.at(now)
    return info_of(await get_stored(tx, name))


@transaction(Mode.READ)
async def list_schedules(
    tx: Tx,
    *,
    limit: int = MAX_LIST,
    after: ScheduleInfo | None = None,
    now: datetime | None = None,
) -> list[ScheduleInfo]:
    """Schedules by tenant and name, a page at a time; `after` is the last one of the page before.

    A tenant sees its own ones, and global ones.
    """
    check_int("limit", limit, 1, MAX_LIST)
    tx.at(now)
    tenant, name = ("", "") if after is None else (after.tenant, after.name)
    rows = await tx.fetch_as(
        ScheduleRow, "list_schedules", tenant=tx.tenant, after_tenant=tenant, after_name=name,
        most=limit,
    )  # fmt: skip
    return [info_of(stored_of(tx, row)) for row in rows]


@transaction(Mode.READ)
async def schedule_runs(
    tx: Tx, name: str, *, limit: int = 10, now: datetime | None = None
) -> list[ScheduleRun]:
    """What became of its latest ticks, newest first."""
    check_int("limit", limit, 1, MAX_LIST)
    tx.at(now)
    stored = await get_stored(tx, name)
    ticks = await tx.fetch_as(
        TickRow, "list_ticks", tenant=stored.tenant, name=stored.name, most=limit
    )
    return [
        ScheduleRun(
            tick_at=tx.when(tick.tick_at), fired_at=tx.when(tick.fired_at),
            triggered=bool(tick.triggered), job_id=tick.job_id,
            state=None if tick.state is None else State(tick.state),
        )
        for tick in ticks
    ]  # fmt: skip


async def declare_schedules(
    scope: Scope,
    schedules: Sequence[NewSchedule],
    *,
    tasks: Sequence[str] = (),
    now: datetime | None = None,
) -> Declared:
    """Declare the schedules of code: add missing ones, and change those with a new declaration.

    A declaration counts the first time that it is seen. `tasks` are those the code has: of a
    schedule of these that was declared once and is not now, the answer tells.
    """
    for_all_tenants("declare_schedules", scope.tenant)
    found: dict[str, str] = {}
    if schedules:
        found = await scope.transact(partial(_declare_all, schedules=schedules, now=now))
    declared = {schedule.key for schedule in schedules}
    left_over = await scope.transact(partial(_left_over, declared, frozenset(tasks)), Mode.READ)
    return Declared(
        added=_those(found, "added"), changed=_those(found, "changed"),
        differs=_those(found, "differs"), left_over=left_over,
    )  # fmt: skip


def _those(found: Mapping[str, str], what: str) -> tuple[str, ...]:
    return tuple(name for name, said in found.items() if said == what)


async def _declare_all(
    tx: Tx, schedules: Sequence[NewSchedule], now: datetime | None
) -> dict[str, str]:
    tx.at(now)
    clock = await read_clock(tx)
    in_order = sorted(map(checked, schedules), key=lambda schedule: schedule.key)
    return {schedule.name: await _declare(tx, schedule, clock, now) for schedule in in_order}


async def _left_over(declared: set[Name], tasks: frozenset[str], tx: Tx) -> tuple[str, ...]:
    left: list[str] = []
    tenant = name = ""
    while rows := await tx.fetch_as(
        ScheduleRow, "list_schedules", tenant=None, after_tenant=tenant, after_name=name,
        most=MAX_LIST,
    ):  # fmt: skip
        infos = [info_of(stored_of(tx, row)) for row in rows]
        left += [
            info.name for info in infos
            if info.declared and info.task in tasks and (info.tenant, info.name) not in declared
        ]  # fmt: skip
        tenant, name = infos[-1].tenant, infos[-1].name
    return tuple(left)


async def _declare(
    tx: Tx, schedule: NewSchedule, clock: datetime, now: datetime | None
) -> Literal["added", "changed", "kept", "differs"]:
    job = dump(schedule.job)
    print_ = hashlib.sha256(to_json([schedule.timing, job]).encode()).hexdigest()[:16]
    if await insert(tx, schedule, clock, prints=[print_]):
        return "added"
    stored = await lock_stored(tx, schedule.key)
    seen, same = stored.declared or [], _is_like(stored, schedule)
    if print_ in seen:
        return "kept" if same else "differs"
    stored = stored._replace(declared=[*seen, print_][-MAX_PRINTS:])
    if same:  # its times stay: only whose it is changes
        await put(tx, stored, clock)
        return "kept"
    await fire_before_change(tx, stored, clock, now)
    await write(tx, stored._replace(timing=schedule.timing, job=job), clock)
    return "changed"


def _is_like(stored: Stored, schedule: NewSchedule) -> bool:
    return (stored.timing, stored.job) == (schedule.timing, dump(schedule.job))


def _edited(timing: ScheduleTiming, changes: Mapping[str, object]) -> ScheduleTiming:
    """A cron expression takes the place of an interval, and the other way round."""
    new = msgspec.structs.asdict(timing)
    for name in changes.keys() - new:
        raise InvalidInput(f"a timing has no field {name!r:.60}; it has {', '.join(new)}")
    if changes.get("cron") is not None:
        new["every_seconds"] = None
    if changes.get("every_seconds") is not None:
        new |= {"cron": None, "tz": "UTC"}
    return ScheduleTiming(**new | dict(changes))
