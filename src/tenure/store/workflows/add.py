"""Workflows come in: all nodes of one at once, or some more while it runs; and are looked at.

The whole graph is one transaction. Ids are known before the first row is written, so edges are, and
no parent can end before its children are there. What a running node adds is fenced like its
settlement: the transaction that adds holds the job, its token and its lease.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

import msgspec

from tenure.errors import (
    InvalidInput,
    InvalidWorkflow,
    KeyTaken,
    LeaseLost,
    StoreBusy,
    TenantMismatch,
    WorkflowNotFound,
)
from tenure.rules.codec import fingerprint
from tenure.rules.graph import (
    GrowingNode,
    NewNode,
    NewWorkflow,
    NodePage,
    NodeSeen,
    OnFailure,
    Outcome,
    ParentEnd,
    WorkflowAdded,
    WorkflowSeen,
    check_nodes,
    features_in,
    in_order,
    last_nodes,
)
from tenure.rules.job import (
    NewJob,
    State,
    When,
    check_int,
    check_name,
    is_id,
)
from tenure.rules.lifecycle import WAITS_FOR_ALL, HeldJob
from tenure.store.jobs.enqueue import claim_keys, insert_new, stamp
from tenure.store.jobs.settle import free_children, hold_job
from tenure.store.look.jobs import seen_job
from tenure.store.session import (
    Edge,
    Mode,
    Row,
    Scope,
    Tx,
    for_all_tenants,
    to_json,
    transaction,
)
from tenure.store.workflows.act import end_of, hold_nodes
from tenure.store.workflows.end import end_workflows

ROWS_AT_ONCE = 5000
FEW_PARENTS = 16
MAX_PAGE = 1000
RESULTS_AT_ONCE = 100
_KEY_ROUNDS = 5
_TOP = 2**53

T = TypeVar("T")


async def enqueue_workflow(
    scope: Scope,
    workflow: NewWorkflow,
    *,
    on: object | None = None,
    now: datetime | None = None,
) -> WorkflowAdded:
    """Store a workflow with all of its jobs, or nothing.

    When a workflow of this name that has not ended holds the key, nothing is written, and the
    answer names that one. With `on`, the caller's own connection, all becomes real when the caller
    commits. Raises `KeyTaken` when the unique key of a node is held by another job.
    """
    if not isinstance(workflow, NewWorkflow):
        raise InvalidInput(f"a NewWorkflow is needed, not {type(workflow).__name__}")
    workflow = _stamped(workflow, scope.tenant)
    count = 1 + len(workflow.nodes) + (workflow.finaliser is not None)
    if on is not None:
        return await scope.lend(on, lambda tx: _add(tx, workflow, None, now))
    ids = await scope.session.reserve_ids(count)
    return await scope.transact(lambda tx: _add(tx, workflow, ids, now))


def _stamped(workflow: NewWorkflow, tenant: str | None) -> NewWorkflow:
    """All of it belongs to one tenant: that of the store, or its own."""
    if tenant is not None and workflow.tenant not in ("", tenant):
        raise TenantMismatch(
            f"this store works for tenant {tenant!r}; it cannot enqueue for {workflow.tenant!r}"
        )
    tenant = tenant or workflow.tenant
    own = {node.job.tenant for node in _all_nodes(workflow)}
    if own == {tenant} == {workflow.tenant}:
        return workflow
    nodes = tuple(_of_tenant(node, tenant) for node in workflow.nodes)
    final = None if workflow.finaliser is None else _of_tenant(workflow.finaliser, tenant)
    return msgspec.structs.replace(workflow, tenant=tenant, nodes=nodes, finaliser=final)


def _of_tenant(node: NewNode, tenant: str) -> NewNode:
    if node.job.tenant == tenant:
        return node
    return msgspec.structs.replace(node, job=stamp(node.job, tenant))


def _all_nodes(workflow: NewWorkflow) -> tuple[NewNode, ...]:
    return (*workflow.nodes, *([] if workflow.finaliser is None else [workflow.finaliser]))


async def _add(
    tx: Tx, workflow: NewWorkflow, ids: list[int] | None, now: datetime | None
) -> WorkflowAdded:
    tx.at(now)
    last = last_nodes([(node.after, node.when) for node in workflow.nodes])
    nodes = _all_nodes(workflow)
    if workflow.finaliser is not None:
        waits = {"after": tuple(last), "when": When.ALL_FINISHED}
        nodes = (*workflow.nodes, msgspec.structs.replace(workflow.finaliser, **waits))
        last = [len(workflow.nodes)]
    if ids is None:
        ids = await tx.draw_ids(1 + len(nodes))
    id, jobs = ids[0], ids[1:]
    final = jobs[-1] if workflow.finaliser is not None else None
    added = WorkflowAdded(id, tuple(jobs[: len(workflow.nodes)]), True, final)
    if tx.repeat and await tx.fetch("workflow_row", id=id, tenant=None):
        return added  # the first try, whose COMMIT got no answer, has written it
    holder = await _take_key(tx, workflow, id, final)
    if holder != id:
        return WorkflowAdded(holder, created=False)
    await _insert(tx, id, jobs, nodes, None)
    edges: list[Edge] = []
    for job, node in zip(jobs, nodes, strict=True):
        after = set(node.after)
        edges += [Edge(job, jobs[n], silent=len(after) <= FEW_PARENTS) for n in after]
    await _write_edges(tx, edges + [Edge(-id, jobs[n]) for n in last])
    return added


async def _take_key(tx: Tx, workflow: NewWorkflow, id: int, final: int | None) -> int:
    """Write the row of the workflow; or answer who holds its key."""
    named = {"tenant": workflow.tenant, "name": workflow.name, "key": workflow.key}
    for _ in range(_KEY_ROUNDS):
        if await tx.fetch(
            "add_workflow", id=id, on_failure=str(workflow.on_failure), finaliser=final, **named
        ):
            return id
        for (holder,) in await tx.fetch("keyed_workflow", **named):
            return int(holder)
    raise StoreBusy("the key of the workflow changed hands too often; enqueue again")


async def _insert(
    tx: Tx,
    id: int,
    jobs: Sequence[int],
    nodes: Sequence[NewNode | GrowingNode],
    added_by: int | None,
) -> None:
    """Write the jobs of nodes, and which job is which node."""
    new = [
        (job, msgspec.structs.replace(node.job, features=features))
        for job, node, features in zip(jobs, nodes, features_in(nodes), strict=True)
    ]
    await _claim_keys(tx, new, nodes)
    await insert_new(tx, new)
    named = [
        (job, id, node.name, str(node.when), added_by, False)
        for job, node in zip(jobs, nodes, strict=True)
    ]
    for part in _chunks(named):
        if tx.bulk:
            await tx.write_rows("write_node", part)
        else:
            await tx.fetch("add_nodes", rows=to_json(part))


async def _claim_keys(
    tx: Tx, new: list[tuple[int, NewJob]], nodes: Sequence[NewNode | GrowingNode]
) -> None:
    """A node stands for one job. One that would stand for another's is refused, with all others."""
    held = await claim_keys(tx, new)
    if not held:
        return
    names = {job: node.name for (job, _), node in zip(new, nodes, strict=True)}
    job, holder = next(iter(held.items()))
    raise KeyTaken(
        f"node {names[job]} has a unique key that job {holder.id} holds; wait for its end, or give "
        "the workflow a key instead"
    )


