"""claim: tickets are consumed in order, their jobs go on a lease, and a worker holds them.

peek: is there anything to claim?
"""

from collections.abc import Awaitable, Collection, Mapping, Set
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import msgspec

from tenure.errors import InvalidInput, StoreError
from tenure.rules.claim import MAX_CLAIM_KB, Ask, Claim, Claimed, Demand, Lease
from tenure.rules.job import State
from tenure.rules.lifecycle import EXPIRED
from tenure.rules.limits import check_int, check_name, check_seconds, not_this
from tenure.rules.retention import Keep, check_keep
from tenure.store.gate_records import GateName
from tenure.store.gates.passing import Passed, any_gates, pass_gates, passed_before, queue_order
from tenure.store.jobs.choose import Place, Walks, take_chosen
from tenure.store.moves import drop_leases, finish_jobs
from tenure.store.records import HeldTicket, TakenTicket
from tenure.store.rows import Finish
from tenure.store.session import Mode, Row, Scope, Tx, Wanted, for_all_tenants, to_json, transaction
from tenure.store.workflows.end import end_workflows

MAX_BLOCK = 10_000
MAX_KB = 2**20
_VOID_ROUNDS = 1000
_MISSED_ROUNDS = 100
"""So often a claim by tasks looks again, when other sessions have locked or taken what it chose."""
_SHUT_PAGES = 2
"""After this many pages of shut lines a claim leaves the rest to the next one: 10 to 15 ms, in
which other jobs wait. Without this bound, a claim beside 6,000 such turns took 0.25 s."""


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
    """A queue with turns is ready; a line that waits for its next start makes it due then."""
    rows = await tx.fetch("peek_gates", queues=to_json([*queues]))
    ready = outlook.ready.union(queue for queue, waits, _ in rows if waits)
    times = [seconds for _, _, seconds in rows if seconds is not None]
    if outlook.due_seconds is not None:
        times.append(outlook.due_seconds)
    return Outlook(ready, min(times, default=None), outlook.expired)


async def claim(
    scope: Scope,
    worker: str,
    queues: Mapping[str, int | Ask],
    *,
    lease_seconds: float = 30.0,
    ahead: bool = False,
    new_permits: int = MAX_BLOCK,
    riders: float = 0.0,
    max_kb: int = MAX_CLAIM_KB,
    tasks: Collection[str] | None = None,
    most: int | None = None,
    keep: Mapping[str, Keep] | None = None,
    now: datetime | None = None,
) -> Claim:
    """Take up to `queues[name]` jobs from each queue, by priority, then by position.

    With an `Ask` in place of a number, take as many of each kind as it says: a job of a kind that
    is not wanted does not hold up the jobs behind it. All jobs together have at most `max_kb`
    kilobytes of arguments and metadata; a larger job comes alone.

    Returns the leases under which the worker now has them; none if no job was ready. Each suspect
    comes on a lease of its own. With `ahead` the worker says that it has no free slot yet: if it
    dies, even a job that is alone on its lease is not charged, unless it was reported started.

    At gates with `max_running` the worker gets at most `new_permits`. For each permit that it has
    there, it may take `riders` more jobs, and start one when another job of the gate has finished.

    With `tasks`, take only jobs of tasks with these names. With `most`, take at most this many of
    all queues together, in one order of priority. Either looks at the first 250 tickets of each
    kind in each queue, and at 250 more behind those that the last claim has looked at in vain. It
    passes over jobs at gates.

    Jobs that were cancelled, or not started in time, end here. `keep`: as in `settle`.
    """
    for_all_tenants("claim", scope.tenant)
    asks = _checked(worker, queues, lease_seconds)
    if tasks is not None:
        tasks = _checked_tasks(tasks)
    if most is not None:
        check_int("most", most, 1, MAX_BLOCK)
    check_int("new_permits", new_permits, 0, MAX_BLOCK)
    check_int("max_kb", max_kb, 0, MAX_KB)
    if keep is not None:
        check_keep(keep)
    wanted = Wanted(worker, asks, lease_seconds, ahead, new_permits, riders, max_kb, keep=keep)
    if tasks is not None or most is not None:
        return await _chosen(scope, wanted, tasks, most, now)
    gates = scope.session.gates
    if gates.there is None:
        gates.there = await scope.transact(any_gates, Mode.READ)
    turns = gates.turns
    if turns.isdisjoint(queues):
        claim = await _from_queues(scope, wanted, now)
        if turns.isdisjoint(queues):  # as nearly always
            return claim
        return await _with_more(claim, _at_gates(scope, _rest(wanted, claim), now))
    return await _past_gates(scope, wanted, now)


