"""Which tickets a claim takes from the lanes of a SQLite file: see `tenure.rules.claim`.

PostgreSQL decides the same inside its one statement. Here a statement is a mere call, and there is
one writer: the claim looks at the tickets, decides, and then reads the jobs that it takes. It looks
at single tickets only if it has to: if there are suspects, or if not all tickets may fit.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tenure.rules.claim import Ask, Demand
from tenure.store.session import Tx, Wanted


class Spot(NamedTuple):
    """The place of a ticket in its lane."""

    priority: int
    position: int


class Picked(NamedTuple):
    """Some tickets at the head of a lane, or one suspect."""

    queue: str
    needs: int
    tickets: int
    suspect: Spot | None = None


class _Lane(NamedTuple):
    """A lane that has tickets, and whether suspects and large jobs are among them."""

    needs: int
    suspects: int = 0
    large: int = 0


class _Head(NamedTuple):
    """A ticket at the head of a lane."""

    priority: int
    position: int
    needs: int
    size_kb: int
    suspect: int


async def pick_tickets(tx: Tx, wanted: Wanted) -> list[Picked]:
    """claim: what to take from each lane. At most one suspect in all queues."""
    demand = Demand(wanted.queues, wanted.max_kb, taken=wanted.taken)
    picked: list[Picked] = []
    for queue, ask in wanted.queues.items():
        lanes = [
            await _look_at(tx, queue, needs) if special else _Lane(needs)
            for needs, special in await tx.fetch("look_at_lanes", queue=queue)
            if ask.of.get(needs)
        ]
        suspects = all(each.suspect is None for each in picked)
        if not await _all_fit(tx, queue, ask, lanes, demand):
            picked += await _choose(tx, queue, ask, lanes, demand, suspects=suspects)
            continue
        counts = {lane.needs: min(ask.of[lane.needs], ask.most) for lane in lanes}
        picked += [Picked(queue, needs, count) for needs, count in counts.items()]
    return picked


async def _look_at(tx: Tx, queue: str, needs: int) -> _Lane:
    [row] = await tx.fetch("look_at_special", queue=queue, needs=needs)
    return _Lane(needs, *row)


async def _all_fit(tx: Tx, queue: str, ask: Ask, lanes: Sequence[_Lane], demand: Demand) -> bool:
    """Can each lane give all that it is asked for? As nearly always. Takes the kilobytes."""
    if any(lane.suspects for lane in lanes):
        return False
    if len(lanes) > 1 and sum(ask.of[lane.needs] for lane in lanes) > ask.most:
        return False
    kb = 0
    for lane in lanes:
        if lane.large:
            most = min(ask.of[lane.needs], ask.most)
            [(each,)] = await tx.fetch("size_of_lane", queue=queue, needs=lane.needs, most=most)
            kb += each
    return not lanes or demand.take_kb(kb)


async def _choose(
    tx: Tx, queue: str, ask: Ask, lanes: Sequence[_Lane], demand: Demand, *, suspects: bool
) -> list[Picked]:
    """The tickets that fit, in the order of the line, with or without a suspect."""
    heads: list[_Head] = []
    for lane in lanes:
        name = {"queue": queue, "needs": lane.needs}
        most = min(ask.of[lane.needs], ask.most)
        heads += map(_Head._make, await tx.fetch("head_of_lane", most=most, **name))
        if lane.suspects and suspects:
            heads += map(_Head._make, await tx.fetch("head_of_suspects", **name))
    heads.sort()
    first = next((head for head in heads if head.suspect), None)
    heads = [head for head in heads if not head.suspect or head is first]
    counts: Counter[int] = Counter()
    picked: list[Picked] = []
    for head in demand.first_fitting(queue, heads):
        if head.suspect:
            spot = Spot(head.priority, head.position)
            picked.append(Picked(queue, head.needs, 1, spot))
        else:
            counts[head.needs] += 1
    return picked + [Picked(queue, needs, count) for needs, count in counts.items()]
