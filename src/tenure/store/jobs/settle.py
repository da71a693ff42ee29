"""settle: attempts end. The happy path is one statement for the whole batch.

Every write here is guarded by (id, token) and by the worker's own lease row. What did not match is
answered as stale, unless it is a repeat of the same worker's settlement that had landed.
"""

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter

import msgspec

from tenure.errors import LeaseLost, StoreBusy, ValueRefused
from tenure.rules.codec import clean_text
from tenure.rules.job import Feature, Json, State, When, check_json, check_name, check_progress
from tenure.rules.lifecycle import (
    Ends,
    HeldJob,
    Move,
    Outcome,
    Settlement,
    Standing,
    after_parents,
    after_settlement,
)
from tenure.store.gates.passing import leave_gates, put_in_line
from tenure.store.rows import Ending, Freed, Happening, Ticket, raw
from tenure.store.session import (
    Done,
    FlowNews,
    Mode,
    Row,
    RowsLocked,
    Scope,
    Tx,
    for_all_tenants,
    to_json,
    transaction,
)
from tenure.store.workflows.end import end_workflows, ending

MAX_MESSAGE = 1000
MAX_LOCKED = 10
"""So many locks a settlement that is to wait for none may run into: about two seconds in all."""

EVENT_OF = {Outcome.RETRY: "retried", Outcome.SNOOZE: "snoozed", Outcome.RELEASE: "released"}
_SETTLED = " ".join([*EVENT_OF.values(), "succeeded", "failed", "cancelled", "skipped"])


# Plain numbers: masking an int with an IntFlag costs a microsecond per job.
_KEY, _NOTES, _CHILDREN = int(Feature.KEY), int(Feature.NOTES), int(Feature.CHILDREN)
_TO_LET_GO = _KEY | _NOTES | _CHILDREN
_WORKFLOW, _GATE = int(Feature.WORKFLOW), int(Feature.GATE)
_LOST = frozenset({State.FAILED, State.CANCELLED})
_MAY_LOSE = frozenset({Outcome.RETRY, Outcome.FAIL, Outcome.ABORT})


_by_id = attrgetter("id")


class Answer(msgspec.Struct, frozen=True):
    """What became of one worker write.

    It landed; or it was stale; or the store refused its data (`error`); or somebody else has the
    row locked (`busy`): send it again.
    """

    landed: bool
    error: str | None = None
    busy: bool = False

    @property
    def stale(self) -> bool:
        """The job is no longer this worker's; nothing was changed."""
        return not self.landed and self.error is None and not self.busy


LANDED, STALE, BUSY = Answer(True), Answer(False), Answer(False, busy=True)


async def settle(
    scope: Scope,
    worker: str,
    settlements: Sequence[Settlement],
    *,
    done_leases: Sequence[int] = (),
    patient: bool = True,
    on: object | None = None,
    now: datetime | None = None,
) -> list[Answer]:
    """End attempts: one transaction, one answer per settlement, in order.

    `done_leases` are leases that the worker believes to be used up; they are removed if that is
    true. A batch that the database refuses as a whole is halved until the bad row stands alone; one
    that waits for a row which somebody else has locked goes on without that row; one that is not
    `patient` does so at once.
    With `on`, the caller's own transaction, a stale settlement raises `LeaseLost`, so that the
    caller's rows roll back with it. So does one that an earlier transaction has committed already:
    the caller's rows were committed with it, and must not be again.
    """
    for_all_tenants("settle", scope.tenant)
    check_name("worker", worker)
    if on is not None:
        return await scope.lend(on, lambda tx: _settle_lent(tx, worker, settlements, now))
    if not patient:
        return await _settle_apart(scope, worker, settlements, now)
    return await _settle_halving(scope, worker, list(settlements), done_leases, now)


async def _settle_lent(
    tx: Tx, worker: str, settlements: Sequence[Settlement], now: datetime | None
) -> list[Answer]:
    """Settle all of these in the caller's transaction."""
    answers = await _settle(tx, worker, settlements, (), now, read_back=False)
    await end_workflows(tx)
    for settlement, answer in zip(settlements, answers, strict=True):
        if not answer.landed:
            raise LeaseLost(_lost(settlement))
    return answers


async def _settle_halving(
    scope: Scope,
    worker: str,
    settlements: list[Settlement],
    done_leases: Sequence[int],
    now: datetime | None,
) -> list[Answer]:
    try:
        return await ending(
            scope, lambda tx: _settle(tx, worker, settlements, done_leases, now), now
        )
    except StoreBusy:
        if len(settlements) <= 1:
            raise
        return await _settle_apart(scope, worker, settlements, now)
    except ValueRefused as error:
        if len(settlements) <= 1:
            return [Answer(False, str(error)) for _ in settlements]
        half = len(settlements) // 2
        first = await _settle_halving(scope, worker, settlements[:half], (), now)
        return first + await _settle_halving(scope, worker, settlements[half:], done_leases, now)


