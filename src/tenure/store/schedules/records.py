"""Schedules as records and as rows: what is stored under a name, and the job of one tick."""

from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from tenure.errors import InvalidInput, ScheduleNotFound
from tenure.rules.codec import encode
from tenure.rules.job import Json, NewJob, State
from tenure.rules.limits import check_name
from tenure.rules.record import Record, value_of
from tenure.rules.ticks import FiredBy, ScheduleTiming, check_timing, first_after, upcoming
from tenure.store.records import Flag, Returned, Time
from tenure.store.session import Tx, to_json
from tenure.store.templates import dump, read_template

Name = tuple[str, str]
"""Tenant and name."""


class ScheduleRow(NamedTuple):
    """A row of `schedule`."""

    tenant: str
    name: str
    next_at: Time
    done_until: Time
    last_at: Time
    last_job_id: int | None
    created_at: Time
    changed_at: Time
    paused_at: Time
    reason: str | None
    timing: str
    job: str
    declared: str | None


class ScheduleKey(NamedTuple):
    """The key of a schedule."""

    tenant: str
    name: str


class ScheduleOutlook(NamedTuple):
    """When the next schedule is due, and whether the clock was set back."""

    wait_seconds: float | None
    is_early: Flag


class DueSchedule(NamedTuple):
    """A locked schedule that is due, or whose ticks are done up to a later time than now."""

    tenant: str
    name: str
    done_until: Time
    timing: str
    job: str
    now: Time
    sorted_by: Time
    """The time by which a page of these is sorted."""


class AddedTick(NamedTuple):
    """A tick that this transaction has written."""

    tenant: str
    schedule: str
    tick_at: Time


class TickRow(NamedTuple):
    """A tick and the state of its job."""

    tick_at: Time
    fired_at: Time
    triggered: Flag
    job_id: int | None
    state: str | None


RETURNED_BY: Returned = {
    ScheduleRow: ("lock_schedule", "get_schedule", "list_schedules"),
    ScheduleKey: ("busy_schedules",),
    ScheduleOutlook: ("look_at_schedules",),
    DueSchedule: ("lock_due_schedules", "lock_early_schedules"),
    AddedTick: ("add_ticks",),
    TickRow: ("list_ticks",),
}


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to be added or declared: `job` is what each of its ticks enqueues."""

    name: str
    timing: ScheduleTiming
    job: NewJob

    def __post_init__(self) -> None:
        check_name("schedule", self.name)
        check_job(self.job)

    @property
    def key(self) -> Name:
        """Under which it is stored."""
        return self.job.tenant, self.name


class ScheduleInfo(Record, msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A schedule as clients see it."""

    name: str
    tenant: str
    timing: ScheduleTiming
    task: str
    args_json: str
    queue: str
    priority: int
    next_at: datetime | None
    """Its next tick; None while it is paused."""
    last_at: datetime | None
    """Its last tick that gave a job, and that job."""
    last_job_id: int | None
    paused_at: datetime | None
    reason: str | None
    declared: bool
    """It comes from code; else it was added at run time."""
    created_at: datetime
    changed_at: datetime

    @cached_property
    def args(self) -> dict[str, Any]:
        """The arguments of its jobs, by name."""
        arguments: dict[str, Any] = value_of(self, "args_json")
        return arguments

    def upcoming(self, count: int = 5) -> list[datetime]:
        """Its next ticks; none while it is paused."""
        if self.next_at is None:
            return []
        return upcoming(self.timing, self.next_at - timedelta(microseconds=1), count)


class ScheduleRun(Record, msgspec.Struct, frozen=True, kw_only=True):
    """A tick that was dealt with. Without a job it was skipped: the one before was still at work.

    `state` is None when there is no job, or when it has been removed since.
    """

    tick_at: datetime
    fired_at: datetime
    triggered: bool
    job_id: int | None
    state: State | None


class Stored(NamedTuple):
    """A schedule as it is stored, with its times and its JSON read."""

    tenant: str
    name: str
    next_at: datetime | None
    done_until: datetime
    last_at: datetime | None
    last_job_id: int | None
    created_at: datetime
    changed_at: datetime
    paused_at: datetime | None
    reason: str | None
    timing: ScheduleTiming
    job: str
    declared: list[str] | None


read_timing = msgspec.json.Decoder(ScheduleTiming).decode
_prints_reader = msgspec.json.Decoder(list[str])
_metadata_reader = msgspec.json.Decoder(dict[str, msgspec.Raw])


def checked(schedule: NewSchedule) -> NewSchedule:
    """Refuse one that could never tick."""
    if not isinstance(schedule, NewSchedule):
        raise InvalidInput(f"schedules are NewSchedule records, not {type(schedule).__name__}")
    check_timing(schedule.timing)
    return schedule


def check_job(job: NewJob) -> None:
    """Refuse a job that says itself when it is due, or whose metadata cannot name the tick."""
    if job.delay_seconds is not None or job.due_at is not None or job.parents:
        raise InvalidInput(
            "the schedule says when its jobs are due: leave out delay_seconds, due_at and parents"
        )
    try:
        _metadata_reader.decode(job.metadata or b"{}")
    except msgspec.MsgspecError as error:
        raise InvalidInput("the metadata of the job of a schedule must be a JSON object") from error
    if job.expires_at is not None or job.finish_by is not None:
        raise InvalidInput(
            "a schedule has many jobs: give start_within_seconds or finish_within_seconds in place "
            "of expires_at or finish_by"
        )


