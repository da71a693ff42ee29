"""Reads of jobs: one job, timelines, counts. Nothing here writes. Pages of jobs: see find.py."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from tenure.errors import JobNotFound
from tenure.rules.attempts import Attempt, attempts_of
from tenure.rules.claim import KINDS
from tenure.rules.job import Event, Job, Progress, State, Step
from tenure.rules.limits import JobId, check_int, check_time, id_of, is_id
from tenure.rules.record import Record
from tenure.rules.ticks import fired_by
from tenure.store.look.records import (
    AboutRow,
    CountRow,
    EventRow,
    Holder,
    JobRow,
    NoteRow,
    OldestRow,
    PausedRow,
    StepRow,
)
from tenure.store.migrate import VERSION
from tenure.store.session import Mode, Tx, for_all_tenants, to_json, transaction
from tenure.store.statements import Dialect, relations

MAX_PAGE = 1000


class Count(Record, msgspec.Struct, frozen=True):
    """The number of jobs that share these four values."""

    queue: str
    task: str
    state: State
    tenant: str
    jobs: int


class OldestReady(Record, msgspec.Struct, frozen=True):
    """How long the oldest job at the head of one of the queue's lanes has been ready."""

    queue: str
    since: datetime
    age_seconds: float


class PausedQueue(Record, msgspec.Struct, frozen=True):
    """A queue from which workers do not claim."""

    name: str
    paused_at: datetime
    reason: str | None


class About(Record, msgspec.Struct, frozen=True):
    """The store: its engine, its schema, its clock."""

    engine: str
    engine_version: str
    schema_version: int
    min_code: int
    now: datetime


@transaction(Mode.READ)
async def about(tx: Tx, *, now: datetime | None = None) -> About:
    """The engine and its version, the version of the schema, and the store's clock."""
    tx.at(now)
    [row] = await tx.fetch_as(AboutRow, "about")
    return About(row.engine, row.engine_version, row.schema_version, row.min_code, tx.when(row.now))


@transaction(Mode.READ)
async def missing_tables(tx: Tx, *, now: datetime | None = None) -> list[str]:
    """The tables, views and indexes that the schema should have and the database does not."""
    tx.at(now)
    [row] = await tx.fetch_as(AboutRow, "about")
    dialect: Dialect = "sqlite" if row.engine == "SQLite" else "postgres"
    names = relations(dialect, min(row.schema_version, VERSION))
    return await tx.fetch_column("missing_relations", names=to_json(names))


@transaction(Mode.READ)
async def get(tx: Tx, id: JobId, *, now: datetime | None = None) -> Job:
    """One job, live or finished. Raises `JobNotFound`."""
    tx.at(now)
    return await seen_job(tx, id)


@transaction(Mode.READ)
async def was_issued(tx: Tx, id: JobId) -> bool:
    """Has the database given this id to a job or a workflow, or kept it for one?"""
    [last] = await tx.fetch_column("last_job_id")
    return 1 <= id_of(id) <= int(last)


async def seen_job(tx: Tx, id: JobId) -> Job:
    """A job that this tenant may look at. Raises `JobNotFound`."""
    id = id_of(id)
    rows: list[JobRow] = []
    if is_id(id):
        rows = await tx.fetch_as(JobRow, "get_job", id=id, tenant=tx.tenant)
    if not rows:
        raise JobNotFound(f"there is no job {id}")
    [job] = await jobs_of(tx, rows)
    return job


async def jobs_of(tx: Tx, rows: list[JobRow]) -> list[Job]:
    """These rows as records, with the leases of those that run."""
    running = [row.id for row in rows if row.state == State.RUNNING]
    holders: dict[tuple[int, int], Holder] = {}
    if running:
        for holder in await tx.fetch_as(Holder, "holders", ids=to_json(running)):
            holders[holder.job_id, holder.token] = holder
    return [_job(tx, row, holders.get((row.id, row.token))) for row in rows]


def _job(tx: Tx, row: JobRow, holder: Holder | None) -> Job:
    when = tx.when_or_none
    return Job(
        id=row.id, token=row.token, state=State(row.state), task=row.task, args_json=row.args,
        queue=row.queue, priority=row.priority, tenant=row.tenant, attempts=row.attempts,
        max_attempts=row.max_attempts, crashes=row.crashes, created_at=tx.when(row.created_at),
        queued_at=tx.when(row.queued_at), due_at=when(row.due_at),
        claimed_at=when(holder.claimed_at if holder else row.claimed_at),
        expires_at=when(holder.expires_at) if holder else None, finished_at=when(row.finished_at),
        duration_seconds=row.duration_seconds, worker=holder.worker if holder else row.worker,
        reason=row.reason, held=bool(row.held), cancel_requested=bool(row.cancel_requested),
        queue_paused=bool(row.queue_paused), unfinished_parents=row.unfinished_parents,
        timeout_seconds=row.timeout_seconds, retry_json=row.retry, metadata_json=row.metadata,
        unique_scope=row.unique_scope, unique_key=row.unique_key, unique_until=row.unique_until,
        result_json=row.result, error_json=row.error, gate=row.gate, gate_key=row.gate_key,
        needs=KINDS.get(row.needs), notes_json=row.notes, start_by=when(row.start_by),
        finish_by=when(row.finish_by),
    )  # fmt: skip