async def _with_more(claim: Claim, more: Awaitable[Claim]) -> Claim:
    """Return what is taken even if taking more fails.

    Otherwise its jobs would wait for the end of leases that no worker knows of, and be charged as
    if their worker had died.
    """
    try:
        return claim.plus(await more)
    except StoreError:
        if not claim:
            raise
        return claim


async def _from_queues(scope: Scope, wanted: Wanted, now: datetime | None) -> Claim:
    """Jobs without a gate. Notes in which queues jobs wait at gates."""
    turns = scope.session.gates.turns
    for _ in range(_VOID_ROUNDS):
        taken = await scope.transact(partial(_take, wanted=wanted, now=now), Mode.LONE)
        turns.difference_update(wanted.queues)
        turns.update(taken.turns)
        if taken.ending:  # (!) finished as cancelled or skipped, not handed out
            await _end_now(scope, wanted, taken, now)
        if taken.claim or not taken.tickets:
            return taken.claim
    return Claim()  # (!) a claim that consumed only void tickets goes on at once, but not for ever


async def _chosen(
    scope: Scope,
    wanted: Wanted,
    tasks: Collection[str] | None,
    most: int | None,
    now: datetime | None,
) -> Claim:
    """Jobs of these tasks, or in one order across queues."""
    names = None if tasks is None else frozenset(tasks)
    total = sum(ask.most for ask in wanted.queues.values()) if most is None else most
    missed: set[Place] = set()
    misses = 0
    for _ in range(_VOID_ROUNDS):
        before = len(missed)
        op = partial(_take_chosen, wanted=wanted, tasks=names, most=total,
                     walks=scope.session.looked, missed=missed, now=now)  # fmt: skip
        taken = await scope.transact(op, Mode.LONE)
        if taken.ending:
            await _end_now(scope, wanted, taken, now)
        misses += len(missed) > before
        if taken.claim or misses == _MISSED_ROUNDS:
            return taken.claim
        if taken.tickets == 0 and len(missed) == before:
            return taken.claim
    return Claim()


async def _take_chosen(
    tx: Tx,
    wanted: Wanted,
    *,
    tasks: frozenset[str] | None,
    most: int,
    walks: Walks,
    missed: set[Place],
    now: datetime | None,
) -> "_Taken":
    tx.at(now)
    before = await passed_before(tx, wanted.worker) if tx.repeat else Passed([])
    if before.rows:
        return _taken(tx, wanted, before)
    rows = await take_chosen(tx, wanted, tasks, most, walks=walks, missed=missed)
    return _taken(tx, wanted, Passed(sorted(rows, key=_by_place)))


def _by_place(ticket: TakenTicket) -> tuple[int, int]:
    return ticket.priority, ticket.position


def _checked_tasks(tasks: Collection[str]) -> frozenset[str]:
    given: object = tasks
    if isinstance(given, str) or not isinstance(given, Collection) or not given:
        raise InvalidInput(f'tasks must be names of tasks: tasks=["app.send"], {not_this(tasks)}')
    for name in tasks:
        check_name("task", name)
    return frozenset(tasks)


@transaction(Mode.READ)
async def held(tx: Tx, worker: str, *, now: datetime | None = None) -> list[Lease]:
    """The leases of a worker that have not expired, with their live jobs, as a claim returns them.

    A worker that has lost track of its jobs can settle or release them.
    """
    for_all_tenants("held", tx.tenant)
    check_name("worker", worker)
    tx.at(now)
    rows = await tx.fetch_as(HeldTicket, "jobs_held_by", worker=worker)
    leases: dict[int, list[HeldTicket]] = {}
    for row in rows:
        leases.setdefault(row.lease, []).append(row)
    return [_held_lease(tx, worker, id, jobs) for id, jobs in leases.items()]


def _held_lease(tx: Tx, worker: str, id: int, rows: list[HeldTicket]) -> Lease:
    jobs = tuple(
        Claimed(
            row.id, row.token, id, row.task, row.args, row.queue, row.priority, row.tenant,
            row.attempts, row.max_attempts, row.crashes, tx.when(row.created_at),
            row.timeout_seconds, row.retry, row.metadata, row.features, row.needs,
            None if row.queued_at is None else tx.when(row.queued_at),
        )
        for row in rows
    )  # fmt: skip
    return Lease(id, worker, tx.when(rows[0].claimed_at), tx.when(rows[0].expires_at), jobs)


