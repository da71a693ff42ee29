"""settle: attempts end. The happy path is one statement for the whole batch.

Every write here is guarded by (id, token) and by the worker's own lease row. A settlement that does
not match is returned as stale, unless it repeats one of the same worker that has landed.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import msgspec

from tenure.errors import InvalidInput, LeaseLost, StoreBusy, ValueRefused
from tenure.rules.codec import encode
from tenure.rules.job import State
from tenure.rules.lifecycle import (
    NO_TASK,
    Move,
    Outcome,
    Settlement,
    Standing,
    after_settlement,
    after_unknown,
)
from tenure.rules.limits import check_name, not_this
from tenure.rules.retention import Keep
from tenure.store.moves import (
    add_events,
    add_tickets,
    drop_leases,
    finish_jobs,
    finish_succeeded,
    leased_rows,
)
from tenure.store.notes import noted, write_unsent
from tenure.store.records import JobToken, LastEvent, LeasedJob, StoredJob
from tenure.store.rows import Finish, NewEvent, Ticket, raw
from tenure.store.session import (
    Done,
    Operation,
    R,
    RowsLocked,
    Scope,
    Tx,
    for_all_tenants,
    to_json,
)
from tenure.store.workflows.end import end_workflows
from tenure.store.workflows.stop import stop_workflows

MAX_LOCKED = 10
"""How many locks one call that does not wait may run into: about two seconds in total."""

EVENT_OF = {Outcome.RETRY: "retried", Outcome.SNOOZE: "snoozed", Outcome.RELEASE: "released"}
UNKNOWN_TASK = "unknown_task"
"""Kind of the event for tries of workers that do not have the task."""
_SETTLED = " ".join(
    [*EVENT_OF.values(), UNKNOWN_TASK, "succeeded", "failed", "cancelled", "skipped"]
)


_MAY_LOSE = frozenset({Outcome.RETRY, Outcome.FAIL, Outcome.ABORT})


_by_id = attrgetter("id")


class Answer(msgspec.Struct, frozen=True):
    """What became of one worker write.

    It landed; or it was stale; or the store refused its data (`error`); or another transaction has
    locked the row (`busy`): send it again.
    """

    landed: bool
    error: str | None = None
    busy: bool = False
    became: State | None = None
    """The job has finished in this state, though the settlement says something else: it was asked
    to stop, or no worker has had its task for too long."""

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
    keep: Mapping[str, Keep] | None = None,
    now: datetime | None = None,
) -> list[Answer]:
    """End attempts: one transaction, one answer per settlement, in order.

    `done_leases` are leases that the worker believes to be used up; they are removed if that is
    true. If the database refuses a batch as a whole, the batch is halved until the bad row is
    alone. If another transaction has locked a row, the batch continues without that row: after a
    wait, or at once if it is not `patient`.
    With `on`, the caller's own transaction, a stale settlement raises `LeaseLost`, so that the
    caller's rows roll back with it. So does one that an earlier transaction has committed already:
    the caller's rows were committed with it, and must not be again.
    `keep` says by queue how long jobs that finish here are kept, if they do not say it themselves.
    """
    for_all_tenants("settle", scope.tenant)
    check_name("worker", worker)
    check_keep(keep)
    if on is not None:
        return await scope.run_borrowed(
            on, lambda tx: _settle_borrowed(tx, worker, settlements, keep, now)
        )
    if not patient:
        return await _settle_apart(scope, worker, settlements, keep, now)
    return await _settle_halving(scope, worker, list(settlements), done_leases, now, keep=keep)


def check_keep(keep: object) -> None:
    """Accept a length of time for each queue, or None."""
    if keep is None:
        return
    if not isinstance(keep, Mapping) or not all(isinstance(k, Keep) for k in keep.values()):
        raise InvalidInput(
            f"keep must map names of queues to Keep(succeeded_seconds=...), {not_this(keep)}"
        )
    for queue in keep:
        check_name("queue", queue)


async def run_finishing(scope: Scope, op: Operation[R], now: datetime | None) -> R:
    """Run an operation that may finish jobs, and write what follows for their workflows."""
    stops: list[int] = []

    async def run(tx: Tx) -> R:
        answer = await op(tx)
        if tx.workflow_news is not None:
            stops[:] = await end_workflows(tx)
        return answer

    answer = await scope.transact(run)
    if stops:
        await stop_workflows(scope, stops, now)
    return answer


async def _settle_borrowed(
    tx: Tx,
    worker: str,
    settlements: Sequence[Settlement],
    keep: Mapping[str, Keep] | None,
    now: datetime | None,
) -> list[Answer]:
    """Settle all of these in the caller's transaction."""
    answers = await _settle(tx, worker, settlements, (), now, keep=keep, read_back=False)
    if tx.workflow_news is not None:
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
    *,
    keep: Mapping[str, Keep] | None,
) -> list[Answer]:
    try:
        return await run_finishing(
            scope, lambda tx: _settle(tx, worker, settlements, done_leases, now, keep=keep), now
        )
    except StoreBusy:
        if len(settlements) <= 1:
            raise
        return await _settle_apart(scope, worker, settlements, keep, now)
    except ValueRefused as error:
        if len(settlements) <= 1:
            return [Answer(False, str(error)) for _ in settlements]
        half = len(settlements) // 2
        first = await _settle_halving(scope, worker, settlements[:half], (), now, keep=keep)
        return first + await _settle_halving(
            scope, worker, settlements[half:], done_leases, now, keep=keep
        )


