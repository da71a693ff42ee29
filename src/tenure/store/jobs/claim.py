"""claim: tickets are consumed in order, their jobs go on a lease, and a worker holds them."""

from collections import Counter
from collections.abc import Awaitable, Collection, Mapping, Set
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import msgspec

from tenure.errors import InvalidInput, StoreError
from tenure.rules.job import Claimed, Lease, State, check_int, check_name, check_seconds
from tenure.store.gates.passing import Passed, any_gates, line_order, pass_gates, passed_before
from tenure.store.moves import drop_leases, finish_jobs
from tenure.store.records import TakenTicket
from tenure.store.rows import Finish
from tenure.store.session import Mode, Row, Scope, Tx, Wanted, for_all_tenants, to_json
from tenure.store.workflows.end import end_workflows

MAX_BLOCK = 10_000
_VOID_ROUNDS = 1000
_SHUT_PAGES = 2
"""So many pages of turns, in vain, and a claim leaves the rest to the next one: 10 to 15 ms for who
waits in line. With as many pages as there were, it took 0.25 s to claim beside 6,000 such turns."""


async def claim(
    scope: Scope,
    worker: str,
    queues: Mapping[str, int],
    *,
    lease_seconds: float = 30.0,
    ahead: bool = False,
    new_places: int = MAX_BLOCK,
    riders: float = 0.0,
    more: set[str] | None = None,
    now: datetime | None = None,
) -> list[Lease]:
    """Take up to `queues[name]` jobs from each queue, by priority, then in order of their places.

    Answers the leases under which the worker now holds them. Jobs with a crash on record come on a
    lease of their own each. An empty answer means that nothing was ready. With `ahead` the worker
    says that it has no free slot yet: should it die, even a job that is alone on its lease is not
    charged, unless it was reported started.

    At gates with `max_running` it gets `new_places` at most: so many more it could run at once.
    With each place that it has there so many `riders` may come along: jobs that start when another
    one of the same gate has ended here. `Lease.places` says how many may run.

    Queues are added to `more` where so many jobs wait at gates in vain that there was no time to
    look at all: the next claim goes on there.
    """
    for_all_tenants("claim", scope.tenant)
    _check(worker, queues, lease_seconds)
    check_int("new_places", new_places, 0, MAX_BLOCK)
    more = set() if more is None else more
    wanted = Wanted(worker, queues, lease_seconds, ahead, new_places, riders, more)
    gates = scope.session.gates
    if gates.there is None:
        gates.there = await scope.transact(any_gates, Mode.READ)
    turns = gates.turns
    if turns.isdisjoint(queues):
        leases = await _from_line(scope, wanted, now)
        if turns.isdisjoint(queues):  # as nearly always
            return leases
        return await _with_more(leases, _at_gates(scope, _rest(wanted, leases), now))
    return await _past_gates(scope, wanted, now)


async def _with_more(leases: list[Lease], more: Awaitable[list[Lease]]) -> list[Lease]:
    """What is taken is answered, whatever becomes of the rest: its jobs would wait for the end of
    leases that nobody knows of, and be charged as if their worker had died."""
    try:
        return leases + await more
    except StoreError:
        if not leases:
            raise
        return leases


async def _from_line(scope: Scope, wanted: Wanted, now: datetime | None) -> list[Lease]:
    """Jobs without a gate. Notes for which queues there are others."""
    turns = scope.session.gates.turns
    for _ in range(_VOID_ROUNDS):
        taken = await scope.transact(partial(_take, wanted=wanted, now=now), Mode.LONE)
        turns.difference_update(wanted.queues)
        turns.update(taken.turns)
        if taken.asked:  # (!) finished as cancelled, not handed out
            await _cancel_asked(scope, wanted, taken, now)
        if taken.leases or not taken.tickets:
            return taken.leases
    return []  # (!) a claim that consumed only void tickets goes on at once, but not for ever


async def _past_gates(scope: Scope, wanted: Wanted, now: datetime | None) -> list[Lease]:
    """Of jobs at gates and of others, those that stand further ahead come first."""
    passed = await _pass(scope, wanted, now, first=True)
    rest = _rest(wanted, passed.leases)
    if not rest.queues:
        return passed.leases
    return await _with_more(passed.leases, _behind(scope, rest, passed.looked_at, now))


async def _behind(
    scope: Scope, wanted: Wanted, looked_at: Collection[str], now: datetime | None
) -> list[Lease]:
    """Jobs without a gate, and then those at gates that nobody has looked at yet."""
    leases = await _from_line(scope, wanted, now)
    rest = _rest(wanted, leases)
    late = scope.session.gates.turns.difference(looked_at)
    rest = rest._replace(queues={q: n for q, n in rest.queues.items() if q in late})
    return await _with_more(leases, _at_gates(scope, rest, now))


async def _at_gates(scope: Scope, wanted: Wanted, now: datetime | None) -> list[Lease]:
    """Jobs that wait at gates, from what is left to be had."""
    if not wanted.queues:
        return []
    return (await _pass(scope, wanted, now, first=False)).leases


