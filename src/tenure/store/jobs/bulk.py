"""cancel, hold, unhold, move, replay and delete for up to a thousand jobs in one transaction.

Each job ends as it would by the operation on one job. Jobs are locked in the order of their ids,
then their tickets are taken. A replay of a node, or of a job whose key has a period, concerns more
rows: such a job is replayed by itself, in a transaction of its own.
"""

from collections.abc import Container, Iterable
from datetime import datetime

import msgspec

from tenure.errors import (
    InvalidInput,
    JobNotFound,
    KeyTaken,
    OutcomeUnknown,
    OutOfRange,
    StoreUnavailable,
)
from tenure.rules.job import Feature, Json, State, Unique, Until
from tenure.rules.limits import JobId, check_reason, id_of, is_id
from tenure.rules.record import Record
from tenure.store.jobs.operate import check_move, move_deadlines
from tenure.store.jobs.replay import replay
from tenure.store.keys import OUTLIVING, Key, free_keys_of, key_row, take_keys
from tenure.store.moves import (
    ROWS_PER_STATEMENT,
    add_events,
    add_tickets,
    finish_jobs,
    finished_before,
    note_new_tickets,
)
from tenure.store.notes import noted
from tenure.store.records import AddedTicket, FinishedJob, LockedJob
from tenure.store.rows import Finish, NewEvent, Ticket
from tenure.store.session import Mode, Scope, Tx, to_json, transaction
from tenure.store.workflows.act import before_waiting_nodes_end
from tenure.store.workflows.end import end_workflows
from tenure.store.workflows.nodes import take_node_tickets

MAX_JOBS = ROWS_PER_STATEMENT
"""How many jobs one call takes."""


class Changes(Record, msgspec.Struct, frozen=True):
    """What a change of many jobs did. Each job is in one of the three."""

    changed: tuple[int, ...] = ()
    unchanged: dict[int, str] = {}
    """Jobs that were already as wanted, or cannot be changed now, with the reason."""
    refused: dict[int, str] = {}
    """Jobs for which the operation on one job raises an error, with its message."""
    asked: tuple[int, ...] = ()
    """cancel: those of `changed` that run, and were asked to stop."""


