"""What operators do to jobs and queues: cancel, hold, move, replay, delete, pause, prune.

Always the job row first, then its ticket, matching the token. A job that is missing, or belongs to
another tenant, raises `JobNotFound`.
"""

from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from tenure.errors import InvalidInput, JobNotFound, StoreBusy
from tenure.rules.job import (
    LONG_AGO,
    MAX_PRIORITY,
    MIN_PRIORITY,
    Feature,
    State,
    check_int,
    check_name,
    check_reason,
    check_seconds,
    check_time,
    is_id,
)
from tenure.store.gates.passing import put_in_line, stand_at_gates
from tenure.store.jobs.replay import ended_before, retake_key
from tenure.store.jobs.settle import add_events, finish_jobs
from tenure.store.look.workers import forget_dead
from tenure.store.rows import Ending, Happening, Ticket
from tenure.store.schedules.fire import KEEP_TICKS_SECONDS, forget_ticks
from tenure.store.session import (
    Mode,
    Row,
    Scope,
    Tx,
    for_all_tenants,
    to_json,
    transaction,
)
from tenure.store.workflows.act import (
    before_waiting_node_ends,
    forget_workflows,
    oldest_workflow,
    replay_node,
)
from tenure.store.workflows.end import end_workflows

PRUNE_BATCH = 1000
_PAUSE_WAIT_SECONDS = 5.0


@transaction(Mode.WRITE)
async def cancel(
    tx: Tx, id: int, *, reason: str = "cancelled", now: datetime | None = None
) -> State:
    """Cancel a job. Answers its state afterwards.

    `cancelled`: it will not run. `running`: its worker is asked to stop, at the next heartbeat.
    Another final state: it was over already, and nothing changed.
    """
    check_reason(reason)
    tx.at(now)
    job = await _lock(tx, id)
    if job is None:
        return await _final_state(tx, id)
    token, parked = job[1], job[6]
    if parked == "parents" and job[11] & Feature.WORKFLOW:
        await before_waiting_node_ends(tx, id)
    if parked is not None or await _take_ticket(tx, job):
        await finish_jobs(tx, [Ending(id, token, State.CANCELLED, reason=reason)])
        await end_workflows(tx)
        return State.CANCELLED
    if not job[8]:
        await tx.fetch("request_cancel", id=id, reason=reason)
        await add_events(tx, [Happening(id, token, "cancel requested", None, {"reason": reason})])
    return State.RUNNING


@transaction(Mode.WRITE)
async def hold(tx: Tx, id: int, *, reason: str = "held", now: datetime | None = None) -> bool:
    """Keep a job from being claimed until `unhold`. A running one is held when it comes back."""
    check_reason(reason)
    tx.at(now)
    if await _done_before(tx, id):
        return True
    job = await _lock_live(tx, id)
    if job[7]:
        return False
    park = await _take_ticket(tx, job)
    await tx.fetch("set_held", id=id, held=True, reason=reason, park=park)
    await add_events(tx, [Happening(id, job[1], "held", None, {"reason": reason}, call=tx.call)])
    return True


@transaction(Mode.WRITE)
async def unhold(tx: Tx, id: int, *, now: datetime | None = None) -> bool:
    """Let a held job go on: it is claimable at once, or when its due time comes."""
    tx.at(now)
    if await _done_before(tx, id):
        return True
    job = await _lock_live(tx, id)
    if not job[7]:
        return False
    token, due_at, parked = job[1], job[5], job[6]
    await tx.fetch("set_held", id=id, held=False, reason=None, park=False)
    if parked == "held":
        due = tx.time(tx.when_or_none(due_at))
        await put_in_line(tx, [Ticket(id, token, due_at=due, reason="unheld")])
    await add_events(tx, [Happening(id, token, "unheld", call=tx.call)])
    return True


@transaction(Mode.WRITE)
async def move(
    tx: Tx,
    id: int,
    *,
    queue: str | None = None,
    priority: int | None = None,
    due_at: datetime | None = None,
    now: datetime | None = None,
) -> bool:
    """Change queue, priority or due time: the live ticket is replaced, at the end of its line.

    Answers False, and changes nothing, when the job has no ticket because it is running. A held or
    waiting job keeps standing where it stands and changes where it will go.
    """
    if queue is not None:
        check_name("queue", queue)
    if priority is not None:
        check_int("priority", priority, MIN_PRIORITY, MAX_PRIORITY)
    if due_at is not None:
        check_time("due_at", due_at)
    if queue is None and priority is None and due_at is None:
        raise InvalidInput("move needs a new queue, priority or due_at")
    tx.at(now)
    if await _done_before(tx, id):
        return True
    job = await _lock_live(tx, id)
    token, parked = job[1], job[6]
    if parked is not None:
        await tx.fetch(
            "change_line", id=id, queue=queue, priority=priority, change_due=due_at is not None,
            due_at=tx.time(due_at),
        )  # fmt: skip
    elif await _take_ticket(tx, job):
        due = due_at if due_at is not None else tx.when_or_none(job[5])
        ticket = Ticket(
            id, token, due_at=tx.time(due), reason="moved", queue=queue, priority=priority
        )
        await put_in_line(tx, [ticket])
    else:
        return False
    detail: dict[str, object] = {"queue": queue, "priority": priority}
    await add_events(tx, [Happening(id, token, "moved", None, detail, call=tx.call)])
    return True