async def _settle_apart(
    scope: Scope, worker: str, settlements: Sequence[Settlement], now: datetime | None
) -> list[Answer]:
    """Settle all that needs no row which somebody else has locked; the rest is answered as busy.

    A batch that meets one further on, a grandchild perhaps, or a value that the database refuses,
    is halved until what needs it stands alone. Each lock that is met so costs a short wait: after
    some of them what is left is busy, too, so that nobody waits long behind it.
    """
    answers = [BUSY] * len(settlements)
    parts, locked = deque([(0, len(settlements))]), 0
    while parts and locked < MAX_LOCKED:
        start, end = parts.popleft()
        settle_part = partial(
            _settle_unlocked, worker=worker, settlements=settlements[start:end], now=now
        )
        try:
            answers[start:end] = await ending(scope, settle_part, now)
            continue
        except RowsLocked:
            locked += 1
        except ValueRefused as error:
            if end - start == 1:
                answers[start] = Answer(False, str(error))
        if end - start > 1:
            half = (start + end) // 2
            parts.extend([(start, half), (half, end)])
    return answers


async def _settle_unlocked(
    tx: Tx, worker: str, settlements: Sequence[Settlement], now: datetime | None
) -> list[Answer]:
    """Settle what nobody else has locked: neither itself, nor a child that waits for it, nor a
    workflow that has to hear of it."""
    tx.at(now)
    await tx.wait_briefly()
    rows = to_json([{"id": s.id, "token": s.token} for s in settlements])
    ours = {(row[0], row[1]) for row in await tx.fetch("lock_expired", rows=rows)}
    live = {(id, token) for id, token in await tx.fetch("still_live", rows=rows)}
    held = [s for s in settlements if (s.id, s.token) in ours]
    ids = to_json(sorted({s.id for s in held}))
    losing = to_json(sorted({s.id for s in held if s.outcome in _MAY_LOSE}))
    found = await tx.fetch("hindered_parents", ids=ids, losing=losing)
    hindered = {row[0] for row in found}
    locked = live - {(id, token) for id, token in ours if id not in hindered}
    free = [s for s in settlements if (s.id, s.token) not in locked]
    answers = iter(await _settle(tx, worker, free, (), now))
    return [BUSY if (s.id, s.token) in locked else next(answers) for s in settlements]


async def _settle(
    tx: Tx,
    worker: str,
    settlements: Sequence[Settlement],
    done_leases: Sequence[int],
    now: datetime | None,
    *,
    read_back: bool = True,
) -> list[Answer]:
    tx.at(now)
    batch: dict[tuple[int, int], Settlement] = {}
    for s in sorted(settlements, key=_by_id):  # so that history is appended to, page after page
        batch.setdefault((s.id, s.token), s)
    succeeded = [s for s in batch.values() if s.outcome is Outcome.SUCCEED]
    landed = await _succeed(tx, worker, succeeded)
    if len(succeeded) < len(batch):
        others = [s for s in batch.values() if s.outcome is not Outcome.SUCCEED]
        landed |= await _settle_others(tx, worker, others)
    if len(landed) < len(batch) and read_back:
        landed |= await _landed_before(tx, worker, [key for key in batch if key not in landed])
    if done_leases:
        await drop_leases(tx, done_leases, worker)
    if len(landed) == len(batch):
        return [LANDED] * len(settlements)
    return [LANDED if (s.id, s.token) in landed else STALE for s in settlements]


async def drop_leases(tx: Tx, ids: Sequence[int], worker: str) -> None:
    """Remove leases on which nothing is live any more. `heal_gates` finds what is left at gates."""
    leases = to_json(list(ids))
    await tx.fetch("drop_leases", ids=leases, worker=worker)
    if tx.gates.there:
        await tx.fetch("drop_holds", ids=leases)


async def _landed_before(
    tx: Tx, worker: str, missed: list[tuple[int, int]]
) -> set[tuple[int, int]]:
    """(!) Which of these did this worker settle already, in a COMMIT that got no answer?"""
    rows = to_json([{"id": id, "token": token} for id, token in missed])
    found = await tx.fetch("landed", rows=rows, worker=worker, kinds=_SETTLED)
    return {(id, token) for id, token in found}


