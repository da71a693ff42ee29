"""The lines at gates of a SQLite file, one after the other: here a statement is a mere call."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tenure.rules.gates import Use
from tenure.store.session import Row, Tx, Wanted

Gate = Mapping[str, Any]
Turns = list[tuple[int, int]]


class Found(NamedTuple):
    """A line whose turn it is, and how places are used where its limit counts."""

    turns: Turns
    key: str
    gate: Gate
    use: Use
    here: int = 0
    """Jobs of the same line that run."""


async def look_at_gates(tx: Tx, wanted: Wanted, rows: Sequence[Gate]) -> list[Row]:
    """The answer of `Tx.look_at_gates`."""
    lines: list[Found] = []
    for gate in rows:
        use = Use()
        if gate["max_running"] is not None and not gate["keyed"]:
            use, _ = await _use(tx, wanted, gate, "")
            if not _left(wanted, gate, use):
                continue
        by_key = await _turns(tx, gate)
        lines += [Found(turns, key, gate, use) for key, turns in by_key.items()]
    lines.sort(key=lambda line: line.turns[0])
    per_queue = Counter(line.gate["queue"] for line in lines)
    alone = len(lines) == 1
    return [
        await _line(tx, wanted, line, 0 if alone else per_queue[line.gate["queue"]])
        for line in lines
    ]


async def _turns(tx: Tx, gate: Gate) -> dict[str, Turns]:
    """The turns of one gate by key."""
    by_key: dict[str, Turns] = {}
    for priority, n, key in await tx.fetch(
        "due_turns", queue=gate["queue"], gate=gate["gate"], turns=gate["turns"],
        past_priority=gate["past_priority"], past_n=gate["past_n"],
    ):  # fmt: skip
        by_key.setdefault(key, []).append((priority, n))
    return by_key


async def _use(tx: Tx, wanted: Wanted, gate: Gate, key: str) -> tuple[Use, int]:
    """How places are used, and how many jobs of the very line of this key and queue run."""
    name = {"gate": gate["gate"], "key": key}
    places: dict[str, int] = dict(await tx.fetch("shares", **name))
    if gate["keyed"]:
        live = await tx.fetch("live_in_line", queue=gate["queue"], **name)
    else:
        live = await tx.fetch("passed_gate", gate=gate["gate"])
        alone = [worker for worker, _, _ in live] == [wanted.worker]
        if not (alone and _enough_by_far(gate, live[0][1])):
            live = await tx.fetch("live_at_gate", gate=gate["gate"])
    used = {worker: min(jobs, places.get(worker, jobs)) for worker, jobs, _ in live}
    mine = used.get(wanted.worker, 0)
    own = sum(jobs for worker, jobs, _ in live if worker == wanted.worker)
    use = Use(sum(used.values()) - mine, mine, own, places.get(wanted.worker))
    return use, sum(here or 0 for _, _, here in live)


def _enough_by_far(gate: Gate, passed: int) -> bool:
    """If nobody else is there, and all that is wanted may ride: what has ended is not counted."""
    limit: int = gate["max_running"]
    riders: float = gate["riders"]
    most: int = gate["most"]
    return limit <= passed <= limit * (1 + riders) - most


def _left(wanted: Wanted, gate: Gate, use: Use) -> int:
    return use.left(gate["max_running"], free=wanted.new_places, riders=gate["riders"])


async def _line(tx: Tx, wanted: Wanted, line: Found, lines: int) -> Row:
    """`lines`: among so many of its queue; 0: it is alone, and need not be read far."""
    gate, key = line.gate, line.key
    name = {"queue": gate["queue"], "gate": gate["gate"], "key": key}
    most = 1 + min(gate["most"], 8 + (2 * gate["most"] // lines if lines else 0))
    if gate["max_running"] is not None:
        if gate["keyed"]:
            use, here = await _use(tx, wanted, gate, key)
            line = line._replace(use=use, here=here)
        most = min(most, 1 + _left(wanted, gate, line.use))
    bucket: Row = (None, None)
    if gate["rated"]:
        of = key if gate["keyed"] else ""
        [bucket] = await tx.fetch("look_at_bucket", gate=gate["gate"], key=of) or [bucket]
    tickets = await tx.fetch("head_of_line", most=most, **name)
    more = len(tickets) == most
    found = (line.turns, tickets[: most - 1], more, False)
    return (*name.values(), *line.use, line.here, *bucket, *found)