def own(tx: Tx, name: str) -> Name:
    """The key under which a tenant, or who serves all of them, may change this name."""
    check_name("schedule", name)
    return tx.tenant or "", name


def named(key: Name) -> dict[str, str]:
    """A key as parameters."""
    tenant, name = key
    return {"tenant": tenant, "name": name}


def not_found(name: str) -> ScheduleNotFound:
    """The error, with what to do."""
    return ScheduleNotFound(f"there is no schedule {name} here; `tenure schedule list` shows all")


async def read_clock(tx: Tx) -> datetime:
    """The database's clock, once: what is written about a schedule must agree on the time."""
    [clock] = await tx.fetch_column("clock")
    return tx.when(clock)


async def get_stored(tx: Tx, name: str) -> Stored:
    """A schedule to look at: the tenant's own one, or a global one."""
    schedules = await tx.fetch_as(ScheduleRow, "get_schedule", **named(own(tx, name)))
    if not schedules:
        raise not_found(name)
    return stored_of(tx, schedules[0])


async def lock_stored(tx: Tx, key: Name) -> Stored:
    """A schedule to change."""
    schedules = await tx.fetch_as(ScheduleRow, "lock_schedule", **named(key))
    if not schedules:
        _, name = key
        raise not_found(name)
    return stored_of(tx, schedules[0])


async def insert(
    tx: Tx, schedule: NewSchedule, clock: datetime, *, prints: list[str] | None = None
) -> bool:
    """Write a new schedule, which ticks from now on. Returns False if the name is taken."""
    return bool(
        await tx.fetch(
            "add_schedule", **named(schedule.key), at=tx.time(clock),
            next_at=tx.time(first_after(schedule.timing, clock)), timing=to_json(schedule.timing),
            job=dump(schedule.job), declared=_json_or_none(prints),
        )
    )  # fmt: skip


async def write(tx: Tx, stored: Stored, clock: datetime) -> ScheduleInfo:
    """Write what was changed. From now on it ticks by that."""
    next_at = None if stored.paused_at is not None else first_after(stored.timing, clock)
    await put(tx, stored._replace(next_at=next_at, done_until=clock), clock)
    return info_of(await lock_stored(tx, (stored.tenant, stored.name)))


async def put(tx: Tx, stored: Stored, clock: datetime) -> None:
    """Write a row as it is given."""
    await tx.fetch(
        "change_schedule", tenant=stored.tenant, name=stored.name, at=tx.time(clock),
        next_at=tx.time(stored.next_at), done_until=tx.time(stored.done_until),
        paused_at=tx.time(stored.paused_at), reason=stored.reason, timing=to_json(stored.timing),
        job=stored.job, declared=_json_or_none(stored.declared),
    )  # fmt: skip


def _json_or_none(prints: list[str] | None) -> str | None:
    return None if prints is None else to_json(prints)


def stored_of(tx: Tx, row: ScheduleRow) -> Stored:
    """A row with its times and its JSON read."""
    when = tx.when_or_none
    return Stored(
        tenant=row.tenant, name=row.name, next_at=when(row.next_at),
        done_until=tx.when(row.done_until), last_at=when(row.last_at), last_job_id=row.last_job_id,
        created_at=tx.when(row.created_at), changed_at=tx.when(row.changed_at),
        paused_at=when(row.paused_at), reason=row.reason, timing=read_timing(row.timing),
        job=row.job, declared=None if row.declared is None else _prints_reader.decode(row.declared),
    )  # fmt: skip


def info_of(stored: Stored) -> ScheduleInfo:
    """A row, as people see it."""
    template = read_template(stored.job)
    return ScheduleInfo(
        name=stored.name, tenant=stored.tenant, timing=stored.timing, task=template.task,
        args_json=bytes(template.args).decode(), queue=template.queue, priority=template.priority,
        next_at=stored.next_at, last_at=stored.last_at, last_job_id=stored.last_job_id,
        paused_at=stored.paused_at, reason=stored.reason, declared=stored.declared is not None,
        created_at=stored.created_at, changed_at=stored.changed_at,
    )  # fmt: skip


def job_of(tenant: str, text: str, by: FiredBy, due: datetime | None) -> NewJob:
    """The job of one tick. Its metadata says which one."""
    template = read_template(text)
    given = template.metadata
    named = _metadata_reader.decode(given) if isinstance(given, msgspec.Raw) else {}
    return template.job(
        tenant, args=Json(bytes(template.args)), metadata=_with_origin(named, by), due_at=due
    )


def _with_origin(given: dict[str, msgspec.Raw], by: FiredBy) -> Json:
    said: dict[str, object] = {"name": by.name, "tick": by.tick}
    if by.triggered:
        said["triggered"] = True
    return Json(to_json(given | {"schedule": msgspec.Raw(encode(said))}).encode())