@transaction(Mode.WRITE)
async def replay(tx: Tx, id: int, *, afresh: bool = False, now: datetime | None = None) -> bool:
    """Run a finished job again: token + 1, attempts 0, its unique key retaken.

    A job that succeeded begins anew. Any other goes on with its steps and its checkpoint, unless
    `afresh` has them forgotten. Children that still wait wait for its new end. Answers False when
    the job is live already. Raises `KeyTaken` when another job holds its key. A node of a workflow
    opens it again: what was skipped or cancelled below the node waits once more.
    """
    tx.at(now)
    if await _done_before(tx, id):
        return True
    row = await _finished(tx, id)
    if row is None:
        await _lock_live(tx, id)
        return False
    if afresh or row[2] == State.SUCCEEDED:
        await _forget_work(tx, id, row[10])
    if row[10] & Feature.WORKFLOW:
        return await replay_node(tx, row)
    token = row[1]
    await retake_key(tx, row)
    waiting = await tx.fetch("reopen_edges", id=id)
    features = Feature.CHILDREN if waiting else 0
    await stand_at_gates(tx, await tx.fetch("replay", id=id, features=features))
    await add_events(
        tx, [ended_before(tx, row), Happening(id, token + 1, "replayed", call=tx.call)]
    )
    return True


async def _forget_work(tx: Tx, id: int, features: int) -> None:
    """What earlier attempts have left to go on from."""
    if features & Feature.STEPS:
        await tx.fetch("forget_steps", id=id)
    if features & Feature.NOTES:
        await tx.fetch("drop_notes", ids=to_json([id]))


@transaction(Mode.WRITE)
async def delete(tx: Tx, id: int, *, now: datetime | None = None) -> None:
    """Remove a finished job and its story for good. A live job is refused: cancel it first.

    So is a node of a workflow that has not ended: its children may want its result.
    """
    tx.at(now)
    row = await _finished(tx, id)
    if row is None:
        if tx.repeat and await _lock(tx, id) is None:
            return  # the first try, whose COMMIT got no answer, has removed it
        await _lock_live(tx, id)
        raise InvalidInput(f"job {id} is not finished; cancel it first")
    if row[10] & Feature.WORKFLOW and any(flow[3] for flow in await tx.fetch("node_of", id=id)):
        raise InvalidInput(f"job {id} belongs to a workflow that has not ended; cancel that first")
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
        return {row[0] for row in await tx.fetch("claims_in_flight")}

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
    """Let a paused queue be claimed from again. Answers whether it was paused."""
    for_all_tenants("resume", tx.tenant)
    check_name("queue", queue)
    tx.at(now)
    return bool(await tx.fetch("resume_queue", name=queue)) or tx.repeat


async def prune(
    scope: Scope,
    *,
    succeeded_seconds: float = 7 * 86_400,
    other_seconds: float = 30 * 86_400,
    now: datetime | None = None,
) -> int:
    """Remove finished jobs older than the retention, in batches; answers how many single rows.

    PostgreSQL drops whole days where it can, and prepares the partitions of the coming ones. The
    jobs of a workflow are kept until all of it goes, so long after its end.
    Workers that were last seen a day ago are forgotten, too, and ticks of schedules that were fired
    before the retention of succeeded jobs, or a day ago if that is shorter, and whose job is
    finished.
    """
    for_all_tenants("prune", scope.tenant)
    check_seconds("succeeded_seconds", succeeded_seconds)
    check_seconds("other_seconds", other_seconds)

    async def read_clock(tx: Tx) -> datetime:
        tx.at(now)
        [(clock,)] = await tx.fetch("clock")
        return tx.when(clock)

    clock = await scope.transact(read_clock, Mode.READ)  # not this host's, which may be wrong
    cuts = _Cuts(
        clock - timedelta(seconds=succeeded_seconds), clock - timedelta(seconds=other_seconds)
    )

    async def add_days(tx: Tx) -> None:
        tx.at(now)
        await tx.fetch("add_history_days", days=3)

    async def drop_days(tx: Tx) -> int:
        tx.at(now)
        before = await oldest_workflow(tx, min(cuts))
        [(dropped,)] = await tx.fetch("drop_history_days", before=tx.time(before))
        return int(dropped)

    async def stretches(tx: Tx) -> list[Row]:
        tx.at(now)
        return await tx.fetch("history_stretches", latest=tx.time(max(cuts)))

    await scope.transact(add_days)
    removed = await forget_workflows(scope, *cuts, now=now)
    if await scope.transact(drop_days):
        await _prune_orphans(scope)
    for start, stop in await scope.transact(stretches, Mode.READ):
        removed += await _prune_stretch(scope, start, stop, cuts, now)
    await _prune_keys(scope, now)
    kept = timedelta(seconds=max(succeeded_seconds, KEEP_TICKS_SECONDS))
    await forget_ticks(scope, clock - kept, PRUNE_BATCH)
    await scope.transact(partial(forget_dead, now=now))
    return removed