async def _settle_others(
    tx: Tx, worker: str, settlements: list[Settlement]
) -> set[tuple[int, int]]:
    by_job = {(s.id, s.token): s for s in settlements}
    endings: list[Ending] = []
    tickets: list[Ticket] = []
    events: list[Happening] = []
    for id, token, attempts, max_attempts, flagged, _, claimed_at in await tx.fetch(
        "lock_held", rows=_held_rows(settlements), worker=worker
    ):
        settlement = by_job[id, token]
        move = after_settlement(Standing(attempts, max_attempts, bool(flagged)), settlement)
        if move.to.final:
            endings.append(_ending(settlement, move, worker))
        else:
            tickets.append(_ticket(settlement, move))
            events.append(_requeued(tx, settlement, worker, claimed_at))
    landed = await finish_jobs(tx, endings)
    if tickets:
        await put_in_line(tx, tickets)
        await add_events(tx, events)
        landed |= {(ticket.id, ticket.token) for ticket in tickets}
    return landed


async def _succeed(tx: Tx, worker: str, batch: list[Settlement]) -> set[tuple[int, int]]:
    if not batch:
        return set()
    by_lease: dict[int, list[Done]] = {s.lease: [] for s in batch}
    for s in batch:
        result = None if s.result == b"null" else s.result
        by_lease[s.lease].append((s.id, s.token, s.duration_seconds, result))
    moved = await tx.succeed_jobs(worker, by_lease)
    if moved.lines:
        await leave_gates(tx, moved.lines)
    finished = [(row[0], row[2], State.SUCCEEDED) for row in moved.jobs if row[2] & _TO_LET_GO]
    if finished:
        await free_children(tx, await _let_go(tx, finished))
    return {(row[0], row[1]) for row in moved.jobs}


async def finish_jobs(tx: Tx, endings: list[Ending]) -> set[tuple[int, int]]:
    """Move jobs to history and let go of all that hung on them. Answers those that moved.

    What this means for workflows is for `end_workflows`, when the transaction has all its locks.
    """
    landed, children = await finish(tx, endings)
    await free_children(tx, children)
    return landed


async def finish(tx: Tx, endings: list[Ending]) -> tuple[set[tuple[int, int]], list[int]]:
    """Move jobs to history. Answers those that moved, and the children that may be free now."""
    if not endings:
        return set(), []
    by_id = {ending.id: ending for ending in endings}
    moved = await tx.end_jobs(to_json(endings))
    if moved.lines:
        await leave_gates(tx, moved.lines)
    finished = [(row[0], row[2], by_id[row[0]].state) for row in moved.jobs if row[2] & _TO_LET_GO]
    return {(row[0], row[1]) for row in moved.jobs}, await _let_go(tx, finished)


async def _let_go(tx: Tx, finished: list[tuple[int, int, State]]) -> list[int]:
    """Give back keys, drop notes, tell children. Answers the children."""
    keyed = [id for id, features, _ in finished if features & _KEY]
    if keyed:
        await tx.fetch("release_keys", ids=to_json(keyed))
    noted = [
        id for id, features, state in finished
        if features & _NOTES and state is State.SUCCEEDED
    ]  # fmt: skip
    if noted:
        await tx.fetch("drop_notes", ids=to_json(noted))
    parents = [
        {"id": id, "state": state} for id, features, state in finished
        if features & _CHILDREN
    ]  # fmt: skip
    if not parents:
        return []
    await tx.require_read_committed()
    children = {row[0] for row in await tx.fetch("note_parent_ends", rows=to_json(parents))}
    lost = {
        id: state for id, features, state in finished if features & _WORKFLOW and state in _LOST
    }
    over = {-id for id in children if id < 0}
    if over or lost:
        tx.flows = tx.flows or FlowNews()
        tx.flows.over |= over
        tx.flows.lost |= lost
    return sorted(id for id in children if id > 0)


async def free_children(tx: Tx, ids: list[int]) -> None:
    """free: put children in line whose rule is met; skip those for which that cannot be any more.

    Skipped ones may free or skip their own children: generation by generation, so that a long chain
    needs no deep stack.
    """
    while ids:
        _, ids = await finish(tx, await _free_or_end(tx, ids))


async def _free_or_end(tx: Tx, ids: list[int]) -> list[Ending]:
    """Put the free ones in line; answers the endings of those that will not run.

    The decision is read in a new statement after the locks are held: the last two parents of a
    child that finish together release it once, not never.
    """
    if not await tx.fetch("lock_freed", ids=to_json(ids)):
        return []
    ids = await tx.free_nodes(ids)
    if not ids:
        return []
    endings: list[Ending] = []
    freed: list[Freed] = []
    events: list[Happening] = []
    for (
        id,
        token,
        due_at,
        flagged,
        features,
        rule,
        *ends,
        held,
        queue,
        priority,
        crashes,
    ) in await tx.fetch("freed_children", ids=to_json(ids)):
        when = When.ALL_SUCCEEDED if rule is None else When(rule)
        move = after_parents(Ends(*map(bool, ends)), when=when, cancel_requested=bool(flagged))
        if move is None:
            continue
        if move.to.final:
            endings.append(Ending(id, token, move.to, reason=move.reason))
            continue
        due = tx.time(tx.when_or_none(due_at))
        elsewhere = due is not None or bool(held) or bool(features & _GATE)
        freed.append(
            Freed(id, token, queue, priority, crashes > 0, move.reason, due, elsewhere=elsewhere)
        )
        if not features & _WORKFLOW:  # that a node was freed is told by its parents' ends
            events.append(Happening(id, token, "freed"))
    if freed:
        if any(job.elsewhere for job in freed):
            await put_in_line(tx, [job.ticket for job in freed])
        else:  # as nearly always
            await tx.free_jobs(freed)
        await add_events(tx, events)
    return endings


