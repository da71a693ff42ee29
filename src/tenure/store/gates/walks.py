"""Walks: how claims get past thousands of lines that cannot pass.

A claim that finds only shut lines remembers how far it has read the turns of a gate, and the next
claim of this process goes on from there. At the last turn the walk is over, and the next claim
begins with the first turn again.
"""

from collections.abc import Iterable

from tenure.rules.turns import Line
from tenure.store.gate_records import GateName, GateQuestion
from tenure.store.session import Tx, Walk


def walk_on(
    tx: Tx, questions: Iterable[GateQuestion], lines: Iterable[Line]
) -> dict[GateName, bool]:
    """At which of these gates are there more turns behind lines that are all shut?

    Claims go on there. At all others they begin with the first turn again.
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


def spare_turns(tx: Tx, line: Line) -> list[dict[str, object]]:
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
