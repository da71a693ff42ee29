"""Reads of jobs: one job, pages of jobs, timelines, counts. Nothing here writes."""

from collections.abc import Collection, Iterator
from datetime import datetime

import msgspec

from tenure.errors import InvalidInput, JobNotFound
from tenure.rules.job import (
    LIVE_STATES,
    Event,
    Job,
    Progress,
    State,
    Step,
    check_int,
    check_name,
    check_time,
    is_id,
)
from tenure.rules.ticks import fired_by
from tenure.store.session import Mode, Row, Tx, for_all_tenants, to_json, transaction

MAX_PAGE = 1000
SCAN_ROWS = 10_000
"""The most rows that one page reads, whatever the filter: a page is bounded work."""

_TOP = 2**53


class Page(msgspec.Struct, frozen=True):
    """Some jobs, newest first: iterate over the page, or use `jobs`.

    Pass `next` as `before` to get the next page; None means that there is none. A page may hold
    fewer jobs than its limit, even none, and still have a `next`: each page reads a bounded number
    of rows.
    """

    jobs: tuple[Job, ...]
    next: int | None

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)


class Count(msgspec.Struct, frozen=True):
    """The number of jobs that share these four values."""

    queue: str
    task: str
    state: State
    tenant: str
    jobs: int


class OldestReady(msgspec.Struct, frozen=True):
    """How long the oldest job at the head of one of the queue's lanes has been ready."""

    queue: str
    since: datetime
    age_seconds: float


class PausedQueue(msgspec.Struct, frozen=True):
    """A queue from which workers do not claim."""

    name: str
    paused_at: datetime
    reason: str | None


class About(msgspec.Struct, frozen=True):
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
    [(engine, version, schema, min_code, clock)] = await tx.fetch("about")
    return About(engine, version, schema, min_code, tx.when(clock))


@transaction(Mode.READ)
async def get(tx: Tx, id: int, *, now: datetime | None = None) -> Job:
    """One job, live or finished. Raises `JobNotFound`."""
    tx.at(now)
    return await seen_job(tx, id)


async def seen_job(tx: Tx, id: int) -> Job:
    """A job that this tenant may see. Raises `JobNotFound`."""
    rows = await tx.fetch("get_job", id=id, tenant=tx.tenant) if is_id(id) else []
    if not rows:
        raise JobNotFound(f"there is no job {id}")
    return (await _jobs(tx, rows))[0]


@transaction(Mode.READ)
async def list_jobs(
    tx: Tx,
    *,
    states: Collection[State] | None = None,
    queue: str | None = None,
    task: str | None = None,
    limit: int = 100,
    before: int | None = None,
    now: datetime | None = None,
) -> Page:
    """Jobs that match all filters, newest first, one bounded page at a time.

    Iterate over the page. Pass its `next` as `before` to get the next page, until it is None.
    """
    check_int("limit", limit, 1, MAX_PAGE)
    if before is not None:
        check_int("before", before, 1, _TOP)
    if queue is not None:
        check_name("queue", queue)
    if task is not None:
        check_name("task", task)
    wanted = frozenset(State) if states is None else frozenset(State(s) for s in states)
    if not wanted:
        raise InvalidInput("states is empty; leave it out for all states")
    tx.at(now)
    below = _TOP if before is None else before
    filters = {"tenant": tx.tenant, "queue": queue, "task": task, "below": below, "most": limit}
    rows: list[Row] = []
    bottom = 0
    for statement, extra in _walks(wanted):
        found = await tx.fetch(statement, **filters, **extra, scan=SCAN_ROWS)
        rows += found
        if len(found) == limit:
            reached = int(found[-1][0])
        else:
            floor = statement.removeprefix("list_") + "_floor"
            reached = await _walked_down_to(tx, floor, below, extra)
        bottom = max(bottom, reached)
    kept = sorted((row for row in rows if row[0] >= bottom), key=lambda row: -row[0])
    if len(kept) > limit:
        kept, bottom = kept[:limit], kept[limit - 1][0]
    return Page(tuple(await _jobs(tx, kept)), bottom or None)


def _walks(wanted: frozenset[State]) -> list[tuple[str, dict[str, object]]]:
    """The lists to read. Unsuccessful jobs have an index of their own."""
    walks: list[tuple[str, dict[str, object]]] = []
    if wanted & LIVE_STATES:
        walks.append(("list_live", {"states": " ".join(sorted(wanted & LIVE_STATES))}))
    finished = wanted - LIVE_STATES
    if State.SUCCEEDED in finished:
        walks.append(("list_finished", {"states": " ".join(sorted(finished))}))
    else:
        walks += [("list_unsuccessful", {"state": str(state)}) for state in sorted(finished)]
    return walks


async def _walked_down_to(tx: Tx, floor: str, below: int, extra: dict[str, object]) -> int:
    """The id at which a bounded walk stopped; 0 if it reached the end."""
    [(lowest, walked)] = await tx.fetch(floor, below=below, scan=SCAN_ROWS, **extra)
    return int(lowest) if walked >= SCAN_ROWS else 0


