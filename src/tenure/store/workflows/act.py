"""What operators do to workflows: cancel, pause, resume, replay; and the stop after a failure.

One such act at a time per workflow; settlements of its nodes go on meanwhile. Live jobs are locked
in id order, then their tickets are taken, as for a single job. A running node that adds others has
its own row locked while it does: whoever has locked all live jobs, and looked again until there was
no new one, has them all.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from tenure.rules.limits import check_reason
from tenure.store.moves import put_in_line
from tenure.store.rows import Ticket
from tenure.store.session import (
    Mode,
    Row,
    Tx,
    to_json,
    transaction,
)
from tenure.store.workflows.end import STOPPED
from tenure.store.workflows.nodes import (
    BY_PAUSE_,
    DUE_,
    ENDED_,
    FINALISER_,
    HELD_,
    ID_,
    PAGE,
    PARKED_,
    PAUSED_,
    TOKEN_,
    begin_work,
    end_of,
    lock_live_nodes,
    take_node_tickets,
)
from tenure.store.workflows.stop import cancel_nodes

PAUSED = "the workflow is paused"


@transaction(Mode.WRITE)
async def cancel_workflow(
    tx: Tx, id: int, *, reason: str = "cancelled", now: datetime | None = None
) -> bool:
    """Cancel what has not started, and ask what runs to stop. Answers False when it had ended.

    The finaliser still runs, once all others have ended; if it alone is left, it is cancelled, too.
    """
    check_reason(reason)
    tx.at(now)
    flow = await begin_work(tx, id)
    if flow[ENDED_] is not None:
        return False
    rows = await lock_live_nodes(tx, id)
    others = [row for row in rows if row[ID_] != flow[FINALISER_]]
    await tx.fetch("cancel_workflow", id=id, reason=reason, asked=True)
    await cancel_nodes(tx, flow, rows, others or rows, reason)
    return True


async def before_waiting_node_ends(tx: Tx, id: int) -> None:
    """cancel: a node that waits, and is about to end, outlasts its parents no more.

    They are locked, so that none can end before the end of the workflow waits for it.
    """
    [(workflow, *_)] = await tx.fetch("node_of", id=id)
    [flow] = await tx.fetch("workflow_row", id=workflow, tenant=None)
    parents = to_json([row[0] for row in await tx.fetch("unfinished_parents", id=id)])
    live = [row[0] for row in await tx.fetch("lock_jobs", ids=parents)]
    if live:
        child = -workflow if flow[FINALISER_] == id else await end_of(tx, flow)
        await tx.fetch("add_ends", child=child, ids=to_json(live))


@transaction(Mode.WRITE)
async def pause_workflow(
    tx: Tx, id: int, *, reason: str = PAUSED, now: datetime | None = None
) -> bool:
    """Hold all nodes that have not started, until `resume_workflow`. What runs goes on.

    Answers False when it was paused already, or has ended.
    """
    check_reason(reason)
    tx.at(now)
    flow = await begin_work(tx, id)
    if flow[ENDED_] is not None or flow[PAUSED_] is not None:
        return tx.repeat and flow[ENDED_] is None
    await _hold(tx, [row for row in await lock_live_nodes(tx, id) if not row[HELD_]], reason)
    await tx.fetch("pause_workflow", id=id, paused=True, reason=reason, stopped=STOPPED)
    return True


async def hold_nodes(tx: Tx, id: int, nodes: Collection[int]) -> None:
    """enqueue, replay: nodes that come into a paused workflow are held."""
    await _hold(tx, [row for row in await lock_live_nodes(tx, id) if row[ID_] in nodes], PAUSED)


async def _hold(tx: Tx, rows: Sequence[Row], reason: str) -> None:
    taken = await take_node_tickets(tx, rows)
    for start in range(0, len(rows), PAGE):
        ids = [row[ID_] for row in rows[start : start + PAGE]]
        part = [id for id in ids if id in taken]
        await tx.fetch("hold_nodes", ids=to_json(ids), taken=to_json(part), reason=reason)


@transaction(Mode.WRITE)
async def resume_workflow(tx: Tx, id: int, *, now: datetime | None = None) -> bool:
    """Let a paused workflow go on. What was held before the pause stays held.

    Answers False when it was not paused.
    """
    tx.at(now)
    flow = await begin_work(tx, id)
    if flow[PAUSED_] is None:
        return tx.repeat
    rows = [row for row in await lock_live_nodes(tx, id) if row[BY_PAUSE_]]
    for start in range(0, len(rows), PAGE):
        part = rows[start : start + PAGE]
        await tx.fetch("unhold_nodes", ids=to_json([row[ID_] for row in part]))
        tickets = [
            Ticket(row[ID_], row[TOKEN_], due_at=tx.time(tx.when_or_none(row[DUE_])),
                   reason="resumed")
            for row in part if row[PARKED_] == "held"
        ]  # fmt: skip
        if tickets:
            await put_in_line(tx, tickets)
    await tx.fetch("pause_workflow", id=id, paused=False, reason=None, stopped=STOPPED)
    return True


# --- a part of `prune` ----------------------------------------------------------------------------
