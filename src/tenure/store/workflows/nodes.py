"""The rows of a workflow and of its live nodes, locked: what every act on a workflow begins with.

One act at a time per workflow; settlements of its nodes go on meanwhile. Live jobs are locked in id
order, then their tickets are taken, as for a single job. A running node that adds nodes has its own
row locked while it does. So an act that has locked all live jobs, and has looked again until it
found no new one, has them all.
"""

from collections.abc import Sequence

from tenure.errors import WorkflowNotFound
from tenure.rules.limits import check_id, is_id
from tenure.store.records import LockedJob
from tenure.store.session import Tx, to_json
from tenure.store.workflows.records import LockedNode, NodeOf, WorkflowRow

PAGE = 1000


async def begin_work(tx: Tx, id: int) -> WorkflowRow:
    """From here on no other transaction acts on this workflow. Raises `WorkflowNotFound`."""
    check_id("the id of a workflow", id)
    workflows: list[WorkflowRow] = []
    if is_id(id):
        await tx.fetch("begin_work", id=id)
        workflows = await tx.fetch_as(WorkflowRow, "workflow_row", id=id, tenant=tx.tenant)
    if not workflows:
        raise WorkflowNotFound(f"there is no workflow {id}")
    return workflows[0]


async def get_row(tx: Tx, id: int) -> WorkflowRow:
    """The row of a workflow that exists, of any tenant."""
    [workflow] = await tx.fetch_as(WorkflowRow, "workflow_row", id=id, tenant=None)
    return workflow


async def get_node(tx: Tx, id: int) -> NodeOf:
    """The workflow of a job that is a node."""
    [node] = await tx.fetch_as(NodeOf, "node_of", id=id)
    return node


async def lock_live_nodes(tx: Tx, id: int) -> list[LockedNode]:
    """All live jobs of a workflow, locked. It looks again until it finds no new one."""
    found: dict[int, LockedNode] = {}
    more = True
    while more:
        more, after = False, 0
        while page := await tx.fetch_as(LockedNode, "lock_nodes", id=id, after=after, most=PAGE):
            more = more or any(node.id not in found for node in page)
            found.update((node.id, node) for node in page)
            after = page[-1].id
    return [found[job] for job in sorted(found)]


async def take_node_tickets(tx: Tx, nodes: Sequence[LockedNode] | Sequence[LockedJob]) -> set[int]:
    """Take the live tickets of these jobs, from `due` first and then, in later statements, from
    `ready` and from gates. Returns the ids of the jobs whose ticket was taken."""
    free = [node for node in nodes if node.parked is None]
    placed = [node for node in free if node.position is not None]
    taken: set[int] = set()
    for statement, those in (
        ("take_due_tickets", [node for node in free if node.due_at is not None]),
        ("take_ready_tickets", [node for node in placed if node.gate is None]),
        ("take_gated_tickets", [node for node in placed if node.gate is not None]),
    ):
        for start in range(0, len(those), PAGE):
            part = [_ticket(node) for node in those[start : start + PAGE] if node.id not in taken]
            taken.update(await tx.fetch_column(statement, rows=to_json(part)))
    return taken


def _ticket(node: LockedNode | LockedJob) -> dict[str, object]:
    """A row of `take_due_tickets` and the statements like it."""
    return {
        "id": node.id, "token": node.token, "queue": node.queue, "needs": node.needs,
        "priority": node.priority,
        "position": node.position, "due_at": node.due_at, "gate": node.gate,
        "gate_key": node.gate_key,
    }  # fmt: skip


async def end_of(tx: Tx, workflow: WorkflowRow) -> int:
    """The id that waits for the last nodes: the finaliser's, if it waits, or the workflow's end."""
    final, end = workflow.finaliser_id, -workflow.id
    if final is None:
        return end
    return final if await tx.fetch("lock_waiting", id=final) else end