async def _pass(scope: Scope, wanted: Wanted, now: datetime | None, *, first: bool) -> "_Taken":
    """(!) Where there were only lines that are empty or full, or void tickets, it goes on at once
    with the next ones; not for ever, but then it notes that there are more."""
    looked_at = set(wanted.queues)
    only: set[tuple[str, str]] | None = None
    pages = 0
    taken = _Taken(0, [], [])
    for _ in range(_VOID_ROUNDS):
        op = partial(_take_gated, wanted=wanted, now=now, first=first, only=only)
        taken = await scope.transact(op, Mode.GATE)
        looked_at -= wanted.queues.keys() - taken.looked_at
        if taken.asked:
            await _cancel_asked(scope, wanted, taken, now)
        if taken.leases:
            break
        if taken.tickets:
            continue
        pages += 1
        only = {gate for gate, more in taken.more.items() if more}
        if not only or pages == _SHUT_PAGES:
            break
        queues = {queue: wanted.queues[queue] for queue, _ in only}
        wanted = wanted._replace(queues=queues)
    wanted.more.update(queue for (queue, _), more in taken.more.items() if more)
    return taken._replace(looked_at=looked_at)


def _rest(wanted: Wanted, leases: list[Lease]) -> Wanted:
    """What is still wanted. A claim takes at most one suspect: after that, nothing more."""
    got = Counter([job.queue for lease in leases for job in lease.jobs])
    free = wanted.new_places - got.total()
    queues = {queue: most - got[queue] for queue, most in wanted.queues.items()}
    queues = {queue: most for queue, most in queues.items() if most > 0}
    has_suspect = any(lease.jobs[0].crashes for lease in leases)
    return wanted._replace(queues={} if has_suspect else queues, new_places=max(0, free))


class _Taken(NamedTuple):
    """What one round brought: how many tickets, void ones too, and what came of them."""

    tickets: int
    leases: list[Lease]
    asked: list[TakenTicket]
    """Jobs whose cancellation is requested."""
    turns: Collection[str] = ()
    """Queues at whose gates somebody waits."""
    looked_at: Set[str] = frozenset()
    """Queues at whose gates this round has looked."""
    more: Mapping[tuple[str, str], bool] = {}
    """Are there more turns at a gate (queue, gate) behind those that it has seen in vain?"""


async def _take(tx: Tx, wanted: Wanted, now: datetime | None) -> _Taken:
    """What is taken may land at once: nothing that can fail comes after it."""
    tx.at(now)
    before = await passed_before(tx, wanted.worker) if tx.repeat else Passed([])
    if before.rows:
        return _taken(tx, wanted, before)._replace(turns=tx.gates.turns.copy())
    seen: list[Row] = []
    if tx.gates.there:
        seen = await tx.fetch("peek_gates", queues=to_json([*wanted.queues]))
    passed = Passed(sorted(await tx.take_tickets(wanted), key=line_order))
    return _taken(tx, wanted, passed)._replace(turns=[queue for queue, waits, _ in seen if waits])


async def _take_gated(
    tx: Tx,
    wanted: Wanted,
    now: datetime | None,
    first: bool,
    only: Collection[tuple[str, str]] | None,
) -> _Taken:
    tx.at(now)
    passed = await passed_before(tx, wanted.worker) if tx.repeat else Passed([])
    if not passed.rows:
        passed = await pass_gates(tx, wanted, first=first, only=only)
    looked_at = frozenset(passed.queues)
    return _taken(tx, wanted, passed)._replace(looked_at=looked_at, more=passed.more)


def _taken(tx: Tx, wanted: Wanted, passed: Passed) -> _Taken:
    tickets = passed.rows
    asked = [ticket for ticket in tickets if ticket.cancel_requested]
    granted = [
        ticket for ticket in tickets
        if ticket.lease is not None and not ticket.cancel_requested
    ]  # fmt: skip
    leases = _leases(tx, wanted, granted)
    if passed.places:
        leases = [msgspec.structs.replace(lease, places=passed.places) for lease in leases]
    return _Taken(len(tickets), leases, asked)


async def _cancel_asked(scope: Scope, wanted: Wanted, taken: _Taken, now: datetime | None) -> None:
    """If this fails, the sweep cancels them. The claim still returns the other jobs."""
    with suppress(StoreError):
        await scope.transact(partial(_cancel, worker=wanted.worker, jobs=taken.asked, now=now))


async def _cancel(tx: Tx, worker: str, jobs: list[TakenTicket], now: datetime | None) -> None:
    """They have a lease of their own. If the worker dies before this, the sweep cancels them."""
    tx.at(now)
    await finish_jobs(tx, [_cancelled(job) for job in jobs])
    leases = sorted({job.lease for job in jobs if job.lease is not None})
    await drop_leases(tx, leases, worker)
    await end_workflows(tx)


def _check(worker: str, queues: Mapping[str, int], lease_seconds: float) -> None:
    check_name("worker", worker)
    check_seconds("lease_seconds", lease_seconds, least=0.001)
    if not queues:
        raise InvalidInput("claim needs at least one queue: a worker serves the queues it names")
    for name, most in queues.items():
        check_name("queue", name)
        check_int(f"the number of jobs wanted from {name}", most, 1, MAX_BLOCK)


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
            crashes, times[created_at], timeout, retry, metadata, features,
        )
        for queue, priority, _, id, token, task, args, tenant, attempts, max_attempts, crashes,
            created_at, timeout, retry, metadata, features, _, _, _ in block
    )  # fmt: skip
    expires_at = claimed_at + timedelta(seconds=wanted.lease_seconds)
    return Lease(lease_id, wanted.worker, claimed_at, expires_at, jobs)


def _cancelled(job: TakenTicket) -> Finish:
    return Finish(job.id, job.token, State.CANCELLED, reason="cancelled")