@transaction(Mode.READ)
async def timeline(tx: Tx, id: JobId, *, now: datetime | None = None) -> list[Event]:
    """Everything that has happened to a job, in order."""
    id = id_of(id)
    tx.at(now)
    job = await seen_job(tx, id)
    by = fired_by(job.metadata_json)
    story = [Event(job.created_at, "enqueued", 1, None, None if by is None else f"by {by}")]
    for row in await tx.fetch_as(EventRow, "job_events", id=id):
        claimed = msgspec.json.decode(row.detail).get("claimed_at") if row.detail else None
        if claimed:
            at = msgspec.convert(claimed, datetime)
            story.append(Event(at, "claimed", row.token, row.worker))
        story.append(Event(tx.when(row.at), row.kind, row.token, row.worker, row.detail))
    if job.claimed_at is not None:
        story.append(Event(job.claimed_at, "claimed", job.token, job.worker))
    progress = await _progress(tx, id)
    claims = [event for event in story if event.kind == "claimed"]
    if progress.reported_at is not None:
        story.append(_progressed(progress.reported_at, progress.message, claims, job.token))
    workers = {claim.token: claim.worker for claim in claims}
    for step in await _steps(tx, id):
        worker = workers.get(step.token)
        story.append(Event(step.recorded_at, "step", step.token, worker, step.name))
    if job.finished_at is not None:
        story.append(Event(job.finished_at, job.state, job.token, job.worker, job.reason))
    return sorted(story, key=lambda event: event.at)


def _progressed(at: datetime, message: str | None, claims: list[Event], token: int) -> Event:
    """The report belongs to the last attempt that began before it: the row of notes has the token
    of its last writer, which may have saved a checkpoint only."""
    claim = next((claim for claim in reversed(claims) if claim.at <= at), None)
    if claim is None:
        return Event(at, "progressed", token, None, message)
    return Event(at, "progressed", claim.token, claim.worker, message)


@transaction(Mode.READ)
async def attempts(tx: Tx, id: JobId, *, now: datetime | None = None) -> list[Attempt]:
    """Every attempt of a job, in order, those whose worker died included. Raises `JobNotFound`."""
    id = id_of(id)
    tx.at(now)
    job = await seen_job(tx, id)
    return attempts_of(
        job,
        [
            Event(tx.when(row.at), row.kind, row.token, row.worker, row.detail)
            for row in await tx.fetch_as(EventRow, "job_events", id=id)
        ],
    )


@transaction(Mode.READ)
async def progress(tx: Tx, id: JobId, *, now: datetime | None = None) -> Progress:
    """The last progress and the last checkpoint of the job."""
    id = id_of(id)
    tx.at(now)
    await seen_job(tx, id)
    return await _progress(tx, id)


@transaction(Mode.READ)
async def progress_many(
    tx: Tx, ids: Iterable[JobId], *, now: datetime | None = None
) -> dict[int, Progress]:
    """The last progress of those of these jobs that have reported some, without checkpoints."""
    wanted = sorted({id_of(id) for id in ids})
    check_int("the number of jobs", len(wanted), 0, MAX_PAGE)
    for_all_tenants("progress_many", tx.tenant)
    tx.at(now)
    rows = await tx.fetch("get_notes", ids=to_json([id for id in wanted if is_id(id)]))
    return {
        id: Progress(fraction, message, tx.when_or_none(reported_at))
        for id, fraction, message, reported_at in rows
        if reported_at is not None
    }


async def _progress(tx: Tx, id: int) -> Progress:
    for note in await tx.fetch_as(NoteRow, "get_note", id=id):
        reported_at, saved_at = tx.when_or_none(note.reported_at), tx.when_or_none(note.saved_at)
        return Progress(note.fraction, note.message, reported_at, note.checkpoint, saved_at)
    return Progress()


@transaction(Mode.READ)
async def steps(tx: Tx, id: JobId, *, now: datetime | None = None) -> list[Step]:
    """The steps that the job has recorded, in order."""
    id = id_of(id)
    tx.at(now)
    await seen_job(tx, id)
    return await _steps(tx, id)


async def _steps(tx: Tx, id: int) -> list[Step]:
    return [
        Step(step.name, step.function, step.token, tx.when(step.recorded_at), step.result)
        for step in await tx.fetch_as(StepRow, "job_steps", id=id)
    ]


@transaction(Mode.READ)
async def count_live(tx: Tx, *, now: datetime | None = None) -> list[Count]:
    """Counts of live jobs by queue, task, state and tenant."""
    tx.at(now)
    return [_count(row) for row in await tx.fetch_as(CountRow, "count_live", tenant=tx.tenant)]


@transaction(Mode.READ)
async def count_finished(
    tx: Tx, since: datetime, until: datetime, *, now: datetime | None = None
) -> list[Count]:
    """Counts of jobs that finished from `since` up to, but not including, `until`."""
    check_time("since", since)
    check_time("until", until)
    tx.at(now)
    rows = await tx.fetch_as(
        CountRow, "count_finished", since=tx.time(since), before=tx.time(until), tenant=tx.tenant
    )
    return [_count(row) for row in rows]


def _count(row: CountRow) -> Count:
    return Count(row.queue, row.task, State(row.state), row.tenant, row.jobs)


@transaction(Mode.READ)
async def oldest_ready(tx: Tx, *, now: datetime | None = None) -> list[OldestReady]:
    """For each queue with ready jobs: how long its oldest head of a lane has been ready."""
    for_all_tenants("oldest_ready", tx.tenant)
    tx.at(now)
    return [
        OldestReady(row.queue, tx.when(row.since), max(0.0, row.age_seconds))
        for row in await tx.fetch_as(OldestRow, "oldest_ready")
    ]


@transaction(Mode.READ)
async def paused_queues(tx: Tx, *, now: datetime | None = None) -> list[PausedQueue]:
    """The paused queues: since when, and why."""
    tx.at(now)
    return [
        PausedQueue(row.name, tx.when(row.paused_at), row.reason)
        for row in await tx.fetch_as(PausedRow, "paused_queues")
    ]