async def _write_edges(tx: Tx, edges: Sequence[Edge]) -> None:
    for part in _chunks(edges):
        if tx.bulk:
            await tx.write_edges(part)
        else:
            rows = [{"job_id": job, "parent_id": parent} for job, parent, _ in part]
            await tx.fetch("add_edges", rows=to_json(rows))


def _chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), ROWS_AT_ONCE):
        yield rows[start : start + ROWS_AT_ONCE]


# --- while it runs --------------------------------------------------------------------------------


class _Known(msgspec.Struct, frozen=True):
    """A node that is there already."""

    id: int
    when: When
    waits: bool
    task: str
    args: str
    added_by: int | None


class _Growth(msgspec.Struct, frozen=True):
    """What is to be added, and what is there."""

    nodes: list[GrowingNode]
    known: dict[str, _Known]
    """Nodes that are there, by name."""
    own: dict[str, int]
    """The ids of those that an earlier attempt of the same job has added."""

    @property
    def new(self) -> list[GrowingNode]:
        return [node for node in self.nodes if node.name not in self.own]


@transaction(Mode.WRITE)
async def grow_workflow(
    tx: Tx,
    worker: str,
    job: HeldJob,
    nodes: Sequence[GrowingNode],
    *,
    now: datetime | None = None,
) -> list[int] | None:
    """Add nodes to the workflow of a job that the worker holds; answers their ids, in order.

    Fenced: raises `LeaseLost`, and adds nothing, when the job is not the worker's any more. None:
    the job is asked to stop, and nothing was added. A name that an earlier attempt of the same job
    has used stands for the node that is there, if it is the same call: so an attempt may repeat
    what the one before has added.
    """
    for_all_tenants("grow_workflow", tx.tenant)
    check_nodes(nodes)
    tx.at(now)
    place = await tx.fetch("node_of", id=job.id)
    if not place:
        raise InvalidWorkflow(f"job {job.id} belongs to no workflow; app.workflow(...) starts one")
    id, _, tenant, _ = place[0]
    await tx.fetch("begin_work", id=id)
    known = await _named(tx, id, {name for node in nodes for name in _names(node)})
    older = {name for node in nodes for name in (*node.after_names, *node.before_names)}
    if unknown := older - known.keys():
        raise InvalidWorkflow(f"the workflow has no node {min(unknown)}")
    own = {node.name: _same(node, known[node.name], job.id) for node in nodes
           if node.name in known}  # fmt: skip
    locked = sorted({job.id} | {known[name].id for name in older})
    await tx.fetch("lock_jobs", ids=to_json(locked))
    held = await hold_job(tx, worker, job)
    if held is None:
        raise LeaseLost(f"job {job.id} is no longer ours; nothing was added to its workflow")
    if held[4]:
        return None
    known |= await _named(tx, id, {name for node in nodes for name in node.before_names})
    [flow] = await tx.fetch("workflow_row", id=id, tenant=None)
    if flow[10] == job.id:
        raise InvalidWorkflow("the finaliser is the last job of its workflow; it cannot add more")
    if len(own) < len(nodes):
        stamped = [
            msgspec.structs.replace(node, job=stamp(node.job, tenant or None)) for node in nodes
        ]
        growth = _Growth(stamped, known, own)
        await _check_circle(tx, growth)
        own |= await _grow(tx, flow, job.id, growth)
    return [own[node.name] for node in nodes]


