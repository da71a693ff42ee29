"""replay of a node: its workflow is open again."""

from tenure.errors import InvalidInput, KeyTaken
from tenure.rules.graph import OnFailure
from tenure.rules.job import State
from tenure.store.keys import retake_key
from tenure.store.moves import add_events, ended_before, free_children, put_in_line
from tenure.store.rows import Happening, Ticket
from tenure.store.session import Row, Tx, to_json
from tenure.store.workflows.act import hold_nodes
from tenure.store.workflows.end import end_workflows
from tenure.store.workflows.nodes import (
    ENDED_,
    FINALISER_,
    ID_,
    PARKED_,
    PAUSED_,
    begin_work,
    end_of,
    lock_live_nodes,
    take_node_tickets,
)


async def replay_node(tx: Tx, row: Row) -> bool:
    """replay: the node goes back in line, and its workflow is open again.

    What was skipped or cancelled below it waits once more, and so does the finaliser; after a stop,
    all that this has cancelled. Other nodes that have failed stay as they are. While the finaliser
    runs, this is refused: it may have told the world that all is over. It is replayed alone.
    """
    id = row[0]
    [(workflow, *_)] = await tx.fetch("node_of", id=id)
    flow = await begin_work(tx, workflow)
    if flow[FINALISER_] not in (None, id):
        await _call_back(tx, flow[FINALISER_])
    rows = {each[0]: each for each in await _to_reopen(tx, flow, id)}
    if id not in rows:  # another replay was faster
        return False
    if flow[ENDED_] is not None:
        await _retake_workflow_key(tx, flow)
    for each in rows.values():
        await retake_key(tx, each)
    ids = to_json(sorted(rows))
    await tx.fetch("reopen_nodes", ids=ids)
    children = [child for (child,) in await tx.fetch("waiting_children", ids=ids)]
    await tx.fetch("reopen_ends", ids=ids, children=to_json(children))
    final = flow[FINALISER_]
    nodes = set(rows)
    if final in rows and final != id:
        nodes |= {each[ID_] for each in await lock_live_nodes(tx, workflow)}
        await tx.fetch("add_ends", child=-workflow, ids=to_json([final]))
    end = -workflow if final == id else await end_of(tx, flow)
    await tx.fetch("add_ends", child=end, ids=to_json(sorted(nodes - {end})))
    await tx.fetch("lock_workflows", ids=to_json([workflow]))
    await tx.fetch("reopen_workflow", id=workflow)
    events = [ended_before(tx, each) for each in rows.values()]
    events += [Happening(each[0], each[1] + 1, "replayed", call=tx.call) for each in rows.values()]
    await add_events(tx, events)
    await put_in_line(tx, [Ticket(id, row[1] + 1, reason="replayed")])
    await free_children(tx, sorted(rows.keys() - {id}))
    if flow[PAUSED_] is not None:
        await hold_nodes(tx, workflow, set(rows))
    await end_workflows(tx)
    return True


async def _call_back(tx: Tx, final: int) -> None:
    """replay: a finaliser that stands in line waits again."""
    rows = await tx.fetch("lock_job", id=final, tenant=None)
    if not rows or rows[0][PARKED_] == "parents":
        return
    if rows[0][PARKED_] is None and not await take_node_tickets(tx, rows):
        raise InvalidInput(
            f"job {final}, the finaliser of the workflow, is running; replay when it has ended"
        )
    await tx.fetch("wait_again", id=final)


async def _to_reopen(tx: Tx, flow: Row, id: int) -> list[Row]:
    """The rows of history that go back, locked."""
    if id == flow[FINALISER_]:
        return await tx.fetch("finished_nodes", ids=to_json([id]))
    seeds = {id}
    if flow[4] == OnFailure.STOP and flow[12]:
        stopped = await tx.fetch("nodes_in_state", id=flow[0], state=str(State.CANCELLED))
        seeds.update(row[0] for row in stopped)
    found = await tx.fetch("nodes_to_reopen", id=flow[0], ids=to_json(sorted(seeds)))
    ids = {row[0] for row in found}
    if flow[FINALISER_] is not None:
        ids.add(flow[FINALISER_])
    return await tx.fetch("finished_nodes", ids=to_json(sorted(ids)))


async def _retake_workflow_key(tx: Tx, flow: Row) -> None:
    if flow[2] is None:
        return
    for (holder,) in await tx.fetch("keyed_workflow", tenant=flow[3], name=flow[1], key=flow[2]):
        raise KeyTaken(
            f"workflow {holder} holds the key {flow[2]!r}; cancel it or wait for its end"
        )
