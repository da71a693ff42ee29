"""Reads of workflows and their nodes."""

from datetime import datetime
from functools import partial

from tenure.errors import WorkflowNotFound
from tenure.rules.graph import NodePage, NodeSeen, OnFailure, Outcome, ParentEnd, WorkflowSeen
from tenure.rules.job import State, When
from tenure.rules.limits import check_int, check_name, is_id
from tenure.store.look.jobs import seen_job
from tenure.store.session import Mode, Row, Scope, Tx, to_json, transaction
from tenure.store.workflows.add import _TOP, MAX_PAGE, RESULTS_AT_ONCE


@transaction(Mode.READ)
async def get_workflow(tx: Tx, id: int, *, now: datetime | None = None) -> WorkflowSeen:
    """One workflow, with how many of its nodes are in which state. Raises `WorkflowNotFound`."""
    tx.at(now)
    row = await _seen(tx, id)
    counts = {State(state): int(count) for state, count in await tx.fetch("count_nodes", id=id)}
    return _workflow(tx, row, counts)


@transaction(Mode.READ)
async def has_ended(tx: Tx, id: int, *, now: datetime | None = None) -> bool:
    """Has a workflow ended? One row is read. Raises `WorkflowNotFound`."""
    tx.at(now)
    return (await _seen(tx, id))[6] is not None


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
    rows = await tx.fetch(
        "list_workflows", tenant=tx.tenant, name=name, open=open, below=below, most=limit
    )
    return [_workflow(tx, row, {}) for row in rows]


@transaction(Mode.READ)
async def list_nodes(
    tx: Tx, id: int, *, after: int = 0, limit: int = MAX_PAGE, now: datetime | None = None
) -> NodePage:
    """The nodes of a workflow with their parents, in the order of their ids, a page at a time."""
    check_int("limit", limit, 1, MAX_PAGE)
    check_int("after", after, 0, _TOP)
    tx.at(now)
    await _seen(tx, id)
    rows = await tx.fetch("list_nodes", id=id, after=after, most=limit)
    parents: dict[int, list[int]] = {}
    for child, parent in await tx.fetch("node_edges", ids=to_json([row[0] for row in rows])):
        parents.setdefault(child, []).append(parent)
    nodes = tuple(
        NodeSeen(
            id=job, name=name, task=task, state=State(state), when=When(rule), reason=reason,
            added_by=added_by, after=tuple(parents.get(job, ())),
        )
        for job, name, task, state, rule, reason, added_by in rows
    )  # fmt: skip
    return NodePage(nodes, nodes[-1].id if len(nodes) == limit else None)


@transaction(Mode.READ)
async def node_named(tx: Tx, id: int, name: str, *, now: datetime | None = None) -> int:
    """The id of the job that is this node. Raises `WorkflowNotFound` when there is none."""
    tx.at(now)
    await _seen(tx, id)
    rows = await tx.fetch("named_nodes", id=id, names=to_json([name]))
    if not rows:
        raise WorkflowNotFound(f"workflow {id} has no node {name!r:.60}")
    return int(rows[0][1])


async def parent_ends(
    scope: Scope, id: int, *, task: str | None = None, now: datetime | None = None
) -> list[ParentEnd]:
    """The parents of a job, in the order of their ids: how each ended, and its result.

    With `task`, those that are jobs of this task. Raises `JobNotFound` for one of another tenant.
    """
    after, ends = 0, []
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
    rows = await tx.fetch("parent_ends", id=id, after=after, most=RESULTS_AT_ONCE)
    return [
        ParentEnd(parent, name, task, None if state is None else State(state), result)
        for parent, name, task, state, result in rows
    ]


@transaction(Mode.READ)
async def workflow_of(tx: Tx, id: int, *, now: datetime | None = None) -> tuple[int, str] | None:
    """The workflow to which a job belongs, and the job's name there; None for any other job."""
    tx.at(now)
    rows = await tx.fetch("node_of", id=id) if is_id(id) else []
    for workflow, name, tenant, _ in rows:
        if tx.tenant in (None, tenant) or not tenant:
            return workflow, name
    return None


async def _seen(tx: Tx, id: int) -> Row:
    rows = await tx.fetch("workflow_seen", id=id, tenant=tx.tenant) if is_id(id) else []
    if not rows:
        raise WorkflowNotFound(f"there is no workflow {id}")
    return rows[0]


def _workflow(tx: Tx, row: Row, counts: dict[State, int]) -> WorkflowSeen:
    when = tx.when_or_none
    return WorkflowSeen(
        id=row[0], name=row[1], key=row[2], tenant=row[3], on_failure=OnFailure(row[4]),
        created_at=tx.when(row[5]), ended_at=when(row[6]),
        outcome=None if row[7] is None else Outcome(row[7]), paused_at=when(row[8]),
        cancelled_at=when(row[9]), finaliser_id=row[10], reason=row[11], counts=counts,
    )  # fmt: skip
