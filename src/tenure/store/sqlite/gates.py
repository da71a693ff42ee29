"""The lines at gates of a SQLite file, one after the other: here a statement is a mere call."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tenure.rules.permits import Turn, Use, is_enough, room, tickets_of, tickets_to_read
from tenure.store.gate_records import GateQuestion, LineFound
from tenure.store.session import Row, Tx, Wanted


@dataclass(slots=True)
class _Line:
    """A line whose turn it is, and how the permits of its limit are used."""

    gate: GateQuestion
    key: str
    turns: list[Turn]
    use: Use
    running: int = 0
    """Jobs of this very line that run."""


async def look_at_gates(
    tx: Tx, wanted: Wanted, questions: Sequence[GateQuestion]
) -> list[LineFound]:
    """What `Tx.look_at_gates` returns."""
    lines: list[_Line] = []
    for gate in questions:
        use = Use()
        if gate.max_running is not None and not gate.keyed:
            use, _ = await _use(tx, wanted, gate, "")
            if not _left(wanted, gate, use):
                continue
        by_key = await _turns(tx, gate)
        lines += [_Line(gate, key, turns, use) for key, turns in by_key.items()]
    lines.sort(key=lambda line: line.turns[0])
    per_queue = Counter(line.gate.queue for line in lines)
    if len(lines) == 1:
        per_queue.clear()
    return [await _found(tx, wanted, line, per_queue[line.gate.queue]) for line in lines]


async def _turns(tx: Tx, gate: GateQuestion) -> dict[str, list[Turn]]:
    """The turns of one gate by key."""
    by_key: dict[str, list[Turn]] = {}
    for priority, n, key in await tx.fetch(
        "due_turns", queue=gate.queue, gate=gate.gate, turns=gate.turns,
        past_priority=gate.past_priority, past_n=gate.past_n,
    ):  # fmt: skip
        by_key.setdefault(key, []).append(Turn(priority, n))
    return by_key


async def _use(tx: Tx, wanted: Wanted, gate: GateQuestion, key: str) -> tuple[Use, int]:
    """How permits are used, and how many jobs of the very line of this key and queue run."""
    name = {"gate": gate.gate, "key": key}
    written: dict[str, int] = dict(await tx.fetch("shares", **name))
    if gate.keyed:
        live = await tx.fetch("live_in_line", queue=gate.queue, **name)
    else:
        live = await tx.fetch("passed_gate", gate=gate.gate)
        if not _is_alone_with_enough(wanted, gate, live):
            live = await tx.fetch("live_at_gate", gate=gate.gate)
    used = {worker: min(jobs, written.get(worker, jobs)) for worker, jobs, _ in live}
    mine = used.get(wanted.worker, 0)
    own = sum(jobs for worker, jobs, _ in live if worker == wanted.worker)
    use = Use(sum(used.values()) - mine, mine, own, written.get(wanted.worker))
    return use, sum(running or 0 for _, _, running in live)


def _is_alone_with_enough(wanted: Wanted, gate: GateQuestion, passed: Sequence[Row]) -> bool:
    """Has only this worker jobs there, and does their number alone allow all that it wants?"""
    assert gate.max_running is not None
    if [worker for worker, _, _ in passed] != [wanted.worker]:
        return False
    return is_enough(gate.max_running, passed[0][1], gate.riders, gate.most)


def _left(wanted: Wanted, gate: GateQuestion, use: Use) -> int:
    jobs, _ = room(use, gate.max_running, gate.riders).allows(gate.most, wanted.new_permits)
    return jobs


async def _found(tx: Tx, wanted: Wanted, line: _Line, lines: int) -> LineFound:
    """`lines`: how many lines of its queue there are; 0: it is the only line."""
    gate, key = line.gate, line.key
    name = {"queue": gate.queue, "gate": gate.gate, "key": key}
    most = tickets_to_read(gate.most, lines)
    if gate.max_running is not None:
        if gate.keyed:
            line.use, line.running = await _use(tx, wanted, gate, key)
        most = min(most, _left(wanted, gate, line.use))
    buckets: list[Row] = []
    if gate.rated:
        of = key if gate.keyed else ""
        buckets = await tx.fetch("look_at_bucket", gate=gate.gate, key=of)
    [(starts, age_seconds)] = buckets or [(None, None)]
    tickets = await tx.fetch("head_of_line", most=most + 1, **name)  # one more than may pass
    return LineFound(
        **name, use=line.use, running=line.running, starts=starts, age_seconds=age_seconds,
        turns=line.turns, tickets=tickets_of(tickets[:most]), more=len(tickets) > most,
        ahead=False,
    )  # fmt: skip
