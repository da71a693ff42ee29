"""settle: attempts end. The happy path is one statement for the whole batch.

Every write here is guarded by (id, token) and by the worker's own lease row. A settlement that does
not match is returned as stale, unless it repeats what the same worker has written before.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import msgspec

from tenure.errors import InvalidInput, LeaseLost, RowsLocked, StoreBusy, ValueRefused
from tenure.rules.job import State
from tenure.rules.lifecycle import (
    KIND_OF,
    UNKNOWN_TASK,
    Move,
    Outcome,
    Recorded,
    Settlement,
    Standing,
    after_settlement,
    after_unknown,
    error_of,
    is_recorded,
    kind_of,
)
from tenure.rules.limits import check_name
from tenure.rules.retention import Keep, check_keep
from tenure.store.moves import (
    add_events,
    add_tickets,
    drop_leases,
    finish_jobs,
    finish_succeeded,
    leased_rows,
)
from tenure.store.notes import noted, write_unsent
from tenure.store.records import JobToken, LastEvent, LeasedJob, RecordedEnd, StoredJob
from tenure.store.rows import Finish, NewEvent, Ticket, raw
from tenure.store.session import (
    Done,
    Operation,
    R,
    Scope,
    Tx,
    for_all_tenants,
    to_json,
)
from tenure.store.workflows.end import end_workflows
from tenure.store.workflows.stop import stop_workflows

MAX_LOCKED = 10
"""How many locks one call that does not wait may run into: about two seconds in total."""

_SETTLED = " ".join([*KIND_OF.values(), UNKNOWN_TASK])
Key = tuple[int, int]
"""The id and the token of an attempt."""


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
    done_leases: Sequence[int] | None = None,
    patient: bool = True,
    on: object | None = None,
    keep: Mapping[str, Keep] | None = None,
    now: datetime | None = None,
) -> list[Answer]:
    """End attempts: one transaction, one answer per settlement, in order.

    A settlement has landed if this very outcome is the recorded one, also if an earlier call has
    written it: the same kind, result, error, reason and delay. Otherwise it is stale.

    A lease goes when its last job is settled. To look for that costs a statement: a worker that
    keeps count names the leases that it believes to be used up as `done_leases`, perhaps none.

    If the database refuses a batch as a whole, the batch is halved until the bad row is alone. If
    another transaction has locked a row, the batch continues without that row: after a wait, or at
    once if it is not `patient`.
    With `on`, the caller's own transaction, a stale settlement raises `LeaseLost`, so that the
    caller's rows roll back with it. So does one that an earlier transaction has committed already:
    the caller's rows were committed with it, and must not be again.
    `keep` says by queue how long jobs that finish here are kept, if they do not say it themselves.
    """
    for_all_tenants("settle", scope.tenant)
    check_name("worker", worker)
    if keep is not None:
        check_keep(keep)
    given: object = settlements
    if not isinstance(given, Sequence) or {*map(type, given)} - {Settlement}:
        raise InvalidInput(
            "settle takes a list of settlements: settle(worker, [succeed(job), fail(other, error)])"
        )
    if on is not None:
        return await scope.run_borrowed(
            on, lambda tx: _settle_borrowed(tx, worker, settlements, done_leases, now, keep=keep)
        )
    if not patient:
        return await _settle_apart(scope, worker, settlements, done_leases, now, keep=keep)
    return await _settle_halving(scope, worker, list(settlements), done_leases, now, keep=keep)


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
    done_leases: Sequence[int] | None,
    now: datetime | None,
    *,
    keep: Mapping[str, Keep] | None,
) -> list[Answer]:
    """Settle all of these in the caller's transaction."""
    answers = await _settle(tx, worker, settlements, done_leases, now, keep=keep, read_back=False)
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
    done_leases: Sequence[int] | None,
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
        return await _settle_apart(scope, worker, settlements, done_leases, now, keep=keep)
    except ValueRefused as error:
        if len(settlements) <= 1:
            return [Answer(False, str(error)) for _ in settlements]
        half = len(settlements) // 2
        early = None if done_leases is None else ()
        first = await _settle_halving(scope, worker, settlements[:half], early, now, keep=keep)
        return first + await _settle_halving(
            scope, worker, settlements[half:], done_leases, now, keep=keep
        )


