"""The facts that tell where a job is and why it does not run, each set from one snapshot."""

from datetime import datetime

from tenure.rules.gates import MAX_BEFORE, GateWait, Limits
from tenure.rules.job import Job, State
from tenure.rules.limits import JobId
from tenure.rules.why import MAX_AHEAD, Facts, Line, RunningTask, explain, serving
from tenure.store.look.jobs import seen_job
from tenure.store.look.workers import seen_workers
from tenure.store.session import Mode, Tx, for_all_tenants, transaction

MAX_RUNNING = 10_000
"""How many running jobs are asked for their tasks."""


@transaction(Mode.READ)
async def why(tx: Tx, id: JobId, *, now: datetime | None = None) -> str:
    """Where the job is, and why it does not run, in words. Raises `JobNotFound`."""
    tx.at(now)
    return explain(await facts(tx, id))


@transaction(Mode.READ)
async def gate_wait(tx: Tx, id: JobId, *, now: datetime | None = None) -> GateWait | None:
    """How a job waits at its gate; None when it waits at no gate. Raises `JobNotFound`."""
    for_all_tenants("gate_wait", tx.tenant)
    tx.at(now)
    return await gate_wait_of(tx, await seen_job(tx, id))


async def facts(tx: Tx, id: JobId) -> Facts:
    """What `explain` needs to know of a job: at most four statements."""
    job = await seen_job(tx, id)
    if job.state is State.RUNNING:
        workers = await seen_workers(tx) if tx.tenant is None else None
        return Facts(job, await _clock(tx), workers=workers)
    if job.state not in (State.SCHEDULED, State.QUEUED):
        return Facts(job)
    now = None if job.due_at is None else await _clock(tx)
    is_due = now is None or job.due_at is None or job.due_at <= now
    if job.held or not is_due:
        return Facts(job, now)
    if job.queue_paused:
        return Facts(job, now, pause_reason=await _pause_reason(tx, job.queue))
    if tx.tenant is not None:  # workers and gates concern all tenants
        return Facts(job, now)
    workers = await seen_workers(tx)
    if job.due_at is not None:
        return Facts(job, now, workers=workers, file=tx.file)
    if job.gate is not None:
        return Facts(job, workers=workers, wait=await gate_wait_of(tx, job), file=tx.file)
    line = await _line(tx, job) if serving(job, workers) else None
    return Facts(job, workers=workers, line=line, file=tx.file)


async def _line(tx: Tx, job: Job) -> Line:
    """What is before a job: other tickets, and the jobs that have the slots."""
    [(ahead,)] = await tx.fetch("ahead_of_job", id=job.id, most=MAX_AHEAD + 1)
    running = await tx.fetch_as(RunningTask, "running_tasks", most=MAX_RUNNING)
    return Line(ahead, tuple(running))


async def _clock(tx: Tx) -> datetime:
    [(now,)] = await tx.fetch("clock")
    return tx.when(now)


async def _pause_reason(tx: Tx, queue: str) -> str | None:
    paused = await tx.fetch("paused_queues")
    return next((reason for name, _, reason in paused if name == queue), None)


async def gate_wait_of(tx: Tx, job: Job) -> GateWait | None:
    """A part of `gate_wait`, of `why` and of `health_facts`."""
    rows = await tx.fetch("gate_of_job", id=job.id) if job.gate is not None else []
    if not rows:
        return None
    position, max_running, rate, per_seconds, burst, keyed, running, starts, age_seconds = rows[0]
    if position is None:
        return None
    limits = Limits(
        max_running=max_running, rate=rate, per_seconds=per_seconds or 1.0, burst=burst,
        keyed=bool(keyed),
    )  # fmt: skip
    [(before,)] = await tx.fetch(
        "before_job", queue=job.queue, gate=job.gate, key=job.gate_key, priority=job.priority,
        position=position, most=MAX_BEFORE,
    )  # fmt: skip
    seconds = 0.0
    if limits.rate is not None:
        seconds = limits.seconds_to_start(limits.filled(starts, age_seconds or 0.0))
    return GateWait(job.gate or "", running, limits, before, seconds)
