"""Passing: a claim takes the jobs that wait at gates, as far as the limits allow.

A job with a gate has its ticket in `gated`, in the line of its queue, gate and key. These hold:

1. A job passes only in a claim that has the row of its gate locked. The claim counts, in a later
   statement than the lock, how many jobs run there.
2. `gate_hold` lists the jobs that passed on a lease. A listed job counts as running while it is
   live under the token of that claim. So every end of an attempt frees its permit, also the sweep
   after a worker died, and no counter can go wrong.
3. No more permits are in use than `max_running`. A worker uses one permit per job; with riders (see
   `tenure.rules.permits`) it uses the number in `gate_share`, which only a claim of the same worker
   changes. It runs no more jobs at once than that.
4. Where `max_running` is 1, a worker claims no riders, and the jobs of a line run in order.
5. A line with tickets has a turn, or a running job whose end will write one. The transaction that
   adds a ticket writes a turn. So does the one that ends an attempt, on PostgreSQL even if it sees
   no ticket: a ticket that is added at the same time may find the line full.
6. Only a claim removes turns: those that it has read, of a line that it has seen, in a later
   statement, to be empty; or to be full while a job of this very line runs; or to have an earlier
   turn, which stays.
7. Only claims and changes of limits wait for the lock of a gate. Settlements never do.

A claim reads one page of turns. If no line of the page can pass, it reads the next page, so that
shut lines do not hold up the lines behind them. After two pages it stops, and the next claim goes
on from there: see `_walk_on`.

A line that is full because of a job of another queue keeps one turn. The turn is neither moved nor
delayed: when the key is free, the older turn goes first. Otherwise the other queue, which always
has its next job ready, could keep the key for ever.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

from tenure.rules.claim import Demand, Permits
from tenure.rules.gates import Limits
from tenure.rules.limits import MIN_PRIORITY
from tenure.rules.permits import (
    Limited,
    Line,
    Next,
    Room,
    admit,
    limited_by,
    next_turn,
    riders_of,
    room,
)
from tenure.store.gate_records import GateName, GateQuestion, LinePicked, OpenGate
from tenure.store.records import TakenTicket
from tenure.store.session import Tx, Walk, Wanted, to_json

TURNS_PER_PAGE = 50
"""A page has this many turns more than jobs are wanted: some lines are empty, or full."""
TURNS_PER_NEXT_PAGE = 100
"""A next page is larger, but small enough to keep gates locked for it. To read 6,000 turns takes
0.4 s with pages of 100, and as long with pages of 500."""
queue_order = attrgetter("priority", "position")
"""The order of tickets in a queue."""
_NO_TICKET = (float("inf"), 0.0)


async def any_gates(tx: Tx) -> bool:
    """Has a gate been declared, or named by a job?"""
    return bool(await tx.fetch("any_gate"))


class Passed(NamedTuple):
    """What one claim took at gates."""

    rows: list[TakenTicket]
    """The tickets that were taken, in the order in which their jobs start."""
    queues: Collection[str] = ()
    """The queues whose gates this claim has looked at."""
    permits: tuple[Permits, ...] = ()
    """Of this worker, at gates that limit how many jobs run."""
    more: Mapping[GateName, bool] = {}
    """Are there more turns at a gate behind lines that are all shut?"""


async def pass_gates(
    tx: Tx, wanted: Wanted, *, first: bool, only: Collection[GateName] | None
) -> Passed:
    """claim: take jobs that wait at gates, as far as these allow it.

    `first`: only from queues where a job at a gate comes before all jobs without one. `only`: at
    these gates.
    """
    opened = [
        gate for gate in await tx.open_gates(wanted.queues) if only is None or gate.name in only
    ]
    if not opened:
        return Passed([], wanted.queues)
    limits = {gate.name: gate.limits for gate in opened}
    questions = [_question(tx, wanted, name, limits[name]) for name in limits]
    lines = await _look(tx, wanted, limits, questions)
    late = _queues_with_earlier_jobs(opened, lines) if first else set()
    lines = [line for line in lines if line.queue not in late]
    demand = Demand(wanted.queues, wanted.max_kb, taken=wanted.taken)
    admit(lines, demand, slots=wanted.new_permits)
    picked = [line for line in lines if line.passed]
    taken = await _take(tx, wanted, picked) if picked else []
    await _go_on(tx, lines)
    looked_at = wanted.queues.keys() - late
    more = _walk_on(tx, [each for each in questions if each.queue not in late], lines)
    if not taken:  # to lock a gate is to write; turns that come back do no harm
        await tx.commit_late()
        return Passed([], looked_at, more=more)
    return Passed(taken, looked_at, await write_permits(tx, wanted.worker, picked), more)


async def passed_before(tx: Tx, worker: str) -> Passed:
    """claim, repeated: what its first try, whose COMMIT got no answer, has taken."""
    rows = await tx.fetch_as(TakenTicket, "claimed_before", worker=worker, request_id=tx.request_id)
    rows.sort(key=queue_order)
    leases = sorted({row.lease for row in rows if row.lease is not None})
    return Passed(rows, permits=await permits_given(tx, leases))


def _question(tx: Tx, wanted: Wanted, name: GateName, limits: Limits) -> GateQuestion:
    queue, gate = name
    walk = tx.gates.walks.get(name)
    past_priority, past_n = walk.past if walk else (MIN_PRIORITY, 0)
    most, riders = wanted.queues[queue].most, riders_of(limits.max_running, wanted.riders)
    lines = most if limits.max_running is None or riders else min(most, wanted.new_permits)
    return GateQuestion(
        queue, gate, limits.keyed, limits.max_running, limits.rate is not None, riders, most,
        TURNS_PER_NEXT_PAGE if walk else TURNS_PER_PAGE + lines, past_priority, past_n,
    )  # fmt: skip


async def _look(
    tx: Tx, wanted: Wanted, gates: Mapping[GateName, Limits], questions: Sequence[GateQuestion]
) -> list[Line]:
    rooms: dict[Limited, Room] = {}
    lines: list[Line] = []
    for found in await tx.look_at_gates(wanted, questions):
        limits = gates[found.queue, found.gate]
        limited = limited_by(found.gate, found.key, limits)
        if limited not in rooms:
            rooms[limited] = room(found.use, limits.max_running, wanted.riders)
            rooms[limited].starts = limits.filled(found.starts, found.age_seconds or 0.0)
            rooms[limited].is_stale = found.age_seconds is not None and found.age_seconds < 0
        lines.append(
            Line(
                found.queue, found.gate, found.key, limits, rooms[limited], found.turns,
                found.tickets, more=found.more, ahead=found.ahead, runs=found.running > 0,
            )
        )  # fmt: skip
    return lines


def _queues_with_earlier_jobs(opened: Iterable[OpenGate], lines: Sequence[Line]) -> set[str]:
    """The queues in which a job without a gate comes before all waiting tickets of `lines`."""
    late = set()
    for gate in opened:
        if gate.head_priority is None or gate.head_position is None:
            continue
        heads: list[tuple[float, float]] = [
            (line.tickets[0].priority, line.tickets[0].position)
            for line in lines if line.queue == gate.queue and line.tickets
        ]  # fmt: skip
        if (gate.head_priority, gate.head_position) < min(heads, default=_NO_TICKET) < _NO_TICKET:
            late.add(gate.queue)
    return late


async def _take(tx: Tx, wanted: Wanted, picked: list[Line]) -> list[TakenTicket]:
    """Take the tickets that `admit` has picked. Notes on the lines which jobs have passed."""
    if any(line.room.has_riders for line in picked):  # if the worker dies, they have not started
        wanted = wanted._replace(ahead=True)
    by_line = await tx.take_gated(wanted, [_picked(line) for line in picked])
    for line, rows in zip(picked, by_line, strict=True):
        line.landed = [row.id for row in rows if row.id is not None]
        line.room.starts += len(line.passed) - len(rows)  # there were no more
    return _in_turn(by_line)


def _picked(line: Line) -> LinePicked:
    head, last = line.passed[0], line.passed[-1]
    suspects = [ticket.position for ticket in line.passed if ticket.is_suspect]
    return LinePicked(
        line.queue, line.gate, line.key, head.priority, head.position, last.priority,
        last.position, suspects[0] if suspects else None, len(line.passed),
    )  # fmt: skip


def _in_turn(by_line: list[list[TakenTicket]]) -> list[TakenTicket]:
    """By priority, then one of each line in turn: the order in which they start."""
    if len(by_line) == 1:
        return sorted(by_line[0], key=queue_order)
    turns = [
        ((row.priority, n, i), row)
        for i, rows in enumerate(by_line)
        for n, row in enumerate(sorted(rows, key=queue_order))
    ]
    return [row for _, row in sorted(turns, key=itemgetter(0))]


async def _go_on(tx: Tx, lines: list[Line]) -> None:
    """Remove the turns that are used up, add new ones, and write down what the rates have left."""
    count = Counter((line.queue, line.gate) for line in lines)
    gone: list[dict[str, object]] = []
    again: list[dict[str, object]] = []
    spare: list[dict[str, object]] = []
    for line in lines:
        step = next_turn(line, alone=count[line.queue, line.gate] == 1)
        named: dict[str, object] = {"queue": line.queue, "gate": line.gate}
        gone += [named | turn._asdict() for turn in step.gone]
        if step.again:
            again.append(named | _at_the_end(line, step, len(again)))
        spare += [named | turn for turn in _spare_turns(tx, line)]
    if gone:
        await tx.fetch("drop_turns", rows=to_json(gone))
    if spare:
        await tx.fetch("drop_spare_turns", rows=to_json(spare))
    if again:
        await tx.fetch("add_turns", rows=to_json(again))
    used = {
        line.limited: line.room
        for line in lines
        if line.limits.rate is not None and (line.room.taken or line.room.is_stale)
    }
    if used:
        rows = [
            {"gate": gate, "key": key, "starts_left": room.starts}
            for (gate, key), room in used.items()
        ]
        await tx.fetch("fill_buckets", rows=to_json(rows))


def _at_the_end(line: Line, step: Next, i: int) -> dict[str, object]:
    left = line.tickets[len(line.passed) :]
    priority = left[0].priority if left else line.turns[0].priority
    return {"i": i, "priority": priority, "key": line.key, "wait": step.wait_seconds}


# --- walks ----------------------------------------------------------------------------------------


def _walk_on(
    tx: Tx, questions: Iterable[GateQuestion], lines: Iterable[Line]
) -> dict[GateName, bool]:
    """At which of these gates are there more turns behind lines that are all shut?

    The next claim of this process goes on there, so that it gets past thousands of lines that
    cannot pass. At all others it begins with the first turn again.
    """
    pages: dict[GateName, list[Line]] = {}
    for line in lines:
        pages.setdefault((line.queue, line.gate), []).append(line)
    more = {}
    for question in questions:
        gate = question.name
        page = pages.get(gate, [])
        turns = [turn for line in page for turn in line.turns]
        shut = all(line.is_shut and not line.passed for line in page)
        more[gate] = shut and len(turns) == question.turns
        if not more[gate]:
            tx.gates.walks.pop(gate, None)
            continue
        walk = tx.gates.walks.setdefault(gate, Walk(max(turns)))
        walk.past = max(turns)
        for line in page:
            if not line.is_empty:
                walk.first.setdefault(line.key, line.turns[0])
    return more


def _spare_turns(tx: Tx, line: Line) -> list[dict[str, object]]:
    """Turns of a line of which the walk has met an earlier turn. They can go.

    1,200 full lines with 45 jobs each have 54,000 turns. To read all of them takes 3 s: with this
    the first time only, and 0.1 s from then on.
    """
    walk = tx.gates.walks.get((line.queue, line.gate))
    if walk is None or line.key not in walk.first:
        return []
    first = walk.first[line.key]
    return [
        turn._asdict() | {"first_priority": first.priority, "first_n": first.n}
        for turn in line.turns
    ]


async def write_permits(tx: Tx, worker: str, lines: Sequence[Line]) -> tuple[Permits, ...]:
    """claim: write down the number of this worker's permits where it has more jobs than that.

    Returns its permits at each gate where a limit counts, for the worker to keep to.
    """
    jobs: dict[Limited, list[int]] = {}
    begun: list[dict[str, object]] = []
    ended: list[dict[str, object]] = []
    for line in lines:
        if line.landed and line.limits.max_running is not None:
            jobs.setdefault(line.limited, []).extend(line.landed)
    rooms = {line.limited: line.room for line in lines}
    for gate, key in jobs:
        room = rooms[gate, key]
        if not room.has_riders:
            ended += [{"gate": gate, "key": key}] if room.share is not None else []
        elif room.share != room.mine:
            begun.append({"gate": gate, "key": key, "permits": room.mine})
    if begun:
        await tx.fetch("share_permits", rows=to_json(begun), worker=worker)
    if ended:
        await tx.fetch("end_shares", rows=to_json(ended), worker=worker)
    return tuple(
        Permits(gate, key, rooms[gate, key].mine, frozenset(ids))
        for (gate, key), ids in jobs.items()
    )


async def permits_given(tx: Tx, leases: Sequence[int]) -> tuple[Permits, ...]:
    """claim, repeated: the permits that its first try, which took these leases, was given."""
    if not leases:
        return ()
    return tuple(
        Permits(gate, key, most, frozenset(ids))
        for gate, key, ids, most in await tx.fetch("permits_given", ids=to_json(list(leases)))
    )
