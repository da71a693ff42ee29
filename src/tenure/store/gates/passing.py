"""Gates: who waits, who may pass, and what is allowed. See gate.py for how turns are taken.

A job with a gate has its ticket in `gated`. It passes in a claim, which notes in `gate_hold` what
passed on a lease. It runs as long as it is live under the token of that claim: whoever brings the
attempt to its end frees its position. So a worker that died gives its places back with the sweep.

Turns say at which lines to look. No wake-up is lost, because
- whoever puts a ticket in line writes a turn in the same transaction, and so does whoever frees a
  position, on PostgreSQL without looking who waits;
- only a claim that has the gate locked takes turns away, those that it has seen, and only of a line
  that it has seen, in a later statement, to be empty, or to be full with a job of this very line
  running: the end of that job writes the next turn; or that has an earlier turn, which stays.
Nobody but claims, and who changes limits, ever waits for a gate.

A claim looks at a page of turns. If all their lines are empty or full, it goes on behind them: else
whoever can pass there would wait until they are not. It looks at two pages at most, and the next
claim goes on from there (a `Walk`), because jobs without a gate, and all else that a worker does,
wait meanwhile. At the last turn the walk is over: who finds nobody may rest.

A line that is full because of a job of another queue keeps one turn, which every walk meets. It is
neither moved nor made to wait (`not_before`): when the key is free, the older turn goes first, and
without one the other queue, which always has its next job at hand, would go on for ever. So a walk
that meets only such lines writes nothing. There are no more of them than jobs that run.

Places belong to workers. A worker uses one for each of its jobs, and a claim that has the gate
locked sees to it that no more are used than there are. Of short jobs it may take more than it has
places for: it knows how many of them it may run at once, which is written down as its share, and as
long as it has more jobs than that, its share is what it uses. So the next job starts as soon as one
has ended, and a settlement gives places back only when a worker has fewer jobs than places. Where
only one may run, order is promised, and nobody takes more than that.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from tenure.rules.gates import (
    Limited,
    Limits,
    Line,
    Next,
    Room,
    Use,
    admit,
    limited_by,
    next_turn,
)
from tenure.rules.job import MIN_PRIORITY, Places
from tenure.store.records import TakenTicket
from tenure.store.session import (
    Tx,
    Walk,
    Wanted,
    to_json,
)

SPARE_TURNS = 50
"""So many more turns are read than jobs are wanted: some lines are empty, or full."""
MORE_TURNS = 100
"""So many at once when all lines were empty or full: few enough to have gates locked for them. Who
looks at 6,000 needs as long with pages of 100 as with pages of 500: 0.4 s."""
line_order = attrgetter("priority", "position")
_NOBODY = (float("inf"), 0.0)


async def any_gates(tx: Tx) -> bool:
    """Has anybody declared a gate?"""
    return bool(await tx.fetch("any_gate"))


class Passed(NamedTuple):
    """What passed, as rows of `take_tickets`, in the order in which they start; the queues whose
    gates were looked at; the places that this worker has at gates that limit how many run; and
    whether there are more turns at a gate (queue, gate) behind lines that were all shut."""

    rows: list[TakenTicket]
    queues: Collection[str] = ()
    places: tuple[Places, ...] = ()
    more: Mapping[tuple[str, str], bool] = {}


async def pass_gates(
    tx: Tx, wanted: Wanted, *, first: bool, only: Collection[tuple[str, str]] | None
) -> Passed:
    """claim: take jobs that wait at gates, as far as these allow it.

    `first`: only from queues where they stand before all jobs without a gate. `only`: at these
    gates (queue, gate).
    """
    opened = await tx.open_gates(wanted.queues)
    gates = {(row[0], row[1]): Limits(
        max_running=row[2], rate=row[3], per_seconds=row[4], burst=row[5], keyed=bool(row[6])
    ) for row in opened if only is None or (row[0], row[1]) in only}  # fmt: skip
    if not gates:
        return Passed([], wanted.queues)
    asked = [_asked(tx, wanted, queue, gate, limits) for (queue, gate), limits in gates.items()]
    lines = await _look(tx, wanted, gates, asked)
    heads = {row[0]: (row[7], row[8]) for row in opened if row[7] is not None} if first else {}
    late = {queue for queue, head in heads.items() if head < _best(lines, queue) < _NOBODY}
    lines = [line for line in lines if line.queue not in late]
    admit(lines, dict(wanted.queues), free=wanted.new_places)
    picked = [line for line in lines if line.passed]
    taken: list[TakenTicket] = []
    if picked:
        if any(line.room.rides for line in picked):  # should it die, they have not started
            wanted = wanted._replace(ahead=True)
        by_line = await tx.take_gated(wanted, [_picked(line) for line in picked])
        for line, rows in zip(picked, by_line, strict=True):
            line.landed = [row.id for row in rows if row.id is not None]
            line.room.tokens += len(line.passed) + line.unseen - len(rows)  # there were no more
        taken = _in_turn(by_line)
    await _go_on(tx, lines)
    looked_at = wanted.queues.keys() - late
    more = _walk_on(tx, [each for each in asked if each["queue"] not in late], lines)
    if not taken:  # to lock a gate is to write; turns that come back do no harm
        await tx.commit_late()
        return Passed([], looked_at, more=more)
    return Passed(taken, looked_at, await _share(tx, wanted, picked), more)


def _walk_on(
    tx: Tx, asked: Iterable[Mapping[str, Any]], lines: Iterable[Line]
) -> dict[tuple[str, str], bool]:
    """At which of these gates are there more turns behind lines that are all shut?

    Claims go on there. At all others they begin with the first turn again.
    """
    pages: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        pages.setdefault((line.queue, line.gate), []).append(line)
    more = {}
    for each in asked:
        gate = each["queue"], each["gate"]
        page = pages.get(gate, [])
        turns = [(priority, n) for line in page for priority, n in line.turns]
        shut = all(line.is_shut and not line.passed for line in page)
        more[gate] = shut and len(turns) == each["turns"]
        if not more[gate]:
            tx.gates.walks.pop(gate, None)
            continue
        walk = tx.gates.walks.setdefault(gate, Walk(max(turns)))
        walk.past = max(turns)
        for line in page:
            if not line.is_empty:
                walk.first.setdefault(line.key, (line.turns[0][0], line.turns[0][1]))
    return more


def _in_turn(by_line: list[list[TakenTicket]]) -> list[TakenTicket]:
    """By priority, then one of each line in turn: that is the order in which they start."""
    if len(by_line) == 1:
        return sorted(by_line[0], key=line_order)
    turns = [
        (row.priority, n, i, row)
        for i, rows in enumerate(by_line)
        for n, row in enumerate(sorted(rows, key=line_order))
    ]
    return [row for _, _, _, row in sorted(turns, key=itemgetter(0, 1, 2))]


async def passed_before(tx: Tx, worker: str) -> Passed:
    """claim, repeated: what its first try, whose COMMIT got no answer, has taken."""
    rows = await tx.fetch_as(TakenTicket, "claimed_before", worker=worker, request_id=tx.request_id)
    rows.sort(key=line_order)
    leases = sorted({row.lease for row in rows if row.lease is not None})
    given = await tx.fetch("places_given", ids=to_json(leases)) if rows else []
    return Passed(
        rows,
        places=tuple(Places(gate, key, most, frozenset(ids)) for gate, key, ids, most in given),
    )


async def _look(
    tx: Tx,
    wanted: Wanted,
    gates: Mapping[tuple[str, str], Limits],
    asked: list[dict[str, Any]],
) -> list[Line]:
    rooms: dict[Limited, Room] = {}
    lines: list[Line] = []
    for row in await tx.look_at_gates(wanted, asked):
        queue, gate, key, use, (here, tokens, age, turns, tickets, more, ahead) = (
            *row[:3],
            row[3:7],
            row[7:],
        )
        limits = gates[queue, gate]
        limited = limited_by(gate, key, limits)
        if limited not in rooms:
            rooms[limited] = _room(wanted, limits, Use(*use))
            rooms[limited].tokens = limits.filled(tokens, age or 0.0)
            rooms[limited].stale = age is not None and age < 0
        lines.append(
            Line(
                queue, gate, key, limits, rooms[limited], turns, tickets, more=more,
                ahead=ahead, holders=here > 0,
            )
        )  # fmt: skip
    return lines


def _asked(tx: Tx, wanted: Wanted, queue: str, gate: str, limits: Limits) -> dict[str, Any]:
    walk = tx.gates.walks.get((queue, gate))
    past_priority, past_n = walk.past if walk else (MIN_PRIORITY, 0)
    most, riders = wanted.queues[queue], _riders(wanted, limits)
    lines = most if limits.max_running is None or riders else min(most, wanted.new_places)
    return {
        "queue": queue, "gate": gate, "keyed": limits.keyed, "max_running": limits.max_running,
        "rated": limits.rate is not None, "riders": riders, "most": most,
        "turns": MORE_TURNS if walk else SPARE_TURNS + lines,
        "past_priority": past_priority, "past_n": past_n,
    }  # fmt: skip


def _room(wanted: Wanted, limits: Limits, use: Use) -> Room:
    most = limits.max_running
    if most is None:
        return Room()
    return Room(
        running=most - use.others - use.mine,
        mine=max(0, min(use.mine, most - use.others)),
        live=use.live, share=use.share, riders=_riders(wanted, limits),
    )  # fmt: skip


def _riders(wanted: Wanted, limits: Limits) -> float:
    """Where one runs at a time, jobs run in order: nobody has the next one in hand already."""
    return 0.0 if limits.max_running == 1 else wanted.riders


def _best(lines: Iterable[Line], queue: str) -> tuple[float, float]:
    """The lowest priority and place among the tickets of a queue."""
    heads: list[tuple[float, float]] = [
        (line.tickets[0][0], line.tickets[0][1])
        for line in lines if line.queue == queue and line.tickets
    ]  # fmt: skip
    return min(heads, default=_NOBODY)


def _picked(line: Line) -> dict[str, Any]:
    suspects = [ticket[1] for ticket in line.passed if ticket[2]]
    return {
        "queue": line.queue, "gate": line.gate, "key": line.key,
        "priority": line.tickets[0][0], "position": line.tickets[0][1],
        "suspect": suspects[0] if suspects else None, "count": len(line.passed) + line.unseen,
    }  # fmt: skip


async def _share(tx: Tx, wanted: Wanted, lines: list[Line]) -> tuple[Places, ...]:
    """Write down the places of this worker where it has more jobs. Answers what it must know."""
    jobs: dict[Limited, list[int]] = {}
    begun: list[dict[str, object]] = []
    ended: list[dict[str, object]] = []
    for line in lines:
        if line.landed and line.limits.max_running is not None:
            jobs.setdefault(line.limited, []).extend(line.landed)
    rooms = {line.limited: line.room for line in lines}
    for gate, key in jobs:
        room = rooms[gate, key]
        if room.live <= room.mine:
            ended += [{"gate": gate, "key": key}] if room.share is not None else []
        elif room.share != room.mine:
            begun.append({"gate": gate, "key": key, "places": room.mine})
    if begun:
        await tx.fetch("share_places", rows=to_json(begun), worker=wanted.worker)
    if ended:
        await tx.fetch("end_shares", rows=to_json(ended), worker=wanted.worker)
    return tuple(
        Places(gate, key, rooms[gate, key].mine, frozenset(ids))
        for (gate, key), ids in jobs.items()
    )


async def _go_on(tx: Tx, lines: list[Line]) -> None:
    """Turns that are used up go, others come; what was used of tokens is written down."""
    count = Counter((line.queue, line.gate) for line in lines)
    gone: list[dict[str, object]] = []
    again: list[dict[str, object]] = []
    spare: list[dict[str, object]] = []
    for line in lines:
        step = next_turn(line, alone=count[line.queue, line.gate] == 1)
        named: dict[str, object] = {"queue": line.queue, "gate": line.gate}
        gone += [named | {"priority": priority, "n": n} for priority, n in step.gone]
        if step.again:
            again.append(named | _at_the_end(line, step, len(again)))
        spare += [named | turn for turn in _spare(tx, line)]
    if gone:
        await tx.fetch("drop_turns", rows=to_json(gone))
    if spare:
        await tx.fetch("drop_spare_turns", rows=to_json(spare))
    if again:
        await tx.fetch("add_turns", rows=to_json(again))
    used = {
        line.limited: line.room
        for line in lines if line.limits.rate is not None and (line.room.taken or line.room.stale)
    }  # fmt: skip
    if used:
        rows = [{"gate": gate, "key": key, "tokens": r.tokens} for (gate, key), r in used.items()]
        await tx.fetch("fill_buckets", rows=to_json(rows))


def _spare(tx: Tx, line: Line) -> list[dict[str, object]]:
    """Turns of a line of which a walk, which comes only to later ones, has met an earlier one.

    1,200 full lines with 45 jobs each have 54,000 turns, and to look at all of them takes 3 s and
    more: with this the first time only, and then 0.1 s.
    """
    walk = tx.gates.walks.get((line.queue, line.gate))
    if walk is None or line.key not in walk.first:
        return []
    first_priority, first_n = walk.first[line.key]
    return [
        {"priority": priority, "n": n, "first_priority": first_priority, "first_n": first_n}
        for priority, n in line.turns
    ]


def _at_the_end(line: Line, step: Next, i: int) -> dict[str, object]:
    left = line.tickets[len(line.passed) :]
    priority = left[0][0] if left else line.turns[0][0]
    return {"i": i, "priority": priority, "key": line.key, "wait": step.wait_seconds}


# --- what is allowed ---------------------------------------------------------------------------
