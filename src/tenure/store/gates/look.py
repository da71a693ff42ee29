"""Reads of gates: their limits, how many jobs run, how many wait."""

from datetime import datetime

from tenure.rules.gates import GateSeen, LineSeen
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


MAX_LINES = 20
