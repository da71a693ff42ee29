"""Reads of gates: their limits, how many jobs run, how many wait."""

from datetime import datetime

from tenure.errors import JobNotFound
from tenure.rules.gates import MAX_BEFORE, GateSeen, GateWait, LineSeen
from tenure.store.gates.limits import _limits, _limits_of
from tenure.store.session import Mode, Tx, for_all_tenants, transaction


@transaction(Mode.READ)
async def gates(tx: Tx, *, name: str | None = None, now: datetime | None = None) -> list[GateSeen]:
    """The gates, or one of them: what each allows, how many run, how many wait."""
    for_all_tenants("gates", tx.tenant)
    tx.at(now)
    return [
        GateSeen(row[0], _limits_of(row), None if row[7] is None else _limits(row[7]), bool(row[6]),
                 row[8], row[9], row[10])
        for row in await tx.fetch("list_gates", name=name)
    ]  # fmt: skip


@transaction(Mode.READ)
async def gate_lines(tx: Tx, name: str, *, now: datetime | None = None) -> list[LineSeen]:
    """The longest lines at a gate."""
    for_all_tenants("gate_lines", tx.tenant)
    tx.at(now)
    rows = await tx.fetch("busiest_lines", name=name, most=MAX_LINES)
    return [LineSeen(*row) for row in rows]


@transaction(Mode.READ)
async def gate_wait(tx: Tx, id: int, *, now: datetime | None = None) -> GateWait | None:
    """How a job stands at its gate; None when it stands at none."""
    for_all_tenants("gate_wait", tx.tenant)
    tx.at(now)
    rows = await tx.fetch("gate_of_job", id=id)
    jobs = await tx.fetch("get_job", id=id, tenant=tx.tenant)
    if not jobs:
        raise JobNotFound(f"there is no job {id}")
    if not rows or rows[0][0] is None:
        return None
    position, running, tokens, age = rows[0][0], rows[0][6], rows[0][7], rows[0][8]
    limits = _limits_of(rows[0])
    queue, priority, gate, key = jobs[0][5], jobs[0][6], jobs[0][31], jobs[0][32]
    [(before,)] = await tx.fetch(
        "before_job", queue=queue, gate=gate, key=key, priority=priority, position=position,
        most=MAX_BEFORE,
    )  # fmt: skip
    seconds = 0.0
    if limits.rate is not None:
        seconds = limits.seconds_to_start(limits.filled(tokens, age or 0.0))
    return GateWait(gate, running, limits, before, seconds)


MAX_LINES = 20