class _Draft:
    """A `Changes` in the making."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.changed: set[int] = set()
        self.asked: set[int] = set()
        self.unchanged: dict[int, str] = {}
        self.refused: dict[int, str] = {}

    @property
    def _unknown(self) -> list[int]:
        known = self.changed | self.unchanged.keys() | self.refused.keys()
        return [id for id in self.ids if id not in known]

    @property
    def left(self) -> list[int]:
        """The ids of which nothing is known yet."""
        return list(filter(is_id, self._unknown))

    def refuse_left(self, message: str, *, but: Container[int] = ()) -> None:
        """Whatever was not found is refused, but for these."""
        self.refused |= {id: message.format(id=id) for id in self._unknown if id not in but}

    def end(self) -> Changes:
        """The record, each part in the order of the ids."""

        def ordered(ids: Iterable[int]) -> tuple[int, ...]:
            return tuple(sorted(ids))

        return Changes(ordered(self.changed), self.unchanged, self.refused, ordered(self.asked))


def _checked(ids: Iterable[JobId]) -> list[int]:
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InvalidInput("give the ids of the jobs as a list")
    found = sorted({id_of(id) for id in ids})
    if len(found) > MAX_JOBS:
        raise OutOfRange(f"at most {MAX_JOBS} jobs at a time, not {len(found)}; call it in parts")
    return found


async def _begin(tx: Tx, ids: list[int], now: datetime | None) -> _Draft:
    """What the first try of this call, whose COMMIT got no reply, has changed is known already."""
    tx.at(now)
    draft = _Draft(ids)
    if tx.repeat:
        done = await tx.fetch_column("done_jobs", ids=to_json(draft.left), request_id=tx.request_id)
        draft.changed.update(done)
    return draft


async def _lock(tx: Tx, draft: _Draft) -> list[LockedJob]:
    ids = to_json(draft.left)
    return await tx.fetch_as(LockedJob, "lock_live_jobs", ids=ids, tenant=tx.tenant)


async def _finished(tx: Tx, draft: _Draft) -> list[FinishedJob]:
    ids = to_json(draft.left)
    return await tx.fetch_as(FinishedJob, "finished_jobs", ids=ids, tenant=tx.tenant)


def _event(tx: Tx, job: LockedJob, kind: str, **detail: object) -> NewEvent:
    return NewEvent(job.id, job.token, kind, None, detail or None, request_id=tx.request_id)


_NO_JOB = "there is no job {id}"
_NO_LIVE_JOB = "there is no live job {id}; look at its state first"


@transaction(Mode.WRITE)
async def cancel_many(
    tx: Tx, ids: Iterable[JobId], *, reason: str = "cancelled", now: datetime | None = None
) -> Changes:
    """`cancel` for up to 1,000 jobs in one transaction. Running jobs are asked to stop."""
    check_reason(reason)
    draft = await _begin(tx, _checked(ids), now)
    draft.asked.update(draft.changed)  # only they have an event
    jobs = await _lock(tx, draft)
    waiting = [
        job.id for job in jobs if job.parked == "parents" and job.features & Feature.WORKFLOW
    ]
    await before_waiting_nodes_end(tx, waiting)
    taken = await take_node_tickets(tx, jobs)
    ending = [job for job in jobs if job.parked is not None or job.id in taken]
    ends = [Finish(job.id, job.token, State.CANCELLED, reason=reason) for job in ending]
    await finish_jobs(tx, ends)
    draft.changed.update(job.id for job in ending)
    running = [job for job in jobs if job.id not in draft.changed]
    asked = [job for job in running if not job.cancel_requested]
    if asked:
        await tx.fetch("request_cancels", ids=to_json([job.id for job in asked]), reason=reason)
        await tx.cancels_requested([job.id for job in asked])
        await add_events(tx, [_event(tx, job, "cancel requested", reason=reason) for job in asked])
    draft.asked.update(job.id for job in asked)
    draft.changed.update(draft.asked)
    draft.unchanged |= {job.id: "already asked to stop" for job in running if job not in asked}
    for ended in await _finished(tx, draft):
        if tx.repeat and ended.state == State.CANCELLED:  # by the first try, or it was before
            draft.changed.add(ended.id)
        else:
            draft.unchanged[ended.id] = f"already {ended.state}"
    draft.refuse_left(_NO_JOB)
    await end_workflows(tx)
    return draft.end()


@transaction(Mode.WRITE)
async def hold_many(
    tx: Tx, ids: Iterable[JobId], *, reason: str = "held", now: datetime | None = None
) -> Changes:
    """`hold` for up to 1,000 jobs in one transaction."""
    check_reason(reason)
    draft = await _begin(tx, _checked(ids), now)
    jobs = await _lock(tx, draft)
    draft.unchanged |= {job.id: "already held" for job in jobs if job.held}
    jobs = [job for job in jobs if not job.held]
    taken = await take_node_tickets(tx, jobs)
    await _set_held(tx, jobs, held=True, reason=reason, park=taken)
    await add_events(tx, [_event(tx, job, "held", reason=reason) for job in jobs])
    draft.changed.update(job.id for job in jobs)
    draft.refuse_left(_NO_LIVE_JOB)
    return draft.end()


@transaction(Mode.WRITE)
async def unhold_many(tx: Tx, ids: Iterable[JobId], *, now: datetime | None = None) -> Changes:
    """`unhold` for up to 1,000 jobs in one transaction."""
    draft = await _begin(tx, _checked(ids), now)
    jobs = await _lock(tx, draft)
    draft.unchanged |= {job.id: "not held" for job in jobs if not job.held}
    jobs = [job for job in jobs if job.held]
    await _set_held(tx, jobs, held=False, reason=None, park=set())
    tickets = [
        Ticket(job.id, job.token, due_at=_due(tx, job, None), reason="unheld")
        for job in jobs if job.parked == "held"
    ]  # fmt: skip
    if tickets:
        await add_tickets(tx, tickets)
    await add_events(tx, [_event(tx, job, "unheld") for job in jobs])
    draft.changed.update(job.id for job in jobs)
    draft.refuse_left(_NO_LIVE_JOB)
    return draft.end()


async def _set_held(
    tx: Tx, jobs: list[LockedJob], *, held: bool, reason: str | None, park: set[int]
) -> None:
    if jobs:
        ids, parked = to_json([job.id for job in jobs]), to_json(sorted(park))
        await tx.fetch("set_held_jobs", ids=ids, held=held, reason=reason, park=parked)


def _due(tx: Tx, job: LockedJob, wanted: datetime | None) -> object:
    return tx.time(wanted if wanted is not None else tx.when_or_none(job.due_at))


@transaction(Mode.WRITE)
async def move_many(
    tx: Tx,
    ids: Iterable[JobId],
    *,
    queue: str | None = None,
    priority: int | None = None,
    due_at: datetime | None = None,
    now: datetime | None = None,
) -> Changes:
    """`move` for up to 1,000 jobs in one transaction. They keep their order."""
    check_move(queue, priority, due_at)
    draft = await _begin(tx, _checked(ids), now)
    jobs = await _lock(tx, draft)
    parked = [job for job in jobs if job.parked is not None]
    if parked:
        await move_deadlines(tx, [job.id for job in parked], due_at)
        await tx.fetch(
            "change_queues", ids=to_json([job.id for job in parked]), queue=queue,
            priority=priority, change_due=due_at is not None, due_at=tx.time(due_at),
        )  # fmt: skip
    taken = await take_node_tickets(tx, jobs)
    placed = sorted((job for job in jobs if job.id in taken), key=lambda job: job.position or 0)
    if placed:
        await move_deadlines(tx, [job.id for job in placed], due_at)
        await add_tickets(tx, [
            Ticket(job.id, job.token, due_at=_due(tx, job, due_at), reason="moved", queue=queue,
                   priority=priority)
            for job in placed
        ])  # fmt: skip
    moved = [*parked, *placed]
    detail: dict[str, object] = {"queue": queue, "priority": priority}
    await add_events(tx, [_event(tx, job, "moved", **detail) for job in moved])
    draft.changed.update(job.id for job in moved)
    draft.unchanged |= {job.id: "running" for job in jobs if job.id not in draft.changed}
    draft.refuse_left(_NO_LIVE_JOB)
    return draft.end()


@transaction(Mode.WRITE)
async def delete_many(tx: Tx, ids: Iterable[JobId], *, now: datetime | None = None) -> Changes:
    """`delete` for up to 1,000 finished jobs in one transaction."""
    draft = await _begin(tx, _checked(ids), now)
    jobs = await _finished(tx, draft)
    nodes = [job.id for job in jobs if job.features & Feature.WORKFLOW]
    is_open = set(await tx.fetch_column("open_nodes", ids=to_json(nodes))) if nodes else set()
    message = "job {id} belongs to a workflow that has not ended; cancel that first"
    draft.refused |= {id: message.format(id=id) for id in sorted(is_open)}
    gone = [job.id for job in jobs if job.id not in is_open]
    if gone:
        await free_keys_of(tx, [job for job in jobs if job.id not in is_open])
        await tx.fetch("delete_finished_jobs", ids=to_json(gone))
        await tx.fetch("forget_jobs", ids=to_json(gone))
    draft.changed.update(gone)
    for job in await _lock(tx, draft):
        draft.refused[job.id] = f"job {job.id} is not finished; cancel it first"
    if tx.repeat:  # the first try, whose COMMIT got no reply, has removed them
        draft.changed.update(draft.left)
    draft.refuse_left(_NO_LIVE_JOB)
    return draft.end()


async def replay_many(
    scope: Scope, ids: Iterable[JobId], *, afresh: bool = False, now: datetime | None = None
) -> Changes:
    """`replay` for up to 1,000 finished jobs in one transaction, in the order of their ids.

    Nodes of workflows, and jobs whose unique key may outlive them, are replayed one by one
    afterwards.
    If the store is lost between, `OutcomeUnknown` says that some of the jobs were replayed.
    """
    checked = _checked(ids)
    draft = await scope.transact(lambda tx: _replay(tx, checked, afresh, now))
    for id in draft.left:
        try:
            await replay(scope, id, afresh=afresh, now=now)
            draft.changed.add(id)  # if it is live now, the replay of another node has opened it
        except (InvalidInput, JobNotFound, KeyTaken) as error:
            draft.refused[id] = str(error)
        except StoreUnavailable as error:
            if draft.changed:  # the transactions before this one have committed
                raise OutcomeUnknown(f"some of the jobs were replayed, then: {error}") from error
            raise
    return draft.end()


async def _replay(tx: Tx, ids: list[int], afresh: bool, now: datetime | None) -> _Draft:
    """Replay those jobs that concern no other rows. Other finished jobs are left."""
    draft = await _begin(tx, ids, now)
    jobs = {
        job.id: job for job in await _finished(tx, draft)
        if not job.features & Feature.WORKFLOW and job.unique_until not in OUTLIVING
    }  # fmt: skip
    for id, holder in (await _retake_keys(tx, list(jobs.values()))).items():
        key = jobs.pop(id).unique_key
        draft.refused[id] = (
            f"job {holder} holds the unique key {key!r}; cancel it or wait for its end"
        )
    if jobs:
        await _replay_jobs(tx, jobs, afresh)
    draft.changed.update(jobs)
    draft.unchanged |= {job.id: "already live" for job in await _lock(tx, draft)}
    draft.refuse_left(_NO_JOB, but=[job.id for job in await _finished(tx, draft)])
    return draft


async def _replay_jobs(tx: Tx, jobs: dict[int, FinishedJob], afresh: bool) -> None:
    anew = [job for job in jobs.values() if afresh or job.state == State.SUCCEEDED]
    for feature, statement in (
        (Feature.STEPS, "forget_steps_of"), (Feature.NOTES, "forget_checkpoints"),
    ):  # fmt: skip
        if having := [job.id for job in anew if job.features & feature]:
            await tx.fetch(statement, ids=to_json(having))
    parents = set(await tx.fetch_column("reopen_edges_of", ids=to_json(sorted(jobs))))
    rows = [{"id": id, "features": Feature.CHILDREN if id in parents else 0} for id in sorted(jobs)]
    added = await tx.fetch_as(AddedTicket, "replay_jobs", rows=to_json(rows))
    await note_new_tickets(tx, added)
    notes = await noted(tx, {job.id: job.features for job in jobs.values()})
    events = [finished_before(tx, job, notes) for job in jobs.values()]
    events += [
        NewEvent(job.id, job.token + 1, "replayed", request_id=tx.request_id)
        for job in jobs.values()
    ]
    await add_events(tx, events)


async def _retake_keys(tx: Tx, jobs: list[FinishedJob]) -> dict[int, int]:
    """Take the unique keys of these jobs. Returns the holders of those that another job has."""
    wanted: dict[Key, dict[str, object]] = {}
    keys: dict[int, Key] = {}
    for job in jobs:
        if job.unique_key is None or job.unique_scope is None or job.unique_until is None:
            continue
        scope, name = job.unique_scope, job.unique_key
        key = keys[job.id] = (job.tenant, scope, name)
        unique = Unique(key=name, scope=scope, until=Until(job.unique_until))
        row = key_row(key, job.id, unique, job.task, Json(job.args.encode()))
        wanted.setdefault(key, row)
    if not wanted:
        return {}
    holders = {key: held.id for key, held in (await take_keys(tx, wanted)).items()}
    return {id: holders[key] for id, key in keys.items() if holders[key] != id}