class _Cuts(NamedTuple):
    """Jobs that finished before these moments are due to go."""

    succeeded: datetime
    other: datetime


async def _prune_stretch(
    scope: Scope, start: object, stop: object, cuts: _Cuts, now: datetime | None
) -> int:
    """Walk along the finished jobs of a stretch of time, once, and remove those that are due."""
    removed = after = 0
    while True:

        async def step(tx: Tx, start: object = start, after: int = after) -> list[Row]:
            tx.at(now)
            await tx.fetch("walk_by_index")
            rows = await tx.fetch(
                "prune_finished", start=start, stop=stop, after=after, most=PRUNE_BATCH,
                succeeded_before=tx.time(cuts.succeeded), other_before=tx.time(cuts.other),
            )  # fmt: skip
            if gone := [row[0] for row in rows if row[0] is not None]:
                await tx.fetch("forget_jobs", ids=to_json(gone))
            return rows

        rows = await scope.transact(step)
        reached = [row for row in rows if row[0] is None]
        if not reached:
            return removed
        [(_, start, after)] = reached
        removed += len(rows) - 1


async def _prune_keys(scope: Scope, now: datetime | None) -> None:
    """Give back the unique keys whose period is over, in batches."""
    after: object = None
    while True:

        async def step(tx: Tx, after: object = after) -> list[Row]:
            tx.at(now)
            since = tx.time(LONG_AGO) if after is None else after
            return await tx.fetch("prune_keys", after=since, most=PRUNE_BATCH)

        rows = await scope.transact(step)
        if not rows:
            return
        after = max(row[0] for row in rows)


async def _prune_orphans(scope: Scope) -> None:
    """Forget the jobs of dropped days: a walk along the ids of all that has a story, in batches."""
    walked: int | None = 0
    while walked is not None:
        after = walked

        async def walk(tx: Tx, after: int = after) -> int | None:
            [(last,)] = await tx.fetch("prune_orphans", after=after, most=PRUNE_BATCH)
            return None if last is None else int(last)

        walked = await scope.transact(walk)


async def _done_before(tx: Tx, id: int) -> bool:
    """Did the first try of this call, whose COMMIT got no answer, land?"""
    return tx.repeat and bool(await tx.fetch("events_of_call", id=id, call=tx.call))


async def _lock(tx: Tx, id: int) -> Row | None:
    rows = await tx.fetch("lock_job", id=id, tenant=tx.tenant) if is_id(id) else []
    return rows[0] if rows else None


async def _finished(tx: Tx, id: int) -> Row | None:
    rows = await tx.fetch("finished_job", id=id, tenant=tx.tenant) if is_id(id) else []
    return rows[0] if rows else None


async def _lock_live(tx: Tx, id: int) -> Row:
    job = await _lock(tx, id)
    if job is None:
        raise JobNotFound(f"there is no live job {id}; look at its state first")
    return job


async def _final_state(tx: Tx, id: int) -> State:
    found = await _finished(tx, id)
    if found is None:
        raise JobNotFound(f"there is no job {id}")
    return State(found[2])


async def _take_ticket(tx: Tx, job: Row) -> bool:
    """Take the job's live ticket, from `due` first and then, in a later statement, from `ready`."""
    id, token, queue, priority, place, due_at = job[:6]
    gate, key = job[9:11]
    if due_at is not None and await tx.fetch("take_due_ticket", id=id, token=token, due_at=due_at):
        return True
    if place is None:
        return False
    if gate is not None:
        return bool(
            await tx.fetch(
                "take_gated_ticket", id=id, token=token, queue=queue, gate=gate, key=key,
                priority=priority, place=place,
            )
        )  # fmt: skip
    return bool(
        await tx.fetch(
            "take_ready_ticket", id=id, token=token, queue=queue, priority=priority, place=place
        )
    )