async def _jobs(tx: Tx, rows: list[Row]) -> list[Job]:
    running = [row[0] for row in rows if row[2] == State.RUNNING]
    holders: dict[tuple[int, int], Row] = {}
    if running:
        for holder in await tx.fetch("holders", ids=to_json(running)):
            holders[holder[0], holder[1]] = holder
    return [_job(tx, row, holders.get((row[0], row[1]))) for row in rows]


def _job(tx: Tx, row: Row, holder: Row | None) -> Job:
    when = tx.when_or_none
    return Job(
        id=row[0], token=row[1], state=State(row[2]), task=row[3], args=row[4], queue=row[5],
        priority=row[6], tenant=row[7], attempts=row[8], max_attempts=row[9], crashes=row[10],
        created_at=tx.when(row[11]), queued_at=tx.when(row[12]), due_at=when(row[13]),
        claimed_at=when(holder[4] if holder else row[14]),
        expires_at=when(holder[5]) if holder else None, finished_at=when(row[15]),
        duration_seconds=row[16], worker=holder[3] if holder else row[17], reason=row[18],
        held=bool(row[19]), cancel_requested=bool(row[20]), queue_paused=bool(row[21]),
        unfinished_parents=row[22], timeout_seconds=row[23], retry=row[24], metadata=row[25],
        unique_scope=row[26], unique_key=row[27], unique_until=row[28], result=row[29],
        error=row[30], gate=row[31], gate_key=row[32],
    )  # fmt: skip


@transaction(Mode.READ)
async def timeline(tx: Tx, id: int, *, now: datetime | None = None) -> list[Event]:
    """Everything that has happened to a job, in order."""
    tx.at(now)
    job = await seen_job(tx, id)
    by = fired_by(job.metadata)
    story = [Event(job.created_at, "enqueued", 1, None, None if by is None else f"by {by}")]
    for at, kind, token, worker, detail in await tx.fetch("job_events", id=id):
        claimed = msgspec.json.decode(detail).get("claimed_at") if detail else None
        if claimed:
            story.append(Event(msgspec.convert(claimed, datetime), "claimed", token, worker))
        story.append(Event(tx.when(at), kind, token, worker, detail))
    if job.claimed_at is not None:
        story.append(Event(job.claimed_at, "claimed", job.token, job.worker))
    progress = await _progress(tx, id)
    if progress.reported_at is not None:
        story.append(Event(progress.reported_at, "progressed", job.token, None, progress.message))
    story += [Event(s.recorded_at, "step", s.token, None, s.name) for s in await _steps(tx, id)]
    if job.finished_at is not None:
        story.append(Event(job.finished_at, job.state, job.token, job.worker, job.reason))
    return sorted(story, key=lambda event: event.at)


@transaction(Mode.READ)
async def progress(tx: Tx, id: int, *, now: datetime | None = None) -> Progress:
    """The last progress and the last checkpoint of the job."""
    tx.at(now)
    await seen_job(tx, id)
    return await _progress(tx, id)


async def _progress(tx: Tx, id: int) -> Progress:
    rows = await tx.fetch("get_note", id=id)
    if not rows:
        return Progress()
    fraction, message, reported_at, checkpoint, saved_at = rows[0]
    return Progress(
        fraction, message, tx.when_or_none(reported_at), checkpoint, tx.when_or_none(saved_at)
    )


@transaction(Mode.READ)
async def steps(tx: Tx, id: int, *, now: datetime | None = None) -> list[Step]:
    """The steps that the job has recorded, in order."""
    tx.at(now)
    await seen_job(tx, id)
    return await _steps(tx, id)


async def _steps(tx: Tx, id: int) -> list[Step]:
    return [
        Step(name, function, token, tx.when(at), result)
        for name, function, token, at, result in await tx.fetch("job_steps", id=id)
    ]


@transaction(Mode.READ)
async def count_live(tx: Tx, *, now: datetime | None = None) -> list[Count]:
    """Counts of live jobs by queue, task, state and tenant."""
    tx.at(now)
    return [_count(row) for row in await tx.fetch("count_live", tenant=tx.tenant)]


@transaction(Mode.READ)
async def count_finished(
    tx: Tx, since: datetime, until: datetime, *, now: datetime | None = None
) -> list[Count]:
    """Counts of jobs that finished from `since` up to, but not including, `until`."""
    check_time("since", since)
    check_time("until", until)
    tx.at(now)
    rows = await tx.fetch(
        "count_finished", since=tx.time(since), before=tx.time(until), tenant=tx.tenant
    )
    return [_count(row) for row in rows]


def _count(row: Row) -> Count:
    return Count(row[0], row[1], State(row[2]), row[3], row[4])


@transaction(Mode.READ)
async def oldest_ready(tx: Tx, *, now: datetime | None = None) -> list[OldestReady]:
    """For each queue with ready jobs: how long its oldest head of a lane has been ready."""
    for_all_tenants("oldest_ready", tx.tenant)
    tx.at(now)
    rows = await tx.fetch("oldest_ready")
    return [OldestReady(queue, tx.when(since), max(0.0, age)) for queue, since, age in rows]


@transaction(Mode.READ)
async def paused_queues(tx: Tx, *, now: datetime | None = None) -> list[PausedQueue]:
    """The paused queues: since when, and why."""
    tx.at(now)
    rows = await tx.fetch("paused_queues")
    return [PausedQueue(name, tx.when(at), reason) for name, at, reason in rows]
