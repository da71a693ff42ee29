"""What operators do to jobs and queues: cancel, hold, move, replay, delete, pause, prune.

Always the job row first, then its ticket, matching the token. A job that is missing, or belongs to
another tenant, raises `JobNotFound`.
"""

from datetime import datetime

from tenure.errors import InvalidInput, JobNotFound, StoreBusy
from tenure.rules.job import Feature, State
from tenure.rules.limits import (
    MAX_PRIORITY,
    MIN_PRIORITY,
    JobId,
    check_int,
    check_name,
    check_reason,
    check_time,
    id_of,
    is_id,
)
from tenure.store.keys import free_keys_of
from tenure.store.moves import add_events, add_tickets, finish_jobs
from tenure.store.records import FinishedJob, LockedJob
from tenure.store.rows import Finish, NewEvent, Ticket
from tenure.store.session import (
    Mode,
    Scope,
    Tx,
    for_all_tenants,
    to_json,
    transaction,
)
from tenure.store.workflows.act import before_waiting_nodes_end
from tenure.store.workflows.end import end_workflows
from tenure.store.workflows.records import NodeOf

_PAUSE_WAIT_SECONDS = 5.0


@transaction(Mode.WRITE)
async def cancel(
    tx: Tx, id: JobId, *, reason: str = "cancelled", now: datetime | None = None
) -> State:
    """Cancel a job. Returns its state afterwards.

    `cancelled`: it will not run. `running`: its worker is told at once, and stops it. Another
    final state: it had finished before, and nothing changed.
    """
    check_reason(reason)
    id = id_of(id)
    tx.at(now)
    job = await lock_job(tx, id)
    if job is None:
        return await _final_state(tx, id)
    if job.parked == "parents" and job.features & Feature.WORKFLOW:
        await before_waiting_nodes_end(tx, [id])
    if job.parked is not None or await take_ticket(tx, job):
        await finish_jobs(tx, [Finish(id, job.token, State.CANCELLED, reason=reason)])
        if tx.workflow_news is not None:
            await end_workflows(tx)
        return State.CANCELLED
    if not job.cancel_requested:
        await tx.fetch("request_cancel", id=id, reason=reason)
        await tx.cancels_requested([id])
        detail: dict[str, object] = {"reason": reason}
        await add_events(tx, [NewEvent(id, job.token, "cancel requested", None, detail)])
    return State.RUNNING


@transaction(Mode.WRITE)
async def hold(tx: Tx, id: JobId, *, reason: str = "held", now: datetime | None = None) -> bool:
    """Keep a job from being claimed until `unhold`. A running one is held when it comes back."""
    check_reason(reason)
    id = id_of(id)
    tx.at(now)
    if await done_before(tx, id):
        return True
    job = await lock_live_job(tx, id)
    if job.held:
        return False
    park = await take_ticket(tx, job)
    await tx.fetch("set_held", id=id, held=True, reason=reason, park=park)
    detail: dict[str, object] = {"reason": reason}
    await add_events(tx, [NewEvent(id, job.token, "held", None, detail, request_id=tx.request_id)])
    return True


@transaction(Mode.WRITE)
async def unhold(tx: Tx, id: JobId, *, now: datetime | None = None) -> bool:
    """Let a held job go on: it is claimable at once, or when its due time comes."""
    id = id_of(id)
    tx.at(now)
    if await done_before(tx, id):
        return True
    job = await lock_live_job(tx, id)
    if not job.held:
        return False
    await tx.fetch("set_held", id=id, held=False, reason=None, park=False)
    if job.parked == "held":
        due = tx.time(tx.when_or_none(job.due_at))
        await add_tickets(tx, [Ticket(id, job.token, due_at=due, reason="unheld")])
    await add_events(tx, [NewEvent(id, job.token, "unheld", request_id=tx.request_id)])
    return True


@transaction(Mode.WRITE)
async def move(
    tx: Tx,
    id: JobId,
    *,
    queue: str | None = None,
    priority: int | None = None,
    due_at: datetime | None = None,
    now: datetime | None = None,
) -> bool:
    """Change queue, priority or due time: a new ticket at the end of its queue replaces the old.

    Returns False, and changes nothing, if the job has no ticket because it is running. A held or
    waiting job stays held or waiting, and uses the new values once it is queued. If the job is due
    later than before, its deadlines move along: it has as long to start and to finish as before.
    """
    check_move(queue, priority, due_at)
    id = id_of(id)
    tx.at(now)
    if await done_before(tx, id):
        return True
    job = await lock_live_job(tx, id)
    if job.parked is not None:
        await move_deadlines(tx, [id], due_at)
        await tx.fetch(
            "change_queue", id=id, queue=queue, priority=priority, change_due=due_at is not None,
            due_at=tx.time(due_at),
        )  # fmt: skip
    elif await take_ticket(tx, job):
        await move_deadlines(tx, [id], due_at)
        due = due_at if due_at is not None else tx.when_or_none(job.due_at)
        ticket = Ticket(
            id, job.token, due_at=tx.time(due), reason="moved", queue=queue, priority=priority
        )
        await add_tickets(tx, [ticket])
    else:
        return False
    detail: dict[str, object] = {"queue": queue, "priority": priority}
    await add_events(tx, [NewEvent(id, job.token, "moved", None, detail, request_id=tx.request_id)])
    return True


