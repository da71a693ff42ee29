"""promote, extend, sweep: time passes. Any worker may do any of this; there is no leader."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

import msgspec

from tenure.errors import InvalidInput, RowsLocked
from tenure.rules.job import Beat, Feature
from tenure.rules.lifecycle import Move, Standing, after_crash
from tenure.rules.limits import check_int, check_name, check_seconds, not_this
from tenure.rules.retention import Keep, check_keep
from tenure.store.jobs.settle import run_finishing
from tenure.store.moves import (
    add_events,
    add_tickets,
    count_ends,
    finish_jobs,
    note_new_tickets,
)
from tenure.store.notes import noted
from tenure.store.records import AddedTicket, ExpiredLease, JobToken, LeaseDeadline, SweptJob
from tenure.store.rows import Finish, NewEvent, Ticket
from tenure.store.session import (
    Mode,
    Scope,
    Tx,
    for_all_tenants,
    to_json,
    transaction,
)

MAX_PAGE = 10_000
PATIENCE_SECONDS = 1.0

# How much one sweep does before it lets others go on.
PAGE_LEASES = 1000
JOBS_PER_TRANSACTION = 1000
JOBS_PER_CALL = 10_000
PASSED_PER_CALL = 5000
"""Leases on which other transactions have locked all jobs."""
BUSY_PER_CALL = 10
"""Leases for which it waited for a lock in vain: about a quarter of a second each."""

Pair = tuple[int, int]


class Swept(msgspec.Struct, frozen=True):
    """What one page of a sweep did. `more` is True when another page may be waiting."""

    requeued: int = 0
    finished: int = 0
    more: bool = False


@transaction(Mode.WRITE)
async def promote(tx: Tx, *, most: int = 1000, now: datetime | None = None) -> int:
    """Put up to `most` due jobs at the end of their queues. Returns how many. Tokens stay."""
    for_all_tenants("promote", tx.tenant)
    check_int("most", most, 1, MAX_PAGE)
    tx.at(now)
    promoted = await tx.fetch_as(AddedTicket, "promote", most=most)
    await note_new_tickets(tx, promoted)
    if not promoted:
        await tx.fetch("drop_void_due", most=most)
    return len(promoted)


def _are_ids(groups: Iterable[object]) -> bool:
    return all(isinstance(ids, Collection) and not {*map(type, ids)} - {int} for ids in groups)


@transaction(Mode.BEAT)
async def extend(
    tx: Tx,
    worker: str,
    leases: Mapping[int, Sequence[int]],
    *,
    lease_seconds: float = 30.0,
    now: datetime | None = None,
) -> Beat:
    """Heartbeat: push the deadlines of these leases out, and report which jobs have started.

    `leases` maps each lease to the ids of its jobs that have started. An expired lease is refused
    and returned as lost, even if it was not swept yet: its worker must stop. A deadline that is
    further away than `lease_seconds` stays.
    """
    for_all_tenants("extend", tx.tenant)
    check_name("worker", worker)
    check_seconds("lease_seconds", lease_seconds, least=0.001)
    given: object = leases
    if not isinstance(given, Mapping) or not _are_ids([given, *given.values()]):
        raise InvalidInput(
            "extend takes the ids of leases, each with the ids of its jobs that have started: "
            f"extend(worker, {{lease.id: [job.id]}}), {not_this(leases)}"
        )
    tx.at(now)
    if not leases:
        return Beat((), ())
    rows = [
        {"id": id, "started": list(started)} if started else {"id": id}
        for id, started in sorted(leases.items())
    ]
    extended = set(
        await tx.fetch_column(
            "extend", rows=to_json(rows), worker=worker, lease_seconds=lease_seconds
        )
    )
    missing = sorted(set(leases) - extended)
    busy: set[int] = set()
    if missing:
        busy = set(await tx.fetch_column("valid_leases", ids=to_json(missing), worker=worker))
    lost = tuple(id for id in missing if id not in busy)
    cancelled = await _asked_to_stop(tx, worker, sorted(extended | busy))
    return Beat(lost, cancelled, tuple(sorted(busy)))


async def _asked_to_stop(tx: Tx, worker: str, lease_ids: list[int]) -> tuple[Pair, ...]:
    if not lease_ids or not await tx.fetch("any_cancel_requested"):
        return ()
    leased: set[Pair] = set()
    for jobs in await tx.fetch_column("lease_jobs", ids=to_json(lease_ids), worker=worker):
        leased.update(_pairs(jobs))
    ids = to_json(sorted(id for id, _ in leased))
    asked = {
        (job.id, job.token) for job in await tx.fetch_as(JobToken, "cancel_requested_jobs", ids=ids)
    }
    return tuple(sorted(asked & leased))


async def sweep(
    scope: Scope,
    *,
    most: int = 1000,
    keep: Mapping[str, Keep] | None = None,
    now: datetime | None = None,
) -> Swept:
    """Take back the jobs of up to `most` expired leases: requeued, failed or cancelled.

    Needs no handler for their tasks. A transaction takes back the jobs of many leases. Jobs that
    another transaction has locked are passed over, and stay on their leases. After a number of such
    leases the next call goes on behind them, so that they hold up no others. After a long wait for
    the write lock one sweep is skipped, so that live workers, who waited as long, renew first.
    `keep`: as in `settle`.
    """
    for_all_tenants("sweep", scope.tenant)
    check_int("most", most, 1, MAX_PAGE)
    if keep is not None:
        check_keep(keep)
    walk = _Walk(scope, most, keep, now, scope.session.swept_until)
    while await walk.go_on():
        pass
    scope.session.swept_until = walk.after if walk.more and walk.passed else None
    return Swept(walk.requeued, walk.finished, more=walk.more)


class _Walk:
    """One call of sweep: along the expired leases, the oldest first, page by page."""

    def __init__(
        self,
        scope: Scope,
        most: int,
        keep: Mapping[str, Keep] | None,
        now: datetime | None,
        after: LeaseDeadline | None,
    ) -> None:
        self._scope = scope
        self._most = most
        self._keep = keep
        self._now = now
        self.after = after
        """It goes on behind this lease."""
        self.requeued = self.finished = self.leases = 0
        self.passed = 0
        """Leases of which it could take back nothing."""
        self._busy = 0
        self.more = False

    async def go_on(self) -> bool:
        """Sweep the next page. False: this call is over."""
        page = await self._scope.transact(
            partial(_expired, after=self.after, now=self._now), Mode.READ
        )
        parts = deque([page] if page else [])
        while parts:
            part = parts.popleft()
            count = self._fitting(part)
            if count < len(part):
                parts.appendleft(part[count:])
                part = part[:count]
            ids = [lease.id for lease in part]
            try:
                sweep_part = partial(_sweep_leases, ids=ids, keep=self._keep, now=self._now)
                done = await run_finishing(self._scope, sweep_part, self._now)
            except RowsLocked:  # it met a lock further on, of a child perhaps
                if len(part) > 1:
                    half = len(part) // 2
                    parts.extendleft([part[half:], part[:half]])
                    continue
                self._busy += 1
                done = _Done()
            if done is None:
                self.more = True
                return False
            self._note(part, done)
            if self._is_over():
                self.more = True
                return False
        return len(page) == PAGE_LEASES

    def _fitting(self, part: Sequence[LeaseDeadline]) -> int:
        """How many of these leases fit into the next transaction."""
        room = min(len(part), self._most - self.leases)
        jobs = 0
        for count, lease in enumerate(part[:room]):
            jobs += lease.jobs
            if count and jobs > JOBS_PER_TRANSACTION:
                return count
        return room

    def _note(self, part: Sequence[LeaseDeadline], done: "_Done") -> None:
        *_, self.after = part
        self.requeued += done.requeued
        self.finished += done.finished
        self.leases += done.leases
        self.passed += len(part) - done.leases - done.void

    def _is_over(self) -> bool:
        return (
            self.leases == self._most
            or self.requeued + self.finished >= JOBS_PER_CALL
            or self.passed >= PASSED_PER_CALL
            or self._busy >= BUSY_PER_CALL
        )


async def _expired(
    tx: Tx, after: LeaseDeadline | None, now: datetime | None
) -> list[LeaseDeadline]:
    tx.at(now)
    expires, lease_id = (after.expires, after.id) if after else (None, 0)
    return await tx.fetch_as(
        LeaseDeadline, "expired_leases", most=PAGE_LEASES, after=expires, after_id=lease_id
    )


class _Done(NamedTuple):
    """How many jobs have new tickets, and how many have finished; of how many leases they were, and
    how many leases had no live job."""

    requeued: int = 0
    finished: int = 0
    leases: int = 0
    void: int = 0


async def _sweep_leases(
    tx: Tx, ids: list[int], keep: Mapping[str, Keep] | None, now: datetime | None
) -> _Done | None:
    """Sweep the jobs of these leases that no other transaction has locked.

    None: the lock took so long that live workers should renew first.
    """
    tx.at(now)
    tx.keep_by(keep)
    if tx.waited_seconds > PATIENCE_SECONDS:
        return None
    await tx.wait_briefly()
    jobs: dict[int, list[SweptJob]] = {}
    for job in await tx.fetch_as(SweptJob, "lock_swept", ids=to_json(ids)):
        jobs.setdefault(job.lease, []).append(job)
    taken = to_json(sorted(jobs))
    leases = await tx.fetch_as(ExpiredLease, "lock_leases", ids=to_json(ids), taken=taken)
    if not leases:
        return _Done()
    done = await _take_back(tx, [(lease, jobs.get(lease.id, [])) for lease in leases])
    await _shrink(tx, leases)
    return done


async def _take_back(tx: Tx, leases: list[tuple[ExpiredLease, list[SweptJob]]]) -> _Done:
    finishes: list[Finish] = []
    tickets: list[Ticket] = []
    events: list[NewEvent] = []
    crashed: Counter[tuple[str, str, str]] = Counter()
    notes = await noted(tx, {job.id: job.features for _, jobs in leases for job in jobs})
    for lease, jobs in leases:
        claimed_at = tx.when(lease.claimed_at)
        started = _Started(lease)
        for job in jobs:
            spent, charged = started.of(job)
            standing = Standing(job.attempts, job.max_attempts, bool(job.cancel_requested), spent)
            move = after_crash(standing, charged=charged)
            if move.to.final:
                finishes.append(_lost(job, lease.worker, move))
            else:
                crashed[job.queue, job.task, "crashed"] += 1
                tickets.append(
                    Ticket(
                        job.id, job.token, charged=int(move.charged), crashed=1, reason=move.reason
                    )
                )
            detail = {"claimed_at": claimed_at, "charged": move.charged, "reason": move.reason}
            if job.id in notes:
                detail["notes"] = notes[job.id]
            events.append(NewEvent(job.id, job.token, "crashed", lease.worker, detail))
    if tickets:
        await add_tickets(tx, tickets)
    await add_events(tx, events)
    await finish_jobs(tx, finishes)
    await count_ends(tx, crashed)
    with_jobs = sum(bool(jobs) for _, jobs in leases)
    return _Done(len(tickets), len(finishes), with_jobs, len(leases) - with_jobs)


class _Started:
    """Which jobs of an expired lease have started, as far as its worker has reported it."""

    def __init__(self, lease: ExpiredLease) -> None:
        self._reported = _ids(lease.started)
        self._once = _ids(lease.once)
        self._alone = lease.started is None and len(_pairs(lease.jobs)) == 1

    def of(self, job: SweptJob) -> tuple[bool, bool]:
        """Whether the job may start only once and has, and whether it is charged.

        A job that starts at most once reports its start first: without that it did not run.
        """
        if job.features & Feature.ONCE:
            spent = job.id in self._once
            return spent, spent
        return False, self._alone or job.id in self._reported


def _ids(listed: str | None) -> set[int]:
    return set(msgspec.json.decode(listed)) if listed else set()


async def _shrink(tx: Tx, leases: list[ExpiredLease]) -> None:
    """(!) Remove from a lease only what was taken back: what others have locked stays on it."""
    pairs = {lease.id: _pairs(lease.jobs) for lease in leases}
    rows = _rows([pair for jobs in pairs.values() for pair in jobs])
    live = set(await tx.fetch_as(JobToken, "still_live", rows=rows))
    left = {id: [pair for pair in jobs if pair in live] for id, jobs in pairs.items()}
    kept = [{"id": id, "jobs": jobs} for id, jobs in left.items() if jobs]
    if kept:
        await tx.fetch("keep_on_leases", rows=to_json(kept))
    gone = [id for id, jobs in left.items() if not jobs]
    if gone:
        await tx.fetch("delete_leases", ids=to_json(gone))


_LEASE_LOST = msgspec.Raw(
    b'{"type":"LeaseLost","message":"the worker died or stopped renewing its lease"}'
)


def _lost(job: SweptJob, worker: str, move: Move) -> Finish:
    return Finish(
        job.id, job.token, move.to, None, worker, charged=int(move.charged), crashed=1,
        error=_LEASE_LOST, reason=move.reason,
    )  # fmt: skip


def _pairs(jobs: str) -> list[Pair]:
    return [(id, token) for id, token in msgspec.json.decode(jobs)]


def _rows(pairs: list[Pair]) -> str:
    return to_json([{"id": id, "token": token} for id, token in pairs])
