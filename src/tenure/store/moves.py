"""The verbs that move rows: every operation that changes jobs ends here.

    insert_new       new jobs, with their tickets and parents
    add_tickets      a new ticket for a live job, at its gate if it has one
    finish           jobs move to history; their keys are freed, their children are told, and the
                     hooks of failures are enqueued
    free_children    children whose parents have finished get tickets, or finish themselves
    count_ends       statistics of jobs that no worker has settled
    add_events       entries of the jobs' timelines
    drop_leases      leases without live jobs are deleted

They run inside the transaction of their caller, and never open one. What the end of a node means
for its workflow is left to `end_workflows`, which the caller runs last.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from tenure.errors import InvalidInput, JobNotFound, TenantMismatch
from tenure.rules.job import Feature, NewJob, State, When
from tenure.rules.lifecycle import Ends, HeldJob, Move, Settlement, after_parents
from tenure.rules.statistics import WRITE_SECONDS, Counted
from tenure.store.records import (
    AddedTicket,
    EndedJob,
    FinishedJob,
    FreedChild,
    LeasedJob,
    MovedJob,
)
from tenure.store.rows import Finish, Freed, NewEvent, Ticket
from tenure.store.session import Done, Row, Tx, WorkflowNews, to_json
from tenure.store.templates import jobs_of_hooks

ROWS_PER_STATEMENT = 1000
_PARENT_ROUNDS = 3
_RELEASES = Feature.KEY | Feature.CHILDREN
"""Jobs with one of these have rows in other tables to release when they finish."""
_NOT_WELL = frozenset({State.FAILED, State.CANCELLED})

T = TypeVar("T")
Numbered = list[tuple[int, NewJob]]


def chunks(items: list[T]) -> Iterator[list[T]]:
    """The items in parts that one statement takes."""
    for start in range(0, len(items), ROWS_PER_STATEMENT):
        yield items[start : start + ROWS_PER_STATEMENT]


# --- new jobs -------------------------------------------------------------------------------------


def stamp(job: NewJob, tenant: str | None) -> NewJob:
    """The job with the tenant of the store; one of another tenant is refused."""
    if not isinstance(job, NewJob):
        raise InvalidInput(f"enqueue takes NewJob records, not {type(job).__name__}")
    if tenant is None or job.tenant == tenant:
        return job
    if job.tenant:
        raise TenantMismatch(
            f"this store works for tenant {tenant!r}; it cannot enqueue for {job.tenant!r}"
        )
    return msgspec.structs.replace(job, tenant=tenant)


async def insert_new(tx: Tx, new: Numbered) -> None:
    """Write these jobs, with their tickets, also at gates, and their parents."""
    for part in chunks(new):
        await tx.insert_jobs(part)
    special = [(id, job) for id, job in new if job.parents or job.gate is not None]
    if special:
        await _insert_special(tx, special)


async def _insert_special(tx: Tx, new: Numbered) -> None:
    gated = [id for id, job in new if job.gate is not None]
    for part in chunks(gated):
        await add_gate_tickets(tx, part)
    children = {id: job for id, job in new if job.parents}
    if children:
        await _join_parents(tx, children)


async def _join_parents(tx: Tx, children: dict[int, NewJob]) -> None:
    """Tie children to their parents. Parents that are final already count as such at once.

    Every parent is locked where it is, live or in history, before the edges are written: one that
    settles, is replayed or deleted at the same time waits, or is seen.
    """
    wanted = {(parent, job.tenant) for job in children.values() for parent in job.parents}
    rows = to_json([{"id": id, "tenant": tenant} for id, tenant in sorted(wanted)])
    missing = {id for id, _ in wanted}
    torn = {id for id in missing if len({tenant for other, tenant in wanted if other == id}) > 1}
    for _ in range(_PARENT_ROUNDS):  # a replay moves a parent from history to live between the two
        for lock in ("mark_parents", "lock_finished_parents"):
            missing -= set(await tx.fetch_column(lock, rows=rows))
        if not missing:
            break
    missing |= torn  # wanted for two tenants: for one of them it does not exist
    if missing:
        raise JobNotFound(
            f"parent {min(missing)} does not exist for this tenant; enqueue parents first"
        )
    edges = [
        {"job_id": id, "parent_id": parent}
        for id, job in children.items()
        for parent in dict.fromkeys(job.parents)
    ]
    await tx.fetch("add_parents", rows=to_json(edges))
    await free_children(tx, list(children))


# --- tickets --------------------------------------------------------------------------------------


async def add_tickets(tx: Tx, tickets: list[Ticket]) -> None:
    """retry, snooze, release, sweep, unhold, move, free: a new ticket, at its gate if any."""
    await note_new_tickets(tx, await tx.fetch_as(AddedTicket, "add_tickets", rows=to_json(tickets)))


async def note_new_tickets(tx: Tx, tickets: list[AddedTicket]) -> None:
    """promote, replay and the others: tell workers of new tickets; those of jobs with a gate are
    still to be written."""
    if tickets:
        await tx.tickets_added(tickets)
    gated = [ticket.id for ticket in tickets if ticket.features & Feature.GATE]
    if gated:
        await add_gate_tickets(tx, gated)


async def add_gate_tickets(tx: Tx, ids: list[int]) -> None:
    """enqueue and all others that queue jobs: write tickets at gates, and turns for their lines."""
    tx.gates.there = True
    queues = await tx.fetch_column("add_gate_tickets", ids=to_json(ids))
    if queues:
        await tx.gates_changed(queues)


async def leave_gates(tx: Tx, lines: Collection[Row]) -> None:
    """Attempts of jobs of these lines have ended: others may come, once this is committed."""
    tx.gates.there = True
    await tx.leave_gates(lines)


# --- ends -----------------------------------------------------------------------------------------


async def finish_succeeded(
    tx: Tx, worker: str, by_lease: Mapping[int, Sequence[Done]]
) -> set[tuple[int, int]]:
    """succeed: move the jobs of these leases to history. Returns the (id, token) that moved."""
    moved = await tx.succeed_jobs(worker, by_lease)
    if moved.lines:
        await leave_gates(tx, moved.lines)
    finished = [(job, State.SUCCEEDED) for job in moved.jobs if job.features & _RELEASES]
    if finished:
        await free_children(tx, await _release(tx, finished))
    await _forget_unkept(tx, moved.jobs)
    return {(job.id, job.token) for job in moved.jobs}


async def finish_jobs(tx: Tx, finishes: list[Finish]) -> set[tuple[int, int]]:
    """Move jobs to history, and release their keys, children and permits. Returns the moved jobs.

    `end_workflows` decides what this means for workflows, once the transaction has all its locks.
    """
    landed, children = await finish(tx, finishes)
    await free_children(tx, children)
    return landed


async def finish(tx: Tx, finishes: list[Finish]) -> tuple[set[tuple[int, int]], list[int]]:
    """Move jobs to history. Returns the moved jobs, and the children that may be free now."""
    if not finishes:
        return set(), []
    by_id = {each.id: each for each in finishes}
    moved = await tx.finish_jobs(to_json(finishes))
    if moved.lines:
        await leave_gates(tx, moved.lines)
    finished = [(job, by_id[job.id].state) for job in moved.jobs if job.features & _RELEASES]
    children = await _release(tx, finished)
    await _forget_unkept(tx, moved.jobs)
    await count_ends(
        tx,
        Counter(
            (job.queue, job.task, str(by_id[job.id].state))
            for job in moved.jobs if by_id[job.id].lease is None
        ),
    )  # fmt: skip
    hooks = [job for each in moved.jobs if each.calls for job in jobs_of_hooks(each.calls)]
    if hooks:
        await insert_new(tx, list(zip(await tx.draw_ids(len(hooks)), hooks, strict=True)))
    return {(job.id, job.token) for job in moved.jobs}, children


async def count_ends(tx: Tx, ends: Mapping[tuple[str, str, str], int]) -> None:
    """sweep, cancel, skip: count ends by queue, task and outcome, in their own transaction.

    An attempt that is settled is counted by the process that settles it: see rules/statistics.py.
    """
    if ends:
        rows = [
            Counted(queue, task, outcome, count)
            for (queue, task, outcome), count in sorted(ends.items())
        ]
        await tx.fetch(
            "write_statistics", rows=to_json(rows), span=WRITE_SECONDS, process=None, at=None,
            adds=True,
        )  # fmt: skip


async def _forget_unkept(tx: Tx, jobs: Sequence[MovedJob | EndedJob]) -> None:
    """Of a job that is not kept, nothing else is kept either."""
    gone = [job.id for job in jobs if not job.kept]
    if gone:
        await tx.fetch("forget_jobs", ids=to_json(gone))


async def _release(tx: Tx, finished: Sequence[tuple[MovedJob | EndedJob, State]]) -> list[int]:
    """Release keys, write the end for children. Returns the children."""
    keyed = [
        key_end(job.id, job.key, state) for job, state in finished
        if job.features & Feature.KEY and job.key is not None
    ]  # fmt: skip
    if keyed:
        await tx.fetch("release_keys", rows=to_json(keyed))
    parents = [
        {"id": job.id, "state": state} for job, state in finished
        if job.features & Feature.CHILDREN
    ]  # fmt: skip
    if not parents:
        return []
    await tx.require_read_committed()
    children = set(await tx.fetch_column("note_parent_ends", rows=to_json(parents)))
    lost = {
        job.id: state for job, state in finished
        if job.features & Feature.WORKFLOW and state in _NOT_WELL
    }  # fmt: skip
    over = {-id for id in children if id < 0}
    if over or lost:
        tx.workflow_news = tx.workflow_news or WorkflowNews()
        tx.workflow_news.ended |= over
        tx.workflow_news.unsuccessful |= lost
    return sorted(id for id in children if id > 0)


def key_end(id: int, key: str, state: State) -> dict[str, object]:
    """One row of `release_keys`. The key is as in `MovedJob`."""
    tenant, scope, name = msgspec.json.decode(key)
    return {"tenant": tenant, "scope": scope, "key": name, "job_id": id, "outcome": state}


async def free_children(tx: Tx, ids: list[int]) -> None:
    """free: queue the children whose rule is met, and skip those whose rule cannot be met any more.

    Skipped children may free or skip their own children: one generation after the other, so that a
    long chain needs no deep stack.
    """
    while ids:
        _, ids = await finish(tx, await _free_or_finish(tx, ids))


async def _free_or_finish(tx: Tx, ids: list[int]) -> list[Finish]:
    """Queue the free children; returns the finishes of the children that will not run.

    The parents' ends are read in a new statement after the locks are held: so if the last two
    parents of a child finish at the same time, one of them frees it.
    """
    if not await tx.fetch("lock_freed", ids=to_json(ids)):
        return []
    ids = await tx.free_nodes(ids)
    if not ids:
        return []
    finishes: list[Finish] = []
    freed: list[Freed] = []
    events: list[NewEvent] = []
    for child in await tx.fetch_as(FreedChild, "freed_children", ids=to_json(ids)):
        move = _after_parents(child)
        if move is None:
            continue
        if move.to.final:
            finishes.append(Finish(child.id, child.token, move.to, reason=move.reason))
            continue
        due = tx.time(tx.when_or_none(child.due_at))
        gated = bool(child.features & Feature.GATE)
        freed.append(
            Freed(
                child.id, child.token, child.queue, child.needs, child.priority, child.size_kb,
                child.crashes > 0, move.reason, due,
                elsewhere=due is not None or bool(child.held) or gated,
            )
        )  # fmt: skip
        if not child.features & Feature.WORKFLOW:  # a node's timeline has the ends of its parents
            events.append(NewEvent(child.id, child.token, "freed"))
    if freed:
        if any(job.elsewhere for job in freed):
            await add_tickets(tx, [job.ticket for job in freed])
        else:  # as nearly always
            await tx.free_jobs(freed)
        await add_events(tx, events)
    return finishes


def _after_parents(child: FreedChild) -> Move | None:
    ends = Ends(
        bool(child.unfinished), bool(child.any_succeeded), bool(child.any_failed),
        bool(child.any_unsuccessful),
    )  # fmt: skip
    when = When.ALL_SUCCEEDED if child.rule is None else When(child.rule)
    return after_parents(ends, when=when, cancel_requested=bool(child.cancel_requested))


async def add_events(tx: Tx, events: list[NewEvent]) -> None:
    """Write lines of jobs' stories, in the transaction that makes them true."""
    for n, event in enumerate(events, 1):
        event.n = n
    if events:
        await tx.fetch("add_events", rows=to_json(events))