async def _settle_apart(
    scope: Scope,
    worker: str,
    settlements: Sequence[Settlement],
    done_leases: Sequence[int] | None,
    now: datetime | None,
    *,
    keep: Mapping[str, Keep] | None,
) -> list[Answer]:
    """Settle all that need no row locked by another transaction; the rest are returned as busy.

    If a batch meets a lock later, of a grandchild perhaps, or a value that the database refuses, it
    is halved until the settlement in question is alone. Each lock that is met in this way costs a
    short wait: after `MAX_LOCKED` of them the remaining settlements are returned as busy, too.
    """
    answers = [BUSY] * len(settlements)
    if done_leases is not None:
        done_leases = ()  # those that the worker names may have jobs here that are busy
    parts, locked = deque([(0, len(settlements))]), 0
    while parts and locked < MAX_LOCKED:
        start, end = parts.popleft()
        settle_part = partial(
            _settle_unlocked, worker=worker, settlements=settlements[start:end],
            done_leases=done_leases, keep=keep, now=now,
        )  # fmt: skip
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
    done_leases: Sequence[int] | None,
    now: datetime | None,
    *,
    keep: Mapping[str, Keep] | None,
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
    answers = iter(await _settle(tx, worker, free, done_leases, now, keep=keep))
    return [BUSY if (s.id, s.token) in locked else next(answers) for s in settlements]


async def _settle(
    tx: Tx,
    worker: str,
    settlements: Sequence[Settlement],
    done_leases: Sequence[int] | None,
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
    if done_leases is None:
        done_leases = sorted({s.lease for s in batch.values()})
    if done_leases:
        await drop_leases(tx, done_leases, worker)
    if len(landed) == len(settlements) and not became:
        return [LANDED] * len(settlements)
    first = {key: batch[key] for key in landed}
    rest = [s for s in settlements if first.get((s.id, s.token)) != s]
    if not read_back:
        rest = [s for s in rest if (s.id, s.token) in landed]
    recorded = await _recorded_ends(tx, worker, rest)
    known = {*recorded, *first}
    gone = await _gone(tx, {s.id for s in rest if (s.id, s.token) not in known})

    def answer(s: Settlement) -> Answer:
        key = (s.id, s.token)
        if first.get(key) == s:
            return Answer(True, became=became[key]) if key in became else LANDED
        has_landed = s.id in gone or (key in recorded and is_recorded(s, recorded[key]))
        return LANDED if has_landed else STALE

    return [answer(s) for s in settlements]


async def _recorded_ends(
    tx: Tx, worker: str, settlements: Sequence[Settlement]
) -> dict[Key, Recorded]:
    """(!) How this worker has settled these attempts, perhaps in a COMMIT that got no answer.

    Of several settlements of one attempt the first one counts. Another one that says the same is
    as good as landed; one that says something else is not.
    """
    if not settlements:
        return {}
    rows = to_json([{"id": s.id, "token": s.token} for s in settlements])
    ends = await tx.fetch_as(RecordedEnd, "recorded_ends", rows=rows, worker=worker, kinds=_SETTLED)
    return {(end.id, end.token): _recorded(end) for end in ends}


async def _gone(tx: Tx, ids: set[int]) -> set[int]:
    """Of a job that is not kept no row tells its end. If a repeat finds no trace of a job, it has
    ended, and most likely by the first try."""
    if not tx.repeat or not ids:
        return set()
    stored = await tx.fetch_as(StoredJob, "stored_jobs", ids=to_json(sorted(ids)))
    return ids - {job.id for job in stored}


def _recorded(end: RecordedEnd) -> Recorded:
    detail = {} if end.detail is None else msgspec.json.decode(end.detail)
    return Recorded(
        end.kind, end.reason, end.result, end.error, detail.get("delay_seconds", 0.0),
        bool(end.in_full), bool(end.was_last), bool(end.asked),
    )  # fmt: skip


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


def _ending(s: Settlement, move: Move, worker: str) -> Finish:
    return Finish(
        s.id, s.token, move.to, s.lease, worker, charged=int(move.charged),
        error=raw(error_of(s, move)), reason=move.reason, duration=s.duration_seconds,
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
    return NewEvent(s.id, s.token, kind_of(s), worker, detail)


def _lost(s: Settlement) -> str:
    return (
        f"job {s.id} is no longer held under token {s.token}: another attempt may be running. "
        "Roll back and stop"
    )
