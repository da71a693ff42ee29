"""The lines at gates of a SQLite file, one after the other: here a statement is a mere call."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tenure.store.session import Row, Tx, to_json

Gate = Mapping[str, Any]
Turns = list[tuple[int, int]]


async def look_at_gates(tx: Tx, rows: Sequence[Gate], turns: int) -> list[Row]:
    """The answer of `Tx.look_at_gates`."""
    lines: list[tuple[Turns, str, Gate]] = []
    for gate in rows:
        by_key = await _turns(tx, gate, turns)
        lines += [(found, key, gate) for key, found in by_key.items()]
    lines.sort(key=lambda line: line[0][0])
    per_queue = Counter(gate["queue"] for _, _, gate in lines)
    found: list[Row] = []
    for its_turns, key, gate in lines:
        wanted = gate["most"]
        most = 1 + min(wanted, 8 + 2 * wanted // per_queue[gate["queue"]])
        found += await _line(tx, gate, key, its_turns, most)
    return found


async def _turns(tx: Tx, gate: Gate, most: int) -> dict[str, Turns]:
    """The turns of one gate by key; none where all share a limit that is reached."""
    limit = gate["max_running"]
    if limit is not None and not gate["keyed"] and await _running(tx, gate) >= limit:
        return {}
    by_key: dict[str, Turns] = {}
    for priority, n, key in await tx.fetch(
        "due_turns", queue=gate["queue"], gate=gate["gate"], turns=most
    ):
        by_key.setdefault(key, []).append((priority, n))
    return by_key


async def _running(tx: Tx, gate: Gate) -> int:
    [(running,)] = await tx.fetch("running_at_gate", gate=gate["gate"])
    return int(running)


async def _line(tx: Tx, gate: Gate, key: str, turns: Turns, most: int) -> list[Row]:
    name = {"queue": gate["queue"], "gate": gate["gate"], "key": key}
    [(running, holders, tokens, age)] = await tx.fetch(
        "look_at_line", bucket=key if gate["keyed"] else "", **name
    )
    if not gate["keyed"]:
        running = await _running(tx, gate)
    limit = gate["max_running"]
    asked = most if limit is None else min(most, 1 + max(0, limit - running))
    tickets = await tx.fetch("head_of_line", most=asked, **name)
    return [
        (*name.values(), running, holders, tokens, age, to_json(turns), most, *ticket)
        for ticket in tickets or [(None, None, None)]
    ]
