"""What operators do to workflows: cancel, pause, resume, replay; and the stop after a failure.

One such act at a time per workflow; settlements of its nodes go on meanwhile. Live jobs are locked
in id order, then their tickets are taken, as for a single job. A running node has its own row
locked while it adds nodes: so once the act has locked all live jobs, and has looked again until
there was no new one, it has all of them.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from tenure.rules.limits import check_reason
from tenure.store.moves import add_tickets
from tenure.store.rows import Ticket
from tenure.store.session import (
    Mode,
    Tx,
    to_json,
    transaction,
)
from tenure.store.workflows.end import STOPPED
from tenure.store.workflows.nodes import (
    PAGE,
    begin_work,
    end_of,
    get_node,
    get_row,
    lock_live_nodes,
    take_node_tickets,
)
from tenure.store.workflows.records import LockedNode
from tenure.store.workflows.stop import cancel_nodes

PAUSED = "the workflow is paused"


@transaction(Mode.WRITE)
async def cancel_workflow(
    tx: Tx, id: int, *, reason: str = "cancelled", now: datetime | None = None
) -> bool:
    """Cancel the nodes that have not started, and ask the running ones to stop.

    Returns False when the workflow had ended. The finaliser still runs, once all other nodes have
    finished; if it alone is left, it is cancelled, too.
    """
    check_reason(reason)
    tx.at(now)
    workflow = await begin_work(tx, id)
    if workflow.ended_at is not None:
        return False
    nodes = await lock_live_nodes(tx, id)
    others = [node for node in nodes if node.id != workflow.finaliser_id]
    await tx.fetch("cancel_workflow", id=id, reason=reason, asked=True)
    await cancel_nodes(tx, workflow, nodes, others or nodes, reason)
    return True


async def before_waiting_nodes_end(tx: Tx, ids: Sequence[int]) -> None:
    """cancel: waiting nodes are about to finish before their parents.

    The parents are locked, so that none can finish before the end of the workflow waits for it.
    Finalisers come last: what the nodes before them have hung on them, the end waits for, too.
    """
    workflows = {id: await get_row(tx, (await get_node(tx, id)).workflow_id) for id in ids}
    for id in sorted(ids, key=lambda node: workflows[node].finaliser_id == node):
        workflow = workflows[id]
        parents = to_json(await tx.fetch_column("unfinished_parents", id=id))
        live = await tx.fetch_column("lock_jobs", ids=parents)
        if live:
            child = -workflow.id if workflow.finaliser_id == id else await end_of(tx, workflow)
            await tx.fetch("add_ends", child=child, ids=to_json(live))


@transaction(Mode.WRITE)
async def pause_workflow(
    tx: Tx, id: int, *, reason: str = PAUSED, now: datetime | None = None
) -> bool:
    """Hold all nodes that have not started, until `resume_workflow`. Running nodes go on.

    Returns False when it was paused already, or has ended.
    """
    check_reason(reason)
    tx.at(now)
    workflow = await begin_work(tx, id)
    if workflow.ended_at is not None or workflow.paused_at is not None:
        return tx.repeat and workflow.ended_at is None
    await _hold(tx, [node for node in await lock_live_nodes(tx, id) if not node.held], reason)
    await tx.fetch("pause_workflow", id=id, paused=True, reason=reason, stopped=STOPPED)
    return True


async def hold_nodes(tx: Tx, id: int, nodes: Collection[int]) -> None:
    """enqueue, replay: nodes that come into a paused workflow are held."""
    await _hold(tx, [node for node in await lock_live_nodes(tx, id) if node.id in nodes], PAUSED)


async def _hold(tx: Tx, nodes: Sequence[LockedNode], reason: str) -> None:
    taken = await take_node_tickets(tx, nodes)
    for start in range(0, len(nodes), PAGE):
        ids = [node.id for node in nodes[start : start + PAGE]]
        part = [id for id in ids if id in taken]
        await tx.fetch("hold_nodes", ids=to_json(ids), taken=to_json(part), reason=reason)


@transaction(Mode.WRITE)
async def resume_workflow(tx: Tx, id: int, *, now: datetime | None = None) -> bool:
    """Let a paused workflow go on. Nodes that were held before the pause stay held.

    Returns False when it was not paused.
    """
    tx.at(now)
    workflow = await begin_work(tx, id)
    if workflow.paused_at is None:
        return tx.repeat
    nodes = [node for node in await lock_live_nodes(tx, id) if node.paused]
    for start in range(0, len(nodes), PAGE):
        part = nodes[start : start + PAGE]
        await tx.fetch("unhold_nodes", ids=to_json([node.id for node in part]))
        tickets = [
            Ticket(node.id, node.token, due_at=tx.time(tx.when_or_none(node.due_at)),
                   reason="resumed")
            for node in part if node.parked == "held"
        ]  # fmt: skip
        if tickets:
            await add_tickets(tx, tickets)
    await tx.fetch("pause_workflow", id=id, paused=False, reason=None, stopped=STOPPED)
    return True
