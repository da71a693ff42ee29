"""peek, promote, extend, sweep: time passes. Any worker may do any of this; there is no leader."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

import msgspec

from tenure.errors import StoreBusy
from tenure.rules.job import Beat
from tenure.rules.lifecycle import Move, Standing, after_crash
from tenure.rules.limits import check_int, check_name, check_seconds
from tenure.store.moves import add_events, add_tickets, finish_jobs, note_new_tickets
from tenure.store.records import AddedTicket, ExpiredJob, ExpiredLease, JobToken, LeaseDeadline
from tenure.store.rows import Finish, NewEvent, Ticket
from tenure.store.session import Mode, Scope, Tx, for_all_tenants, to_json, transaction
from tenure.store.workflows.stop import run_finishing

MAX_PAGE = 10_000
MAX_PAGES = 1000
PATIENCE_SECONDS = 1.0

Pair = tuple[int, int]


class Swept(msgspec.Struct, frozen=True):
    """What one page of a sweep did. `more` is True when another page may be waiting."""

    requeued: int = 0
    finished: int = 0
    more: bool = False


class Outlook(msgspec.Struct, frozen=True):
    """What there is to do, and when."""

    ready: frozenset[str]
    """Queues from which a claim may get something."""
    due_seconds: float | None
    """Until the next job is due; not above zero when one is. None: none is scheduled."""
    expired: bool
    """Is there a lease to sweep?"""


@transaction(Mode.GLANCE)
async def peek(tx: Tx, queues: Collection[str], *, now: datetime | None = None) -> Outlook:
    """See whether it is worth while to claim from these queues, to promote and to sweep.

    One statement that writes nothing: what an idle worker does again and again.
    """
    for_all_tenants("peek", tx.tenant)
    for name in queues:
        check_name("queue", name)
    tx.at(now)
    seen = await tx.peek(queues)
    outlook = Outlook(frozenset(seen.ready), seen.due_seconds, bool(seen.expired))
    tx.gates.there = bool(seen.gates)
    return await _with_gates(tx, outlook, queues) if tx.gates.there else outlook


async def _with_gates(tx: Tx, outlook: Outlook, queues: Collection[str]) -> Outlook:
    """A queue at whose gates somebody waits is ready; one who waits for a token is due then."""
    rows = await tx.fetch("peek_gates", queues=to_json([*queues]))
    ready = outlook.ready.union(queue for queue, waits, _ in rows if waits)
    times = [seconds for _, _, seconds in rows if seconds is not None]
    if outlook.due_seconds is not None:
        times.append(outlook.due_seconds)
    return Outlook(ready, min(times, default=None), outlook.expired)


@transaction(Mode.WRITE)
async def promote(tx: Tx, *, most: int = 1000, now: datetime | None = None) -> int:
    """Put up to `most` due jobs at the end of their lines. Their tokens stay. Answers how many."""
    for_all_tenants("promote", tx.tenant)
    check_int("most", most, 1, MAX_PAGE)
    tx.at(now)
    promoted = await tx.fetch_as(AddedTicket, "promote", most=most)
    await note_new_tickets(tx, promoted)
    if not promoted:
        await tx.fetch("drop_void_due", most=most)
    return len(promoted)


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

    `leases` maps each lease to the ids of its jobs that have started. A lease that has expired is
    refused and answered as lost, even before anybody swept it: its worker must stop.
    """
    for_all_tenants("extend", tx.tenant)
    check_name("worker", worker)
    check_seconds("lease_seconds", lease_seconds, least=0.001)
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


