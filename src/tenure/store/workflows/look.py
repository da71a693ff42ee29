"""Reads of workflows and their nodes."""

from datetime import datetime
from functools import partial

from tenure.errors import WorkflowNotFound
from tenure.rules.graph import NodePage, NodeSeen, OnFailure, Outcome, ParentEnd, WorkflowSeen
from tenure.rules.job import State, When
from tenure.rules.limits import JobId, check_id, check_int, check_name, id_of, is_id
from tenure.store.look.jobs import seen_job
from tenure.store.session import Mode, Scope, Tx, to_json, transaction
from tenure.store.workflows.add import _TOP, MAX_PAGE, RESULTS_AT_ONCE
from tenure.store.workflows.records import (
    EndedParent,
    NamedNode,
    NodeOf,
    NodeRow,
    ParentEdge,
    StateCount,
    WorkflowRow,
)


@transaction(Mode.READ)
async def get_workflow(tx: Tx, id: int, *, now: datetime | None = None) -> WorkflowSeen:
    """One workflow, with how many of its nodes are in which state. Raises `WorkflowNotFound`."""
    tx.at(now)
    workflow = await _seen(tx, id)
    counts = await tx.fetch_as(StateCount, "count_nodes", id=id)
    return _workflow(tx, workflow, {State(each.state): int(each.jobs) for each in counts})


@transaction(Mode.READ)
async def has_ended(tx: Tx, id: int, *, now: datetime | None = None) -> bool:
    """Has a workflow ended? One row is read. Raises `WorkflowNotFound`."""
    tx.at(now)
    return (await _seen(tx, id)).ended_at is not None


@transaction(Mode.READ)
async def list_workflows(
    tx: Tx,
    *,
    name: str | None = None,
    open: bool = False,
    limit: int = 100,
    before: int | None = None,
    now: datetime | None = None,
) -> list[WorkflowSeen]:
    """Workflows, newest first, without the counts of their nodes. `open`: those not ended yet."""
    check_int("limit", limit, 1, MAX_PAGE)
    if name is not None:
        check_name("workflow", name)
    below = _TOP
    if before is not None:
        check_int("before", before, 1, _TOP)
        below = before
    tx.at(now)
    workflows = await tx.fetch_as(
        WorkflowRow, "list_workflows", tenant=tx.tenant, name=name, open=open, below=below,
        most=limit,
    )  # fmt: skip
    return [_workflow(tx, workflow, {}) for workflow in workflows]


@transaction(Mode.READ)
async def list_nodes(
    tx: Tx, id: int, *, after: int = 0, limit: int = MAX_PAGE, now: datetime | None = None
) -> NodePage:
    """The nodes of a workflow with their parents, in the order of their ids, a page at a time."""
    check_int("limit", limit, 1, MAX_PAGE)
    check_int("after", after, 0, _TOP)
    tx.at(now)
    await _seen(tx, id)
    rows = await tx.fetch_as(NodeRow, "list_nodes", id=id, after=after, most=limit)
    parents: dict[int, list[int]] = {}
    ids = to_json([row.job_id for row in rows])
    for edge in await tx.fetch_as(ParentEdge, "node_edges", ids=ids):
        parents.setdefault(edge.job_id, []).append(edge.parent_id)
    nodes = tuple(
        NodeSeen(
            id=row.job_id, name=row.name, task=row.task, state=State(row.state),
            when=When(row.rule), reason=row.reason, added_by=row.added_by,
            after=tuple(parents.get(row.job_id, ())),
        )
        for row in rows
    )  # fmt: skip
    return NodePage(nodes, nodes[-1].id if len(nodes) == limit else None)


@transaction(Mode.READ)
async def node_named(tx: Tx, id: int, name: str, *, now: datetime | None = None) -> int:
    """The id of the job that is this node. Raises `WorkflowNotFound` when there is none."""
    tx.at(now)
    await _seen(tx, id)
    nodes = await tx.fetch_as(NamedNode, "named_nodes", id=id, names=to_json([name]))
    if not nodes:
        raise WorkflowNotFound(f"workflow {id} has no node {name!r:.60}")
    return nodes[0].job_id


async def parent_ends(
    scope: Scope, id: JobId, *, task: str | None = None, now: datetime | None = None
) -> list[ParentEnd]:
    """The parents of a job, in the order of their ids: how each ended, and its result.

    With `task`, those that are jobs of this task. Raises `JobNotFound` for one of another tenant.
    """
    id, after, ends = id_of(id), 0, []
    while True:
        page = await scope.transact(partial(_parent_page, id=id, after=after, now=now), Mode.READ)
        ends += [end for end in page if task is None or end.task == task]
        if len(page) < RESULTS_AT_ONCE:
            return ends
        after = page[-1].id


async def _parent_page(tx: Tx, id: int, after: int, now: datetime | None) -> list[ParentEnd]:
    tx.at(now)
    if tx.tenant is not None and not after:
        await seen_job(tx, id)
    parents = await tx.fetch_as(
        EndedParent, "parent_ends", id=id, after=after, most=RESULTS_AT_ONCE
    )
    return [
        ParentEnd(each.id, each.name, each.task,
                  None if each.state is None else State(each.state), each.result)
        for each in parents
    ]  # fmt: skip


@transaction(Mode.READ)
async def workflow_of(tx: Tx, id: JobId, *, now: datetime | None = None) -> tuple[int, str] | None:
    """The workflow to which a job belongs, and the job's name there; None for any other job."""
    id = id_of(id)
    tx.at(now)
    for node in await tx.fetch_as(NodeOf, "node_of", id=id) if is_id(id) else ():
        if tx.tenant in (None, node.tenant) or not node.tenant:
            return node.workflow_id, node.name
    return None


async def _seen(tx: Tx, id: int) -> WorkflowRow:
    check_id("the id of a workflow", id)
    workflows: list[WorkflowRow] = []
    if is_id(id):
        workflows = await tx.fetch_as(WorkflowRow, "workflow_seen", id=id, tenant=tx.tenant)
    if not workflows:
        raise WorkflowNotFound(f"there is no workflow {id}")
    return workflows[0]


def _workflow(tx: Tx, row: WorkflowRow, counts: dict[State, int]) -> WorkflowSeen:
    when = tx.when_or_none
    return WorkflowSeen(
        id=row.id, name=row.name, key=row.key, tenant=row.tenant,
        on_failure=OnFailure(row.on_failure), created_at=tx.when(row.created_at),
        ended_at=when(row.ended_at), outcome=None if row.outcome is None else Outcome(row.outcome),
        paused_at=when(row.paused_at), cancelled_at=when(row.cancelled_at),
        finaliser_id=row.finaliser_id, reason=row.reason, counts=counts,
    )  # fmt: skip