async def _settle_apart(
    scope: Scope,
    worker: str,
    settlements: Sequence[Settlement],
    keep: Mapping[str, Keep] | None,
    now: datetime | None,
) -> list[Answer]:
    """Settle all that need no row locked by another transaction; the rest are returned as busy.

    If a batch meets a lock later, of a grandchild perhaps, or a value that the database refuses, it
    is halved until the settlement in question is alone. Each lock that is met in this way costs a
    short wait: after `MAX_LOCKED` of them the remaining settlements are returned as busy, too.
    """
    answers = [BUSY] * len(settlements)
    parts, locked = deque([(0, len(settlements))]), 0
    while parts and locked < MAX_LOCKED:
        start, end = parts.popleft()
        settle_part = partial(
            _settle_unlocked, worker=worker, settlements=settlements[start:end], keep=keep, now=now
        )
        try:
            answers[start:end] = await run_finishing(scope, settle_part, now)
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
    tx: Tx,
    worker: str,
    settlements: Sequence[Settlement],
    keep: Mapping[str, Keep] | None,
    now: datetime | None,
) -> list[Answer]:
    """Settle jobs where no other transaction has locked the job, a waiting child, or a workflow
    that this end changes."""
    tx.at(now)
    await tx.wait_briefly()
    rows = to_json([{"id": s.id, "token": s.token} for s in settlements])
    ours = set(await tx.fetch_as(JobToken, "lock_unlocked", rows=rows))
    live = set(await tx.fetch_as(JobToken, "still_live", rows=rows))
    held = [s for s in settlements if (s.id, s.token) in ours]
    ids = to_json(sorted({s.id for s in held}))
    losing = to_json(sorted({s.id for s in held if s.outcome in _MAY_LOSE}))
    hindered = set(await tx.fetch_column("hindered_parents", ids=ids, losing=losing))
    locked = live - {(id, token) for id, token in ours if id not in hindered}
    free = [s for s in settlements if (s.id, s.token) not in locked]
    answers = iter(await _settle(tx, worker, free, (), now, keep=keep))
    return [BUSY if (s.id, s.token) in locked else next(answers) for s in settlements]


