"""The rows of workflows that statements return: see store/records.py."""

from typing import NamedTuple

from tenure.store.records import Flag, Returned, Time


class WorkflowRow(NamedTuple):
    """A row of `workflow`."""

    id: int
    name: str
    key: str | None
    tenant: str
    on_failure: str
    created_at: Time
    ended_at: Time
    outcome: str | None
    paused_at: Time
    cancelled_at: Time
    finaliser_id: int | None
    reason: str | None
    failed: Flag
    stopping: Flag


class StoppingWorkflow(NamedTuple):
    """A workflow, and whether a failed node asks for the rest to be stopped."""

    id: int
    stopping: Flag


class LockedNode(NamedTuple):
    """A live node of a workflow, locked."""

    id: int
    token: int
    queue: str
    needs: int
    priority: int
    position: int | None
    due_at: Time
    parked: str | None
    held: Flag
    cancel_requested: Flag
    gate: str | None
    gate_key: str | None
    rule: str
    paused: Flag
    """It is held because its workflow is paused."""


class Neighbour(NamedTuple):
    """A parent or a child of nodes that are replayed."""

    id: int
    below: Flag


class NodeRow(NamedTuple):
    """A node with the state of its job."""

    job_id: int
    name: str
    task: str
    state: str
    rule: str
    reason: str | None
    added_by: int | None


class NamedNode(NamedTuple):
    """A node found by its name."""

    name: str
    job_id: int
    rule: str
    waits: Flag
    """It still waits for its parents."""
    task: str
    args: str
    added_by: int | None


class NodeOf(NamedTuple):
    """The workflow to which a job belongs."""

    workflow_id: int
    name: str
    """The name of the node."""
    tenant: str
    is_open: Flag


class Ancestor(NamedTuple):
    """A node, and an unfinished one that it waits for, near or far."""

    node: int
    ancestor: int


class ParentEdge(NamedTuple):
    """A child and one of its parents."""

    job_id: int
    parent_id: int


class EndedParent(NamedTuple):
    """A parent of a job and, once it has finished, its state and result."""

    id: int
    name: str | None
    task: str | None
    state: str | None
    result: str | None


class StateCount(NamedTuple):
    """How many jobs are in a state."""

    state: str
    jobs: int


RETURNED_BY: Returned = {
    WorkflowRow: ("workflow_row", "workflow_seen", "list_workflows"),
    StoppingWorkflow: ("lock_workflows", "mark_workflows"),
    LockedNode: ("lock_nodes",),
    Neighbour: ("neighbours",),
    NodeRow: ("list_nodes",),
    NamedNode: ("named_nodes",),
    NodeOf: ("node_of",),
    Ancestor: ("nodes_above",),
    ParentEdge: ("node_edges",),
    EndedParent: ("parent_ends",),
    StateCount: ("count_nodes",),
}
