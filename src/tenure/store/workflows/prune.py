"""The part of `prune` that removes workflows."""

from datetime import datetime
from functools import partial

from tenure.store.session import Mode, Scope, Tx, to_json
from tenure.store.workflows.nodes import PAGE


async def forget_workflows(
    scope: Scope, succeeded_before: datetime, other_before: datetime, *, now: datetime | None
) -> int:
    """Remove workflows that ended before these moments, with all of their jobs.

    Returns how many jobs. In batches: a workflow that is half gone is still due."""

    async def due(tx: Tx) -> list[int]:
        tx.at(now)
        return await tx.fetch_column(
            "due_workflows", succeeded_before=tx.time(succeeded_before),
            other_before=tx.time(other_before), most=PAGE,
        )  # fmt: skip

    async def some(tx: Tx, id: int) -> int:
        tx.at(now)
        await tx.fetch("begin_work", id=id)
        gone = await tx.fetch_column("prune_nodes", id=id, most=PAGE)
        if gone:
            await tx.fetch("forget_jobs", ids=to_json(gone))
        else:
            await tx.fetch("drop_workflow", id=id)
        return len(gone)

    removed = 0
    while ids := await scope.transact(due, Mode.READ):
        for id in ids:
            while gone := await scope.transact(partial(some, id=id)):
                removed += gone
    return removed


async def oldest_workflow(tx: Tx, before: datetime) -> datetime:
    """The earlier of this moment and the beginning of the oldest workflow that is kept."""
    [oldest] = await tx.fetch_column("oldest_workflow")
    return before if oldest is None else min(before, tx.when(oldest))