async def _settle(
    tx: Tx,
    worker: str,
    settlements: Sequence[Settlement],
    done_leases: Sequence[int],
    now: datetime | None,
    *,
    keep: Mapping[str, Keep] | None,
    read_back: bool = True,
) -> list[Answer]:
    tx.at(now)
    tx.keep_by(keep)
    batch: dict[tuple[int, int], Settlement] = {}
    for s in sorted(settlements, key=_by_id):  # so that history is appended to, page after page
        batch.setdefault((s.id, s.token), s)
    unsent = [s for s in batch.values() if s.notes is not None or s.progress is not None]
    if unsent:
        await write_unsent(tx, worker, unsent)
    succeeded = [s for s in batch.values() if s.outcome is Outcome.SUCCEED]
    landed = await _succeed(tx, worker, succeeded)
    became: dict[tuple[int, int], State] = {}
    if len(succeeded) < len(batch):
        others = [s for s in batch.values() if s.outcome is not Outcome.SUCCEED]
        landed |= await _settle_others(tx, worker, others, became)
    if len(landed) < len(batch) and read_back:
        landed |= await _landed_before(tx, worker, [key for key in batch if key not in landed])
    if done_leases:
        await drop_leases(tx, done_leases, worker)
    if len(landed) == len(batch) and not became:
        return [LANDED] * len(settlements)
    return [
        STALE if (s.id, s.token) not in landed else
        Answer(True, became=became[s.id, s.token]) if (s.id, s.token) in became else LANDED
        for s in settlements
    ]  # fmt: skip


async def _landed_before(
    tx: Tx, worker: str, missed: list[tuple[int, int]]
) -> set[tuple[int, int]]:
    """(!) Which of these did this worker settle already, in a COMMIT that got no answer?

    Of a job that is not kept nothing tells it. If a repeat finds no trace of a job, it has ended,
    and most likely by the first try.
    """
    rows = to_json([{"id": id, "token": token} for id, token in missed])
    landed: set[tuple[int, int]] = set(
        await tx.fetch_as(JobToken, "landed", rows=rows, worker=worker, kinds=_SETTLED)
    )
    if tx.repeat and len(landed) < len(missed):
        stored = {
            job.id for job in await tx.fetch_as(
                StoredJob, "stored_jobs", ids=to_json([id for id, _ in missed])
            )
        }  # fmt: skip
        landed |= {(id, token) for id, token in missed if id not in stored}
    return landed


async def _settle_others(
    tx: Tx, worker: str, settlements: list[Settlement], became: dict[tuple[int, int], State]
) -> set[tuple[int, int]]:
    """Adds to `became` the ends that the settlement does not tell."""
    by_job = {(s.id, s.token): s for s in settlements}
    finishes: list[Finish] = []
    tickets: list[Ticket] = []
    events: list[NewEvent] = []
    folded: list[dict[str, object]] = []
    jobs = await tx.fetch_as(LeasedJob, "lock_leased", rows=leased_rows(settlements), worker=worker)
    notes = await noted(tx, {job.id: job.features for job in jobs})
    unknown = await _unknown_since(tx, [s for s in settlements if s.give_up_seconds is not None])
    for job in jobs:
        settlement = by_job[job.id, job.token]
        standing = Standing(
            job.attempts, job.max_attempts, bool(job.cancel_requested), bool(job.spent)
        )
        before = unknown.get(job.id) if settlement.give_up_seconds is not None else None
        if before is None:
            move = after_settlement(standing, settlement)
        else:
            move = after_unknown(standing, settlement, before.waited_seconds)
        if move.to.final:
            finishes.append(_ending(settlement, move, worker))
            if before is not None or _was_asked_to_stop(settlement, move):
                became[job.id, job.token] = move.to
            continue
        tickets.append(_ticket(settlement, move))
        event = _requeued(tx, settlement, worker, job.claimed_at, notes.get(job.id))
        if before is None:
            events.append(event)
        else:
            folded.append(before.once_more(event))
    landed = await finish_jobs(tx, finishes)
    if tickets:
        await add_tickets(tx, tickets)
        await add_events(tx, events)
        if folded:
            await tx.fetch("fold_events", rows=to_json(folded))
        landed |= {(ticket.id, ticket.token) for ticket in tickets}
    return landed


