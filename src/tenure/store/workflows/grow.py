"""A running node adds nodes to its workflow."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from tenure.errors import InvalidWorkflow, LeaseLost
from tenure.rules.codec import fingerprint
from tenure.rules.graph import GrowingNode, check_nodes, in_order
from tenure.rules.job import When
from tenure.rules.lifecycle import WAITS_FOR_ALL, HeldJob
from tenure.store.moves import free_children, lock_leased, stamp
from tenure.store.session import Edge, Mode, Tx, for_all_tenants, to_json, transaction
from tenure.store.workflows.act import hold_nodes
from tenure.store.workflows.add import _insert, _write_edges
from tenure.store.workflows.end import end_workflows
from tenure.store.workflows.nodes import end_of, get_row
from tenure.store.workflows.records import Ancestor, NamedNode, NodeOf, WorkflowRow


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
    """Add nodes to the workflow of a job that the worker has on a lease. Returns their ids.

    Fenced: raises `LeaseLost`, and adds nothing, when the job is not the worker's any more. None:
    the job is asked to stop, and nothing was added. A name that an earlier attempt of the same job
    has used stands for the node that is there, if it is the same call: so an attempt may repeat
    what the one before has added.
    """
    for_all_tenants("grow_workflow", tx.tenant)
    check_nodes(nodes)
    tx.at(now)
    node_of = await tx.fetch_as(NodeOf, "node_of", id=job.id)
    if not node_of:
        raise InvalidWorkflow(f"job {job.id} belongs to no workflow; app.workflow(...) starts one")
    id, tenant = node_of[0].workflow_id, node_of[0].tenant
    await tx.fetch("begin_work", id=id)
    known = await _named(tx, id, {name for node in nodes for name in _names(node)})
    older = {name for node in nodes for name in (*node.after_names, *node.before_names)}
    if unknown := older - known.keys():
        raise InvalidWorkflow(f"the workflow has no node {min(unknown)}")
    own = {node.name: _same(node, known[node.name], job.id) for node in nodes
           if node.name in known}  # fmt: skip
    locked = sorted({job.id} | {known[name].id for name in older})
    await tx.fetch("lock_jobs", ids=to_json(locked))
    leased = await lock_leased(tx, worker, job)
    if leased is None:
        raise LeaseLost(f"job {job.id} is no longer ours; nothing was added to its workflow")
    if leased.cancel_requested:
        return None
    known |= await _named(tx, id, {name for node in nodes for name in node.before_names})
    workflow = await get_row(tx, id)
    if workflow.finaliser_id == job.id:
        raise InvalidWorkflow("the finaliser is the last job of its workflow; it cannot add more")
    if len(own) < len(nodes):
        stamped = [
            msgspec.structs.replace(node, job=stamp(node.job, tenant or None)) for node in nodes
        ]
        growth = _Growth(stamped, known, own)
        await _check_circle(tx, growth)
        own |= await _grow(tx, workflow, job.id, growth)
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
    nodes = await tx.fetch_as(NamedNode, "named_nodes", id=id, names=to_json(sorted(names)))
    return {
        node.name: _Known(
            node.job_id, When(node.rule), bool(node.waits), node.task, node.args, node.added_by
        )
        for node in nodes
    }


async def _check_circle(tx: Tx, growth: _Growth) -> None:
    """A node that comes before X must not wait for a node that waits for X."""
    known, new = growth.known, growth.new
    late = {name for node in new for name in node.before_names if not known[name].waits}
    if late:
        raise InvalidWorkflow(f"node {min(late)} has started or ended: nothing can come before it")
    before = {known[name].id for node in new for name in node.before_names}
    if not before:
        return
    after = {known[name].id for node in new for name in node.after_names}
    older = {name for node in new for name in (*node.after_names, *node.before_names)}
    names = [*(node.name for node in growth.nodes), *sorted(older)]
    parents = [list(node.after) for node in growth.nodes] + [[] for _ in older]
    spots = {known[name].id: names.index(name, len(growth.nodes)) for name in older}
    for n, new_node in enumerate(growth.nodes):
        if new_node.name not in growth.own:
            parents[n] += [spots[known[name].id] for name in new_node.after_names]
            for name in new_node.before_names:
                parents[spots[known[name].id]].append(n)
    for node, ancestor in await tx.fetch_as(Ancestor, "nodes_above", ids=to_json(sorted(after))):
        if ancestor in before and ancestor != node:
            parents[spots[node]].append(spots[ancestor])
    in_order(names, parents)


async def _grow(tx: Tx, workflow: WorkflowRow, adder: int, growth: _Growth) -> dict[str, int]:
    """Write the nodes that are not there yet. Returns their ids by name."""
    id, new = workflow.id, growth.new
    ids = dict(zip((node.name for node in new), await tx.draw_ids(len(new)), strict=True))
    await _insert(tx, id, list(ids.values()), new, adder)
    await _write_edges(tx, _new_edges(growth, ids))
    if older := _older_edges(growth, ids):
        await tx.fetch("add_edges", rows=to_json(older))
    outlasted = _outlasted(growth)
    last = [job for name, job in ids.items() if name not in outlasted]
    if last:
        await tx.fetch("add_ends", child=await end_of(tx, workflow), ids=to_json(last))
    await free_children(tx, [ids[node.name] for node in new if node.after or node.after_names])
    if workflow.paused_at is not None:
        await hold_nodes(tx, id, set(ids.values()))
    await end_workflows(tx)
    return ids


def _new_edges(growth: _Growth, ids: dict[str, int]) -> list[Edge]:
    """Edges to parents that have not finished. A child may get more parents later."""
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