async def sweep(scope: Scope, *, most: int = 20, now: datetime | None = None) -> Swept:
    """Take back the jobs of up to `most` expired leases: requeued, failed or cancelled.

    Needs no handler for their tasks. Each lease is a transaction of its own: one whose rows are
    locked by somebody is passed over and holds up no other. After a long wait for the write lock
    one sweep is skipped, so that live workers, who waited as long, renew first.
    """
    for_all_tenants("sweep", scope.tenant)
    check_int("most", most, 1, MAX_PAGE)
    requeued = finished = leases = 0
    after: LeaseDeadline | None = None
    for _ in range(MAX_PAGES):
        page = await scope.transact(partial(_expired, most=most, after=after, now=now), Mode.READ)
        for lease in page:
            after = lease
            try:
                done = await run_finishing(
                    scope, partial(_sweep_lease, lease_id=lease.id, now=now), now
                )
            except StoreBusy:
                continue
            if done is None:
                return Swept(requeued, finished, more=True)
            requeued, finished = requeued + done.requeued, finished + done.finished
            leases += any(done)
            if leases == most:
                return Swept(requeued, finished, more=True)
        if len(page) < most:
            break
    return Swept(requeued, finished)


async def _expired(
    tx: Tx, most: int, after: LeaseDeadline | None, now: datetime | None
) -> list[LeaseDeadline]:
    tx.at(now)
    expires, lease_id = after or (None, 0)
    return await tx.fetch_as(
        LeaseDeadline, "expired_leases", most=most, after=expires, after_id=lease_id
    )


class _Done(NamedTuple):
    """How many jobs of one lease have new tickets, and how many have finished."""

    requeued: int
    finished: int


async def _sweep_lease(tx: Tx, lease_id: int, now: datetime | None) -> _Done | None:
    """Sweep the jobs of one lease.

    None: the lock took so long that live workers should renew first.
    """
    tx.at(now)
    if tx.waited_seconds > PATIENCE_SECONDS:
        return None
    leases = await tx.fetch_as(ExpiredLease, "lock_lease", id=lease_id)
    return await _take_back(tx, leases[0]) if leases else _Done(0, 0)


async def _take_back(tx: Tx, lease: ExpiredLease) -> _Done:
    pairs = _pairs(lease.jobs)
    reported = set(msgspec.json.decode(lease.started)) if lease.started else set()
    finishes: list[Finish] = []
    tickets: list[Ticket] = []
    events: list[NewEvent] = []
    claimed_at = tx.when(lease.claimed_at)
    for job in await tx.fetch_as(ExpiredJob, "lock_expired", rows=_rows(pairs)):
        charged = job.id in reported or (len(pairs) == 1 and lease.started is None)
        standing = Standing(job.attempts, job.max_attempts, bool(job.cancel_requested))
        move = after_crash(standing, charged=charged)
        if move.to.final:
            finishes.append(_lost(job, lease.worker, move))
        else:
            charge = int(move.charged)
            tickets.append(Ticket(job.id, job.token, charged=charge, crashed=1, reason=move.reason))
        detail = {"claimed_at": claimed_at, "charged": charged, "reason": move.reason}
        events.append(NewEvent(job.id, job.token, "crashed", lease.worker, detail))
    if tickets:
        await add_tickets(tx, tickets)
    await add_events(tx, events)
    await finish_jobs(tx, finishes)
    await _shrink(tx, lease.id, pairs)
    return _Done(len(tickets), len(finishes))


async def _shrink(tx: Tx, lease_id: int, pairs: list[Pair]) -> None:
    """(!) Remove from the lease only what was taken back: what somebody locks stays on it."""
    left = await tx.fetch_as(JobToken, "still_live", rows=_rows(pairs))
    if left:
        await tx.fetch("keep_on_lease", id=lease_id, jobs=to_json(left))
    else:
        await tx.fetch("delete_lease", id=lease_id)


_LEASE_LOST = msgspec.Raw(
    b'{"type":"LeaseLost","message":"the worker died or stopped renewing its lease"}'
)


def _lost(job: ExpiredJob, worker: str, move: Move) -> Finish:
    return Finish(
        job.id, job.token, move.to, None, worker, charged=int(move.charged), crashed=1,
        error=_LEASE_LOST, reason=move.reason,
    )  # fmt: skip


def _pairs(jobs: str) -> list[Pair]:
    return [(id, token) for id, token in msgspec.json.decode(jobs)]


def _rows(pairs: list[Pair]) -> str:
    return to_json([{"id": id, "token": token} for id, token in pairs])
