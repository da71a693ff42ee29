"""replay of a node: its workflow is open again.

Nodes that are replayed keep the order of their edges, in whatever order and in however many
transactions they are replayed:

- After a cancel or a stop of the workflow, the first replay opens all nodes that it cancelled.
- A node that is replayed while a parent is live waits for that parent, as its rule says.
- A live node below that has not started waits again. One that runs is left alone.
"""

from tenure.errors import InvalidInput, KeyTaken
from tenure.rules.graph import OnFailure
from tenure.rules.job import State
from tenure.store.keys import retake_key
from tenure.store.moves import add_events, add_tickets, finished_before, free_children
from tenure.store.notes import noted
from tenure.store.records import FinishedJob, LockedJob
from tenure.store.rows import NewEvent, Ticket
from tenure.store.session import Tx, to_json
from tenure.store.workflows.act import hold_nodes
from tenure.store.workflows.end import end_workflows
from tenure.store.workflows.nodes import (
    begin_work,
    end_of,
    get_node,
    lock_live_nodes,
    take_node_tickets,
)
from tenure.store.workflows.records import Neighbour, WorkflowRow


async def replay_node(tx: Tx, job: FinishedJob) -> bool:
    """replay: the node gets a ticket, or waits for live parents; its workflow is open again.

    Nodes that were skipped or cancelled below it wait once more, and so does the finaliser; after
    a cancel or a stop of the workflow, all nodes that it has cancelled. Other nodes that have
    failed stay as they are.
    While the finaliser runs, this is refused: it may have told other systems that all is over.
    The finaliser is replayed alone.
    """
    id = job.id
    workflow = await begin_work(tx, (await get_node(tx, id)).workflow_id)
    final = workflow.finaliser_id
    if final is not None and final != id:
        await _call_back(tx, final)
    reopened = {each.id: each for each in await _to_reopen(tx, workflow, id)}
    if id not in reopened:  # another replay was faster
        return False
    if workflow.ended_at is not None:
        await _retake_workflow_key(tx, workflow)
    for each in reopened.values():
        await retake_key(tx, each)
    ids = to_json(sorted(reopened))
    await tx.fetch("reopen_nodes", ids=ids)
    again = await _wait_for_parents(tx, workflow, set(reopened) - {final}) if final != id else set()
    children = await tx.fetch_column("waiting_children", ids=ids)
    await tx.fetch("reopen_ends", ids=ids, children=to_json(children))
    nodes = set(reopened)
    if final in reopened and final != id:
        nodes |= {node.id for node in await lock_live_nodes(tx, workflow.id)}
        await tx.fetch("add_ends", child=-workflow.id, ids=to_json([final]))
    end = -workflow.id if final == id else await end_of(tx, workflow)
    await tx.fetch("add_ends", child=end, ids=to_json(sorted(nodes - {end})))
    await tx.fetch("lock_workflows", ids=to_json([workflow.id]))
    await tx.fetch("reopen_workflow", id=workflow.id)
    notes = await noted(tx, {each.id: each.features for each in reopened.values()})
    events = [finished_before(tx, each, notes) for each in reopened.values()]
    events += [
        NewEvent(each.id, each.token + 1, "replayed", request_id=tx.request_id)
        for each in reopened.values()
    ]
    await add_events(tx, events)
    waits = final != id and await tx.fetch_column("unfinished_parents", id=id)
    if not waits:
        await add_tickets(tx, [Ticket(id, job.token + 1, reason="replayed")])
    await free_children(tx, sorted((reopened.keys() | again) - (set() if waits else {id})))
    if workflow.paused_at is not None:
        await hold_nodes(tx, workflow.id, set(reopened))
    await end_workflows(tx)
    return True


async def _call_back(tx: Tx, final: int) -> None:
    """replay: a finaliser that has a ticket waits again."""
    jobs = await tx.fetch_as(LockedJob, "lock_job", id=final, tenant=None)
    if not jobs or jobs[0].parked == "parents":
        return
    if jobs[0].parked is None and not await take_node_tickets(tx, jobs):
        raise InvalidInput(
            f"job {final}, the finaliser of the workflow, is running; replay when it has ended"
        )
    await tx.fetch("wait_again", id=final)


async def _wait_for_parents(tx: Tx, workflow: WorkflowRow, ids: set[int]) -> set[int]:
    """replay: nodes that are open again wait for their live parents, and nodes below for them.

    All are locked, in id order, so that none of them ends meanwhile. Returns the nodes below that
    had a ticket, or were held, and wait again.
    """
    around = await tx.fetch_as(Neighbour, "neighbours", id=workflow.id, ids=to_json(sorted(ids)))
    await tx.fetch("lock_jobs", ids=to_json(sorted({each.id for each in around} | ids)))
    below = {each.id for each in around if each.below} - ids - {workflow.finaliser_id}
    nodes = await tx.fetch_as(LockedJob, "started_too_soon", ids=to_json(sorted(below)))
    again = await take_node_tickets(tx, nodes)
    again.update(node.id for node in nodes if node.parked == "held")
    if again:
        await tx.fetch("nodes_wait_again", ids=to_json(sorted(again)))
    await tx.fetch("await_parents", ids=to_json(sorted(ids | again)))
    return again


async def _to_reopen(tx: Tx, workflow: WorkflowRow, id: int) -> list[FinishedJob]:
    """The finished nodes that a replay of this one opens again, locked."""
    if id == workflow.finaliser_id:
        return await tx.fetch_as(FinishedJob, "finished_nodes", ids=to_json([id]))
    seeds = {id}
    stopped = workflow.on_failure == OnFailure.STOP and workflow.failed
    if stopped or workflow.cancelled_at is not None:
        cancelled = str(State.CANCELLED)
        seeds.update(await tx.fetch_column("nodes_in_state", id=workflow.id, state=cancelled))
    seeded = to_json(sorted(seeds))
    ids = set(await tx.fetch_column("nodes_to_reopen", id=workflow.id, ids=seeded))
    if workflow.finaliser_id is not None:
        ids.add(workflow.finaliser_id)
    return await tx.fetch_as(FinishedJob, "finished_nodes", ids=to_json(sorted(ids)))


async def _retake_workflow_key(tx: Tx, workflow: WorkflowRow) -> None:
    key = workflow.key
    if key is None:
        return
    for holder in await tx.fetch_column(
        "keyed_workflow", tenant=workflow.tenant, name=workflow.name, key=key
    ):
        raise KeyTaken(f"workflow {holder} holds the key {key!r}; cancel it or wait for its end")