async def _past_gates(scope: Scope, wanted: Wanted, now: datetime | None) -> Claim:
    """Of jobs at gates and of others, the one with the lower priority and position comes first."""
    passed = await _pass(scope, wanted, now, first=True)
    rest = _rest(wanted, passed.claim)
    if not rest.queues:
        return passed.claim
    return await _with_more(passed.claim, _behind(scope, rest, passed.looked_at, now))


async def _behind(
    scope: Scope, wanted: Wanted, looked_at: Collection[str], now: datetime | None
) -> Claim:
    """Jobs without a gate, and then jobs at the gates that this claim has not looked at yet."""
    claim = await _from_queues(scope, wanted, now)
    rest = _rest(wanted, claim)
    late = scope.session.gates.turns.difference(looked_at)
    rest = rest._replace(queues={q: n for q, n in rest.queues.items() if q in late})
    return await _with_more(claim, _at_gates(scope, rest, now))


async def _at_gates(scope: Scope, wanted: Wanted, now: datetime | None) -> Claim:
    """Jobs that wait at gates, as many as are still wanted."""
    if not wanted.queues:
        return Claim()
    return (await _pass(scope, wanted, now, first=False)).claim


async def _pass(scope: Scope, wanted: Wanted, now: datetime | None, *, first: bool) -> "_Taken":
    """(!) After void tickets, and after lines that are all empty or full, it goes on at once.

    Not for ever: then the claim says that there are more.
    """
    looked_at = set(wanted.queues)
    only: Set[GateName] | None = None
    pages = 0
    taken = _Taken(0, Claim(), [])
    for _ in range(_VOID_ROUNDS):
        op = partial(_take_gated, wanted=wanted, now=now, first=first, only=only)
        taken = await scope.transact(op, Mode.GATE)
        looked_at -= wanted.queues.keys() - taken.looked_at
        if taken.ending:
            await _end_now(scope, wanted, taken, now)
        if taken.claim:
            break
        if taken.tickets:
            continue
        pages += 1
        only = taken.gates_left
        if not only or pages == _SHUT_PAGES:
            break
        queues = {queue: wanted.queues[queue] for queue, _ in only}
        wanted = wanted._replace(queues=queues)
    taken.claim.more = frozenset(queue for queue, _ in taken.gates_left)
    return taken._replace(looked_at=looked_at)


def _rest(wanted: Wanted, claim: Claim) -> Wanted:
    """What is still wanted. A claim takes at most one suspect: after that, nothing more."""
    demand, got = Demand(wanted.queues, wanted.max_kb), 0
    for lease in claim:
        for job in lease.jobs:
            demand.take(job.queue, job.needs, job.size_kb)
            got += 1
    has_suspect = any(lease.jobs[0].crashes for lease in claim)
    is_over = has_suspect or (got > 0 and not demand.kb)
    return wanted._replace(
        queues={} if is_over else demand.rest(), max_kb=demand.kb, taken=wanted.taken or got > 0,
        new_permits=max(0, wanted.new_permits - got),
    )  # fmt: skip


class _Taken(NamedTuple):
    """What one round took."""

    tickets: int
    """How many tickets, void ones included."""
    claim: Claim
    ending: list[TakenTicket]
    """Jobs with a cancel request, and jobs that were not started in time."""
    turns: Collection[str] = ()
    """Queues with tickets at gates."""
    looked_at: Set[str] = frozenset()
    """Queues at whose gates this round has looked."""
    gates_left: Set[GateName] = frozenset()
    """Gates with more turns behind those that this round has read in vain."""


async def _take(tx: Tx, wanted: Wanted, now: datetime | None) -> _Taken:
    """What is taken may land at once: nothing that can fail comes after it."""
    tx.at(now)
    before = await passed_before(tx, wanted.worker) if tx.repeat else Passed([])
    if before.rows:
        return _taken(tx, wanted, before)._replace(turns=tx.gates.turns.copy())
    seen: list[Row] = []
    if tx.gates.there:
        seen = await tx.fetch("peek_gates", queues=to_json([*wanted.queues]))
    passed = Passed(sorted(await tx.take_tickets(wanted), key=queue_order))
    return _taken(tx, wanted, passed)._replace(turns=[queue for queue, waits, _ in seen if waits])