@transaction(Mode.BEAT)
async def report_progress(
    tx: Tx,
    worker: str,
    reports: Sequence[tuple[HeldJob, float | None, str | None]],
    *,
    now: datetime | None = None,
) -> list[Answer]:
    """Note how far held jobs have come: (job, fraction, message). Fenced like a settlement."""
    for_all_tenants("report_progress", tx.tenant)
    for _, fraction, message in reports:
        check_progress(fraction, message)
    tx.at(now)
    held = await _hold_notes(tx, worker, [job for job, _, _ in reports])
    last = {  # of several reports about one job the last one counts
        job.id: {"id": job.id, "token": job.token, "fraction": fraction,
                 "message": None if message is None else clean_text(message, MAX_MESSAGE)}
        for job, fraction, message in reports if (job.id, job.token) in held
    }  # fmt: skip
    if last:
        await tx.fetch("report_progress", rows=to_json(list(last.values())))
    return [LANDED if (job.id, job.token) in held else STALE for job, _, _ in reports]


@transaction(Mode.WRITE)
async def save_checkpoint(
    tx: Tx, worker: str, job: HeldJob, checkpoint: Json, *, now: datetime | None = None
) -> Answer:
    """Keep the state from which a later attempt may go on. Fenced like a settlement."""
    for_all_tenants("save_checkpoint", tx.tenant)
    check_json("checkpoint", checkpoint)
    tx.at(now)
    if not await _hold_notes(tx, worker, [job]):
        return STALE
    await tx.fetch("save_checkpoint", id=job.id, token=job.token, checkpoint=checkpoint.decode())
    return LANDED


async def hold_job(tx: Tx, worker: str, job: HeldJob) -> Row | None:
    """Lock a job if this worker holds it; the row of `lock_held`."""
    rows = await tx.fetch("lock_held", rows=_held_rows([job]), worker=worker)
    return rows[0] if rows else None


async def _hold_notes(tx: Tx, worker: str, jobs: Sequence[HeldJob]) -> set[tuple[int, int]]:
    rows: list[Row] = await tx.fetch("lock_held", rows=_held_rows(jobs), worker=worker)
    fresh = [row[0] for row in rows if not row[5] & _NOTES]
    if fresh:
        await tx.fetch("mark_noted", ids=to_json(fresh))
    return {(row[0], row[1]) for row in rows}


async def add_events(tx: Tx, events: list[Happening]) -> None:
    """Write lines of jobs' stories, in the transaction that makes them true."""
    for n, event in enumerate(events, 1):
        event.n = n
    if events:
        await tx.fetch("add_events", rows=to_json(events))


def _held_rows(jobs: Sequence[HeldJob] | Sequence[Settlement]) -> str:
    return to_json(
        [
            {"id": job.id, "token": job.token,
             "lease": job.lease if isinstance(job, Settlement) else job.lease_id}
            for job in jobs
        ]
    )  # fmt: skip


def _ending(s: Settlement, move: Move, worker: str) -> Ending:
    return Ending(
        s.id, s.token, move.to, s.lease, worker, charged=int(move.charged),
        error=raw(s.error), reason=move.reason,
        duration=s.duration_seconds,
    )  # fmt: skip


def _ticket(s: Settlement, move: Move) -> Ticket:
    return Ticket(
        s.id, s.token, delay=move.delay_seconds or None, charged=int(move.charged),
        reason=move.reason, error=raw(s.error),
    )  # fmt: skip


def _requeued(tx: Tx, s: Settlement, worker: str, claimed_at: object) -> Happening:
    detail: dict[str, object] = {"claimed_at": tx.when(claimed_at), "reason": s.reason}
    if s.error is not None:
        detail["error"] = msgspec.Raw(s.error)
    if s.delay_seconds:
        detail["delay_seconds"] = s.delay_seconds
    if s.duration_seconds is not None:
        detail["duration_seconds"] = s.duration_seconds
    return Happening(s.id, s.token, EVENT_OF[s.outcome], worker, detail)


def _lost(s: Settlement) -> str:
    return (
        f"job {s.id} is no longer held under token {s.token}: another attempt may be running. "
        "Roll back and stop"
    )