def _names(node: GrowingNode) -> tuple[str, ...]:
    return (node.name, *node.after_names, *node.before_names)


def _same(node: GrowingNode, known: _Known, adder: int) -> int:
    """The id of the node that an earlier attempt has added."""
    same = fingerprint(known.task, known.args.encode()) == fingerprint(node.job.task, node.job.args)
    if known.added_by != adder or not same:
        raise InvalidWorkflow(
            f"the workflow has another node {node.name} already; give this one a name= of its own"
        )
    return known.id


async def _named(tx: Tx, id: int, names: Iterable[str]) -> dict[str, _Known]:
    rows = await tx.fetch("named_nodes", id=id, names=to_json(sorted(names)))
    return {
        name: _Known(job, When(rule), bool(waits), task, args, added_by)
        for name, job, rule, waits, task, args, added_by in rows
    }


async def _check_circle(tx: Tx, growth: _Growth) -> None:
    """A node that comes before X must not wait for what waits for X."""
    known, new = growth.known, growth.new
    late = sorted({name for node in new for name in node.before_names if not known[name].waits})
    if late:
        raise InvalidWorkflow(f"node {late[0]} has started or ended: nothing can come before it")
    before = {known[name].id for node in new for name in node.before_names}
    if not before:
        return
    after = {known[name].id for node in new for name in node.after_names}
    older = {name for node in new for name in (*node.after_names, *node.before_names)}
    names = [*(node.name for node in growth.nodes), *sorted(older)]
    parents = [list(node.after) for node in growth.nodes] + [[] for _ in older]
    spots = {known[name].id: names.index(name, len(growth.nodes)) for name in older}
    for n, node in enumerate(growth.nodes):
        if node.name not in growth.own:
            parents[n] += [spots[known[name].id] for name in node.after_names]
            for name in node.before_names:
                parents[spots[known[name].id]].append(n)
    for low, high in await tx.fetch("nodes_above", ids=to_json(sorted(after))):
        if high in before and high != low:
            parents[spots[low]].append(spots[high])
    in_order(names, parents)


async def _grow(tx: Tx, flow: Row, adder: int, growth: _Growth) -> dict[str, int]:
    """Write those of the nodes that are not there; answers their ids by name."""
    id, paused = flow[0], flow[8] is not None
    new = growth.new
    ids = dict(zip((node.name for node in new), await tx.draw_ids(len(new)), strict=True))
    await _insert(tx, id, list(ids.values()), new, adder)
    await _write_edges(tx, _new_edges(growth, ids))
    if older := _older_edges(growth, ids):
        await tx.fetch("add_edges", rows=to_json(older))
    outlasted = _outlasted(growth)
    last = [job for name, job in ids.items() if name not in outlasted]
    if last:
        await tx.fetch("add_ends", child=await end_of(tx, flow), ids=to_json(last))
    await free_children(tx, [ids[node.name] for node in new if node.after or node.after_names])
    if paused:
        await hold_nodes(tx, id, set(ids.values()))
    await end_workflows(tx)
    return ids


def _new_edges(growth: _Growth, ids: dict[str, int]) -> list[Edge]:
    """Edges that no end can have been written on. How many more a child will get, nobody knows."""
    edges: list[Edge] = []
    for node in growth.new:
        job = ids[node.name]
        names = {growth.nodes[n].name for n in node.after}
        edges += [Edge(job, ids[name]) for name in names if name in ids]
        edges += [Edge(growth.known[name].id, job) for name in set(node.before_names)]
    return edges


def _older_edges(growth: _Growth, ids: dict[str, int]) -> list[dict[str, int]]:
    """Edges from nodes that are there, and may have ended."""
    edges: list[dict[str, int]] = []
    for node in growth.new:
        older = {growth.own.get(growth.nodes[n].name) for n in node.after}
        older |= {growth.known[name].id for name in node.after_names}
        edges += [{"job_id": ids[node.name], "parent_id": id} for id in older if id is not None]
    return edges


def _outlasted(growth: _Growth) -> set[str]:
    """Those of the nodes after which another one waits for all of its parents."""
    names: set[str] = set()
    for node in growth.new:
        if node.when in WAITS_FOR_ALL:
            names |= {growth.nodes[n].name for n in node.after}
        if any(growth.known[name].when in WAITS_FOR_ALL for name in node.before_names):
            names.add(node.name)
    return names


# --- looking --------------------------------------------------------------------------------------


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