def _was_asked_to_stop(settlement: Settlement, move: Move) -> bool:
    return move.to is State.CANCELLED and settlement.outcome is not Outcome.ABORT


class _Unknown(NamedTuple):
    """The last entry of a job's timeline: a worker had no such task."""

    seq: int
    waited_seconds: float
    tries: int

    def once_more(self, event: NewEvent) -> dict[str, object]:
        """One row of `fold_events`: the entry after one more try."""
        return {
            "job_id": event.job_id, "seq": self.seq, "token": event.token, "worker": event.worker,
            "detail": {**(event.detail or {}), "tries": self.tries + 1},
        }  # fmt: skip


async def _unknown_since(tx: Tx, settlements: list[Settlement]) -> dict[int, _Unknown]:
    """The jobs of these whose last worker did not have their task either."""
    if not settlements:
        return {}
    found: dict[int, _Unknown] = {}
    ids = to_json(sorted({s.id for s in settlements}))
    for last in await tx.fetch_as(LastEvent, "last_events", ids=ids):
        if last.kind == UNKNOWN_TASK:
            tries = msgspec.json.decode(last.detail or "{}").get("tries", 1)
            found[last.job_id] = _Unknown(last.seq, last.age_seconds, tries)
    return found


async def _succeed(tx: Tx, worker: str, batch: list[Settlement]) -> set[tuple[int, int]]:
    if not batch:
        return set()
    by_lease: dict[int, list[Done]] = {s.lease: [] for s in batch}
    for s in batch:
        result = None if s.result == b"null" else s.result
        by_lease[s.lease].append((s.id, s.token, s.duration_seconds, result))
    return await finish_succeeded(tx, worker, by_lease)


_UNKNOWN_TASK = msgspec.Raw(
    b'{"type":"UnknownTask","message":"no worker has had the task for too long"}'
)


def _ending(s: Settlement, move: Move, worker: str) -> Finish:
    error = raw(s.error)
    if move.reason == NO_TASK:
        error = _UNKNOWN_TASK
    elif error is None and move.to is State.FAILED:  # a snooze or a release of its only start
        error = msgspec.Raw(encode({"type": "NotRunAgain", "message": move.reason}))
    return Finish(
        s.id, s.token, move.to, s.lease, worker, charged=int(move.charged),
        error=error, reason=move.reason,
        duration=s.duration_seconds,
    )  # fmt: skip


def _ticket(s: Settlement, move: Move) -> Ticket:
    return Ticket(
        s.id, s.token, delay=move.delay_seconds or None, charged=int(move.charged),
        reason=move.reason, error=raw(s.error), needs=s.needs,
    )  # fmt: skip


def _requeued(
    tx: Tx, s: Settlement, worker: str, claimed_at: object, notes: msgspec.Raw | None
) -> NewEvent:
    detail: dict[str, object] = {"claimed_at": tx.when(claimed_at), "reason": s.reason}
    if s.error is not None:
        detail["error"] = msgspec.Raw(s.error)
    if s.delay_seconds:
        detail["delay_seconds"] = s.delay_seconds
    if s.duration_seconds is not None:
        detail["duration_seconds"] = s.duration_seconds
    if notes is not None:
        detail["notes"] = notes
    kind = EVENT_OF[s.outcome] if s.give_up_seconds is None else UNKNOWN_TASK
    return NewEvent(s.id, s.token, kind, worker, detail)


def _lost(s: Settlement) -> str:
    return (
        f"job {s.id} is no longer held under token {s.token}: another attempt may be running. "
        "Roll back and stop"
    )