async def _take_gated(
    tx: Tx, wanted: Wanted, now: datetime | None, first: bool, only: Collection[GateName] | None
) -> _Taken:
    tx.at(now)
    passed = await passed_before(tx, wanted.worker) if tx.repeat else Passed([])
    if not passed.rows:
        passed = await pass_gates(tx, wanted, first=first, only=only)
    gates_left = frozenset(gate for gate, more in passed.more.items() if more)
    taken = _taken(tx, wanted, passed)
    return taken._replace(looked_at=frozenset(passed.queues), gates_left=gates_left)


def _taken(tx: Tx, wanted: Wanted, passed: Passed) -> _Taken:
    tickets = passed.rows
    ending = [ticket for ticket in tickets if ticket.ends]
    granted = [
        ticket for ticket in tickets
        if ticket.lease is not None and not ticket.ends
    ]  # fmt: skip
    return _Taken(len(tickets), Claim(_leases(tx, wanted, granted), passed.permits), ending)


async def _end_now(scope: Scope, wanted: Wanted, taken: _Taken, now: datetime | None) -> None:
    """If this fails, the sweep finds them. The claim still returns the other jobs."""
    with suppress(StoreError):
        await scope.transact(partial(_end, wanted=wanted, jobs=taken.ending, now=now))


async def _end(tx: Tx, wanted: Wanted, jobs: list[TakenTicket], now: datetime | None) -> None:
    """They have a lease of their own. If the worker dies before this, the sweep finds them."""
    tx.at(now)
    tx.keep_by(wanted.keep)
    await finish_jobs(tx, [_finish(job) for job in jobs])
    leases = sorted({job.lease for job in jobs if job.lease is not None})
    await drop_leases(tx, leases, wanted.worker)
    await end_workflows(tx)


def _checked(worker: str, queues: Mapping[str, int | Ask], lease_seconds: float) -> dict[str, Ask]:
    check_name("worker", worker)
    check_seconds("lease_seconds", lease_seconds, least=0.001)
    if not isinstance(queues, Mapping):
        raise InvalidInput(
            f'claim takes how many jobs of which queue: claim(worker, {{"default": 1}}), '
            f"{not_this(queues)}"
        )
    if not queues:
        raise InvalidInput("claim needs at least one queue: a worker serves the queues it names")
    asks = {}
    for name, wanted in queues.items():
        check_name("queue", name)
        what = f"the number of jobs wanted from {name}"
        if isinstance(wanted, Ask):
            check_int(what, wanted.most, 1, MAX_BLOCK)
            for number in wanted.of.values():
                check_int(what, number, 0, MAX_BLOCK)
            asks[name] = wanted
        else:
            check_int(what, wanted, 1, MAX_BLOCK)
            asks[name] = Ask.any(wanted)
    return asks


def _leases(tx: Tx, wanted: Wanted, tickets: list[TakenTicket]) -> list[Lease]:
    """The lease of the trusted jobs first; each suspect is alone on its lease."""
    leases = [
        _lease(tx, wanted, [ticket for ticket in tickets if ticket.lease == lease])
        for lease in {ticket.lease for ticket in tickets}
    ]
    return sorted(leases, key=lambda lease: (lease.jobs[0].crashes > 0, lease.id))


def _lease(tx: Tx, wanted: Wanted, block: list[TakenTicket]) -> Lease:
    """The one place that takes all columns of these rows apart: there may be many."""
    lease_id, claimed_at, when = block[0].lease, tx.when(block[0].claimed_at), tx.when
    assert lease_id is not None
    times = {at: when(at) for at in {each.created_at for each in block}}  # a bulk shares its time
    jobs = tuple(
        Claimed(
            id, token, lease_id, task, args, queue, priority, tenant, attempts, max_attempts,
            crashes, times[created_at], timeout, retry, metadata, features, needs,
            None if queued_at is None else when(queued_at),
        )
        for queue, priority, _, id, token, task, args, tenant, attempts, max_attempts, crashes,
            created_at, timeout, retry, metadata, features, _, needs, queued_at, _, _ in block
    )  # fmt: skip
    expires_at = claimed_at + timedelta(seconds=wanted.lease_seconds)
    return Lease(lease_id, wanted.worker, claimed_at, expires_at, jobs)


def _finish(job: TakenTicket) -> Finish:
    if job.ends == 1:
        return Finish(job.id, job.token, State.CANCELLED, reason="cancelled")
    return Finish(job.id, job.token, State.SKIPPED, reason=EXPIRED)
