"""claim by task names, or in one order of priority across queues.

A ticket does not say of which task its job is. So the claim looks ahead: it reads the next
`LOOK_AHEAD` tickets of each lane with the tasks of their jobs, chooses, and takes exactly those. No
other ticket is touched, so no job loses its place. If the wanted tasks are not among them, it reads
one page more of each lane, and the next claim goes on behind that page: a job that is far
behind thousands of others is found after some claims. The claims after that begin with the page on
which it was. A plain claim does none of this.

On PostgreSQL other claims may choose the same tickets, and one gets them. The others look again.

Jobs at gates are passed over: which of them may run is decided line by line, whatever their task.
"""

from collections.abc import Collection, Mapping, Set
from typing import NamedTuple

from tenure.rules.claim import Demand
from tenure.rules.limits import MIN_PRIORITY
from tenure.store.records import SeenTicket, TakenTicket
from tenure.store.session import Tx, Wanted, to_json

LOOK_AHEAD = 250
"""At this many tickets a claim looks in each lane. A queue has a lane for each kind of slot."""

Lane = tuple[str, int]
Spot = tuple[int, int]
Place = tuple[str, int, int, int]
"""Of a ticket: its lane and its spot."""
_HEAD: Spot = (MIN_PRIORITY - 1, 0)


class Walk(NamedTuple):
    """How far claims for some tasks have looked in a lane."""

    behind: Spot = _HEAD
    finds: int = 0
    """How many of them have found jobs behind this ticket."""


Walks = dict[tuple[Lane, frozenset[str]], Walk]
_NEW = Walk()


async def take_chosen(
    tx: Tx,
    wanted: Wanted,
    tasks: frozenset[str] | None,
    most: int,
    *,
    walks: Walks,
    missed: set[Place],
) -> list[TakenTicket]:
    """claim: take at most `most` jobs of these tasks, in one order across all queues.

    None of `missed` is chosen. If other sessions have locked or taken all that it chose, they are
    added there.
    """
    lanes = dict.fromkeys(
        [(queue, needs) for queue, ask in wanted.queues.items() for needs in ask.of], _HEAD
    )
    seen = await _look(tx, lanes)
    chosen = _choose(_without(missed, seen), wanted, tasks, most)
    if tasks is not None and not chosen:
        deep = _ends(seen)
        later = {
            lane: max(end, walks.get((lane, tasks), _NEW).behind) for lane, end in deep.items()
        }
        seen = await _look(tx, later) if later else []
        chosen = _choose(_without(missed, seen), wanted, tasks, most)
        ends = _ends(seen)
        for lane in lanes:
            finds = walks.get((lane, tasks), _NEW).finds + 1
            if lane in later and chosen and finds < LOOK_AHEAD:  # there may be more of them
                walks[lane, tasks] = Walk(later[lane], finds)
            elif lane in ends and not chosen:
                walks[lane, tasks] = Walk(ends[lane])
            else:  # from the head again: there may be jobs with a better priority
                walks.pop((lane, tasks), None)
    taken = await tx.take_spots(wanted, chosen) if chosen else []
    if not taken:
        missed.update(map(_place, chosen))
    return taken


def _without(missed: Set[Place], seen: list[SeenTicket]) -> list[SeenTicket]:
    return [ticket for ticket in seen if _place(ticket) not in missed] if missed else seen


def _place(ticket: SeenTicket) -> Place:
    return ticket.queue, ticket.needs, ticket.priority, ticket.position


async def _look(tx: Tx, lanes: Mapping[Lane, Spot]) -> list[SeenTicket]:
    rows = [
        {"queue": queue, "needs": needs, "priority": priority, "position": position}
        for (queue, needs), (priority, position) in lanes.items()
    ]
    seen = await tx.fetch_as(SeenTicket, "look_ahead", lanes=to_json(rows), most=LOOK_AHEAD)
    return sorted(seen, key=lambda ticket: (ticket.priority, ticket.position))


def _ends(seen: Collection[SeenTicket]) -> dict[Lane, Spot]:
    """The lanes in which there may be more, and the last ticket seen in each."""
    ends: dict[Lane, Spot] = {}
    counts: dict[Lane, int] = {}
    for ticket in seen:
        lane = (ticket.queue, ticket.needs)
        ends[lane] = (ticket.priority, ticket.position)
        counts[lane] = counts.get(lane, 0) + 1
    return {lane: end for lane, end in ends.items() if counts[lane] >= LOOK_AHEAD}


def _choose(
    seen: Collection[SeenTicket], wanted: Wanted, tasks: frozenset[str] | None, most: int
) -> list[SeenTicket]:
    """The tickets to take: those that fit, at most one suspect, and all void ones."""
    demand = Demand(wanted.queues, wanted.max_kb)
    chosen: list[SeenTicket] = []
    void: list[SeenTicket] = []
    has_suspect = False
    for ticket in seen:
        if ticket.task is None:
            void.append(ticket)
            continue
        if len(chosen) == most or (tasks is not None and ticket.task not in tasks):
            continue
        if ticket.suspect and has_suspect:
            continue
        if demand.fits(ticket.queue, ticket.needs, ticket.size_kb):
            demand.take(ticket.queue, ticket.needs, ticket.size_kb)
            chosen.append(ticket)
            has_suspect = has_suspect or bool(ticket.suspect)
    return chosen or void
