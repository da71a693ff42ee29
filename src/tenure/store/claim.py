"""claim: tickets are consumed in order, their jobs go on a lease, and a worker holds them."""

from collections.abc import Mapping
from datetime import datetime
from operator import itemgetter

import msgspec

from tenure.errors import InvalidInput
from tenure.job import Claimed, Feature, Lease, State, check_int, check_name, check_seconds
from tenure.store.rows import Ending
from tenure.store.session import Mode, Row, Tx, for_all_tenants, to_json, transaction
from tenure.store.settle import finish_jobs

MAX_BLOCK = 10_000
_VOID_ROUNDS = 1000
_line_order = itemgetter(1, 2)  # of a ticket: priority, place
_KEY_UNTIL_STARTED = int(Feature.KEY_UNTIL_STARTED)


@transaction(Mode.WRITE)
async def claim(
    tx: Tx,
    worker: str,
    queues: Mapping[str, int],
    *,
    lease_seconds: float = 30.0,
    ahead: bool = False,
    now: datetime | None = None,
) -> list[Lease]:
    """Take up to `queues[name]` jobs from each queue, by priority, then in order of their places.

    Answers the leases under which the worker now holds them. Jobs with a crash on record come on a
    lease of their own each. An empty answer means that nothing was ready. With `ahead` the worker
    says that it has no free slot yet: should it die, even a job that is alone on its lease is not
    charged, unless it was reported started.
    """
    for_all_tenants("claim", tx.tenant)
    _check(worker, queues, lease_seconds)
    tx.at(now)
    if tx.repeat and (leases := await _claimed_before(tx, worker)):
        return leases
    granted: list[Row] = []
    for _ in range(_VOID_ROUNDS):
        taken = sorted(await tx.take_tickets(queues), key=_line_order)
        granted = [row for row in taken if row[3] is not None]
        flagged = [row for row in granted if row[16]]
        if flagged:  # (!) finished as cancelled, not handed out
            await finish_jobs(tx, [_cancelled(row) for row in flagged])
            granted = [row for row in granted if not row[16]]
        if granted or not taken:
            break  # (!) a claim that consumed only void tickets goes on at once
    started = [row[3] for row in granted if row[15] & _KEY_UNTIL_STARTED]
    if started:
        await tx.fetch("drop_started_keys", ids=to_json(started))
    return [await _lease(tx, worker, block, lease_seconds, ahead) for block in _blocks(granted)]


def _check(worker: str, queues: Mapping[str, int], lease_seconds: float) -> None:
    check_name("worker", worker)
    check_seconds("lease_seconds", lease_seconds, least=0.001)
    if not queues:
        raise InvalidInput("claim needs at least one queue: a worker serves the queues it names")
    for name, most in queues.items():
        check_name("queue", name)
        check_int(f"the number of jobs wanted from {name}", most, 1, MAX_BLOCK)


def _blocks(rows: list[Row]) -> list[list[Row]]:
    """Suspects are tried alone: a job with a crash on record gets a lease of its own."""
    suspects = [[row] for row in rows if row[10] > 0]
    trusted = [row for row in rows if row[10] == 0] if suspects else rows
    return [trusted, *suspects] if trusted else suspects


async def _lease(tx: Tx, worker: str, block: list[Row], lease_seconds: float, ahead: bool) -> Lease:
    pairs = to_json([(row[3], row[4]) for row in block])
    started = "[]" if ahead and block[0][10] == 0 else None  # a suspect is run at once
    [(lease_id, claimed_at, expires_at)] = await tx.fetch(
        "insert_lease", worker=worker, call=tx.call, jobs=pairs, started=started,
        lease_seconds=lease_seconds,
    )  # fmt: skip
    return _granted(tx, worker, (lease_id, claimed_at, expires_at), block)


async def _claimed_before(tx: Tx, worker: str) -> list[Lease]:
    """The first try may have landed unanswered: its jobs are ours, and nobody else runs them."""
    leases = []
    for lease_id, claimed_at, expires_at, jobs in await tx.fetch(
        "leases_of_call", worker=worker, call=tx.call
    ):
        pairs = [{"id": id, "token": token} for id, token in msgspec.json.decode(jobs)]
        block = await tx.fetch("jobs_on_lease", rows=to_json(pairs))
        leases.append(_granted(tx, worker, (lease_id, claimed_at, expires_at), block))
    return leases


def _granted(tx: Tx, worker: str, lease: Row, block: list[Row]) -> Lease:
    lease_id, claimed_at, expires_at = lease
    when = tx.when
    times = {at: when(at) for at in {row[11] for row in block}}  # a bulk shares its time
    jobs = tuple(
        Claimed(
            id, token, lease_id, task, args, queue, priority, tenant, attempts, max_attempts,
            crashes, times[created_at], timeout, retry, metadata, features,
        )
        for queue, priority, _, id, token, task, args, tenant, attempts, max_attempts, crashes,
            created_at, timeout, retry, metadata, features, _, _ in block
    )  # fmt: skip
    return Lease(lease_id, worker, when(claimed_at), when(expires_at), jobs)


def _cancelled(row: Row) -> Ending:
    return Ending(row[3], row[4], State.CANCELLED, reason="cancelled")
