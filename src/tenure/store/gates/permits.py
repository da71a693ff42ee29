"""The permits of a worker that has more jobs at a gate than permits: see `tenure.rules.permits`."""

from collections.abc import Sequence

from tenure.rules.permits import Permits
from tenure.rules.turns import Limited, Line
from tenure.store.session import Tx, to_json


async def write_permits(tx: Tx, worker: str, lines: Sequence[Line]) -> tuple[Permits, ...]:
    """claim: write down the number of this worker's permits where it has more jobs than that.

    Returns its permits at each gate where a limit counts, for the worker to keep to.
    """
    jobs: dict[Limited, list[int]] = {}
    begun: list[dict[str, object]] = []
    ended: list[dict[str, object]] = []
    for line in lines:
        if line.landed and line.limits.max_running is not None:
            jobs.setdefault(line.limited, []).extend(line.landed)
    rooms = {line.limited: line.room for line in lines}
    for gate, key in jobs:
        room = rooms[gate, key]
        if not room.has_riders:
            ended += [{"gate": gate, "key": key}] if room.share is not None else []
        elif room.share != room.mine:
            begun.append({"gate": gate, "key": key, "places": room.mine})
    if begun:
        await tx.fetch("share_places", rows=to_json(begun), worker=worker)
    if ended:
        await tx.fetch("end_shares", rows=to_json(ended), worker=worker)
    return tuple(
        Permits(gate, key, rooms[gate, key].mine, frozenset(ids))
        for (gate, key), ids in jobs.items()
    )


async def permits_given(tx: Tx, leases: Sequence[int]) -> tuple[Permits, ...]:
    """claim, repeated: the permits that its first try, which took these leases, was given."""
    if not leases:
        return ()
    return tuple(
        Permits(gate, key, most, frozenset(ids))
        for gate, key, ids, most in await tx.fetch("places_given", ids=to_json(list(leases)))
    )
