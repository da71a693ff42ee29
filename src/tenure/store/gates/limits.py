"""The limits of gates: declared by code, overridden by operators; and the repair of gate rows."""

from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType

from tenure.errors import GateNotFound, InvalidInput
from tenure.rules.gates import Limits
from tenure.rules.limits import check_name
from tenure.store.session import Mode, Row, Tx, for_all_tenants, to_json, transaction


@transaction(Mode.WRITE)
async def declare_gates(
    tx: Tx, gates: Mapping[str, Limits], *, now: datetime | None = None
) -> list[str]:
    """Write the limits that code declares; an operator's limits stay. Returns the changed gates."""
    for_all_tenants("declare_gates", tx.tenant)
    tx.at(now)
    known = {
        name: _limits(declared)
        for name, declared in await tx.fetch("declared_gates", names=to_json([*gates]))
    }
    changed = []
    if gates:
        tx.gates.there = True
    for name in sorted(gates):
        check_name("gate", name)
        limits = gates[name]
        if known.get(name) == limits:
            continue
        [row] = await tx.fetch("make_gate", name=name)
        by_hand = bool(row[6])  # as it is now that it is locked
        kept = _limits_of(row) if by_hand else limits
        await _write(tx, name, kept, by_hand=by_hand, declared=limits)
        changed.append(name)
    return changed


@transaction(Mode.WRITE)
async def set_gate(
    tx: Tx,
    name: str,
    *,
    max_running: int | UnsetType | None = UNSET,
    rate: float | UnsetType | None = UNSET,
    per_seconds: float | UnsetType = UNSET,
    burst: int | UnsetType | None = UNSET,
    now: datetime | None = None,
) -> None:
    """Change what a gate allows, at once and for all workers, until `reset_gate`.

    Limits that are not given stay the same; None removes a limit. Running jobs continue: after a
    limit was lowered, more jobs than it allows may run for a while.
    """
    for_all_tenants("set_gate", tx.tenant)
    given = {"max_running": max_running, "rate": rate, "per_seconds": per_seconds, "burst": burst}
    changes: dict[str, object] = {
        what: value for what, value in given.items() if value is not UNSET
    }
    if not changes:
        raise InvalidInput(f"set_gate needs one of {', '.join(given)}")
    if rate is None:
        changes.setdefault("burst", None)
    tx.at(now)
    row = await _lock(tx, name)
    limits = msgspec.structs.replace(_limits_of(row), **changes)
    declared = None if row[7] is None else _limits(row[7])
    await _write(tx, name, limits, by_hand=True, declared=declared)


@transaction(Mode.WRITE)
async def reset_gate(tx: Tx, name: str, *, now: datetime | None = None) -> bool:
    """Revert a gate to the limits declared in code. Returns whether an operator had changed them.

    A gate that no code declares, and at which no job waits, is deleted.
    """
    for_all_tenants("reset_gate", tx.tenant)
    tx.at(now)
    row = await _lock(tx, name)
    if row[7] is None and await tx.fetch("drop_gate", name=name):
        await tx.fetch("drop_buckets", name=name)
        return bool(row[6])
    declared = None if row[7] is None else _limits(row[7])
    await _write(tx, name, declared or Limits(keyed=bool(row[5])), by_hand=False, declared=declared)
    return bool(row[6])


async def _lock(tx: Tx, name: str) -> Row:
    check_name("gate", name)
    rows = await tx.fetch("lock_gate", name=name)
    if not rows:
        raise GateNotFound(f"there is no gate {name}; list them, or start a worker that has it")
    return rows[0]


async def _write(
    tx: Tx, name: str, limits: Limits, *, by_hand: bool, declared: Limits | None
) -> None:
    """The old limits have made lines wait, so every line gets a turn."""
    await tx.fetch(
        "set_gate", name=name, max_running=limits.max_running, rate=limits.rate,
        per_seconds=limits.per_seconds, burst=limits.burst, keyed=limits.keyed, by_hand=by_hand,
        declared=None if declared is None else to_json(declared),
    )  # fmt: skip
    await tx.fetch("drop_shares", name=name)
    await tx.fetch("reopen_gate", name=name)
    await tx.queues_ready(await tx.fetch_column("turned_queues", name=name))


def _limits_of(row: Row) -> Limits:
    """Of a row: name, then the columns of its limits."""
    return Limits(
        max_running=row[1], rate=row[2], per_seconds=row[3], burst=row[4], keyed=bool(row[5])
    )


def _limits(text: str) -> Limits:
    return msgspec.json.decode(text, type=Limits)


@transaction(Mode.WRITE)
async def heal_gates(tx: Tx, *, now: datetime | None = None) -> int:
    """Give a turn to every line that lacks one, and free the permits of leases that are gone.

    Returns the number of repaired rows, which should always be 0. Lines that wait for their next
    start get a turn at once: if the clock was set back, they would wait too long.
    """
    for_all_tenants("heal_gates", tx.tenant)
    tx.at(now)
    await tx.fetch("end_waits")
    freed = await tx.fetch("heal_holds")
    turned = await tx.fetch_column("heal_turns")
    await tx.queues_ready(turned)
    return len(freed) + len(turned)