async def move_deadlines(tx: Tx, ids: list[int], due_at: datetime | None) -> None:
    """(!) Before the due time changes."""
    if due_at is not None and ids:
        await tx.fetch("move_deadlines", ids=to_json(ids), due_at=tx.time(due_at))


def check_move(queue: str | None, priority: int | None, due_at: datetime | None) -> None:
    """Accept what `move` can change; at least one of them."""
    if queue is not None:
        check_name("queue", queue)
    if priority is not None:
        check_int("priority", priority, MIN_PRIORITY, MAX_PRIORITY)
    if due_at is not None:
        check_time("due_at", due_at)
    if queue is None and priority is None and due_at is None:
        raise InvalidInput("move needs a new queue, priority or due_at")


@transaction(Mode.WRITE)
async def delete(tx: Tx, id: JobId, *, now: datetime | None = None) -> None:
    """Remove a finished job and its story for good, and free its unique key, if it has one.

    A live job is refused: cancel it first. So is a node of a workflow that has not ended: its
    children may want its result.
    """
    id = id_of(id)
    tx.at(now)
    job = await finished_job(tx, id)
    if job is None:
        if tx.repeat and await lock_job(tx, id) is None:
            return  # the first try, whose COMMIT got no answer, has removed it
        await lock_live_job(tx, id)
        raise InvalidInput(f"job {id} is not finished; cancel it first")
    if job.features & Feature.WORKFLOW and any(
        node.is_open for node in await tx.fetch_as(NodeOf, "node_of", id=id)
    ):
        raise InvalidInput(f"job {id} belongs to a workflow that has not ended; cancel that first")
    await free_keys_of(tx, [job])
    await tx.fetch("delete_finished", id=id)
    await tx.fetch("forget_jobs", ids=to_json([id]))


async def pause(
    scope: Scope, queue: str, *, reason: str | None = None, now: datetime | None = None
) -> None:
    """Stop claims from a queue, durably. Once this has returned, no claim from it commits."""
    for_all_tenants("pause", scope.tenant)
    check_name("queue", queue)
    if reason is not None:
        check_reason(reason)

    async def write(tx: Tx) -> None:
        tx.at(now)
        await tx.fetch("pause_queue", name=queue, reason=reason)

    async def in_flight(tx: Tx) -> set[str]:
        return set(await tx.fetch_column("claims_in_flight"))

    await scope.transact(write)
    older = await scope.transact(in_flight, Mode.READ)
    waited = 0.0
    while older:
        if waited > _PAUSE_WAIT_SECONDS:
            raise StoreBusy(f"queue {queue} is paused, but a claim from before is still open")
        await scope.session.rest(0.005)
        waited += 0.005
        older &= await scope.transact(in_flight, Mode.READ)


@transaction(Mode.WRITE)
async def resume(tx: Tx, queue: str, *, now: datetime | None = None) -> bool:
    """Let workers claim from a paused queue again. Returns whether it was paused."""
    for_all_tenants("resume", tx.tenant)
    check_name("queue", queue)
    tx.at(now)
    resumed = await tx.fetch_column("resume_queue", name=queue)
    await tx.queues_ready(resumed)
    return bool(resumed) or tx.repeat


async def done_before(tx: Tx, id: int) -> bool:
    """Did the first try of this call, whose COMMIT got no answer, land?"""
    return tx.repeat and bool(await tx.fetch("events_of_request", id=id, request_id=tx.request_id))


async def lock_job(tx: Tx, id: int) -> LockedJob | None:
    """Lock a live job of this tenant, if there is one."""
    if not is_id(id):
        return None
    jobs = await tx.fetch_as(LockedJob, "lock_job", id=id, tenant=tx.tenant)
    return jobs[0] if jobs else None


async def finished_job(tx: Tx, id: int) -> FinishedJob | None:
    """Lock a finished job of this tenant, if there is one."""
    if not is_id(id):
        return None
    jobs = await tx.fetch_as(FinishedJob, "finished_job", id=id, tenant=tx.tenant)
    return jobs[0] if jobs else None


async def lock_live_job(tx: Tx, id: int) -> LockedJob:
    """Lock a live job. Raises `JobNotFound`."""
    job = await lock_job(tx, id)
    if job is None:
        raise JobNotFound(f"there is no live job {id}; look at its state first")
    return job


async def _final_state(tx: Tx, id: int) -> State:
    found = await finished_job(tx, id)
    if found is None:
        if tx.repeat:  # the first try, whose COMMIT got no reply, has cancelled it; it is not kept
            return State.CANCELLED
        raise JobNotFound(f"there is no job {id}")
    return State(found.state)


async def take_ticket(tx: Tx, job: LockedJob) -> bool:
    """Take the job's live ticket, from `due` first and then, in a later statement, from `ready`."""
    named = {"id": job.id, "token": job.token}
    if job.due_at is not None and await tx.fetch("take_due_ticket", due_at=job.due_at, **named):
        return True
    if job.position is None:
        return False
    ticket = {
        "queue": job.queue, "needs": job.needs, "priority": job.priority, "position": job.position,
        **named,
    }  # fmt: skip
    if job.gate is not None:
        return bool(await tx.fetch("take_gated_ticket", gate=job.gate, key=job.gate_key, **ticket))
    return bool(await tx.fetch("take_ready_ticket", **ticket))