async def drop_leases(tx: Tx, ids: Sequence[int], worker: str) -> None:
    """Remove leases on which nothing is live any more. `heal_gates` finds what is left at gates."""
    leases = to_json(list(ids))
    await tx.fetch("drop_leases", ids=leases, worker=worker)
    if tx.gates.there:
        await tx.fetch("drop_holds", ids=leases)


async def lock_leased(tx: Tx, worker: str, job: HeldJob) -> LeasedJob | None:
    """Lock a job if this worker has it on a lease."""
    jobs = await tx.fetch_as(LeasedJob, "lock_leased", rows=leased_rows([job]), worker=worker)
    return jobs[0] if jobs else None


def leased_rows(jobs: Sequence[HeldJob] | Sequence[Settlement]) -> str:
    """The rows that `lock_leased` takes."""
    return to_json(
        [
            {"id": job.id, "token": job.token,
             "lease": job.lease if isinstance(job, Settlement) else job.lease_id}
            for job in jobs
        ]
    )  # fmt: skip


def finished_before(tx: Tx, job: FinishedJob, notes: Mapping[int, msgspec.Raw]) -> NewEvent:
    """How the job ended before its replay, as an entry of its timeline."""
    detail: dict[str, object] = {"reason": job.reason}
    if job.claimed_at is not None:
        detail |= {"claimed_at": tx.when(job.claimed_at), "attempts": job.attempts}
        if job.duration_seconds is not None:
            detail["duration_seconds"] = job.duration_seconds
        if job.error is not None and job.state == State.FAILED:
            detail["error"] = msgspec.Raw(job.error.encode())
        if job.id in notes:
            detail["notes"] = notes[job.id]
    at = tx.time(tx.when(job.finished_at))
    return NewEvent(job.id, job.token, job.state, job.worker, detail, at)
