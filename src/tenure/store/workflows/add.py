"""Workflows come in: all nodes of one at once, or some more while it runs; and are looked at.

The whole graph is one transaction. Ids are known before the first row is written, so edges are, and
no parent can end before its children are there. What a running node adds is fenced like its
settlement: the transaction that adds holds the job, its token and its lease.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from tenure.errors import (
    InvalidInput,
    KeyTaken,
    StoreBusy,
    TenantMismatch,
)
from tenure.rules.graph import (
    GrowingNode,
    NewNode,
    NewWorkflow,
    WorkflowAdded,
    features_in,
    last_nodes,
)
from tenure.rules.job import (
    NewJob,
    When,
)
from tenure.store.keys import claim_keys
from tenure.store.moves import insert_new, stamp
from tenure.store.session import (
    Edge,
    Scope,
    Tx,
    to_json,
)

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
        return await scope.run_borrowed(on, lambda tx: _add(tx, workflow, None, now))
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
    """Write the row of the workflow and return its id; or the id of the holder of its key."""
    named = {"tenant": workflow.tenant, "name": workflow.name, "key": workflow.key}
    for _ in range(_KEY_ROUNDS):
        if await tx.fetch(
            "add_workflow", id=id, on_failure=str(workflow.on_failure), finaliser=final, **named
        ):
            return id
        for holder in await tx.fetch_column("keyed_workflow", **named):
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
    keyed = [(job, node) for job, node in new if node.unique is not None]
    held = await claim_keys(tx, keyed) if keyed else {}
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
