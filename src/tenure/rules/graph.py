"""The graph of a workflow: its records, what makes it valid, and how it ends. Pure.

    NewWorkflow of NewNode -> WorkflowAdded     a client's request, and the store's reply
    WorkflowSeen, NodeSeen                      a workflow and its nodes, as read from the store

Nodes refer to their parents by index. A workflow ends when its *last* nodes have finished. A node
is a last node if it has no child that waits for all of its parents. Every other node finishes
before such a child, so it is enough to watch the last nodes, and inner nodes never touch the row of
the workflow. A node that is cancelled while it waits may finish before its parents: from then on
its parents are watched too.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec

from tenure.errors import InvalidWorkflow
from tenure.rules.job import Feature, NewJob, State, When
from tenure.rules.lifecycle import WAITS_FOR_ALL
from tenure.rules.limits import MAX_KEY_BYTES, check_name, check_text
from tenure.rules.record import Record, value_of

MAX_NODES = 1_000_000
MAX_SHOWN = 5


class OnFailure(StrEnum):
    """What happens to the other nodes when one has failed."""

    FINISH = "finish"
    """Nodes that do not depend on it go on."""
    STOP = "stop"
    """Nodes that have not started are cancelled, running nodes are asked to stop; clean-up nodes
    still run."""


class Outcome(StrEnum):
    """How a workflow ended: the worst outcome of its nodes. Skipped nodes do not count."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class NewNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job of a workflow to be enqueued. `after` are the indexes of its parents."""

    name: str
    job: NewJob
    after: tuple[int, ...] = ()
    when: When = When.ALL_SUCCEEDED


class NewWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow to be enqueued. In `nodes`, parents come before their children.

    `finaliser` runs when all nodes have finished, in any final state.
    """

    name: str
    nodes: tuple[NewNode, ...]
    key: str | None = None
    tenant: str = ""
    on_failure: OnFailure = OnFailure.FINISH
    finaliser: NewNode | None = None

    def __post_init__(self) -> None:
        check_name("workflow", self.name)
        if self.key is not None:
            check_text("the key of a workflow", self.key, MAX_KEY_BYTES)
            if not self.key:
                raise InvalidWorkflow("the key is empty; leave it out for a workflow without one")
        if type(self.on_failure) is not OnFailure:
            raise InvalidWorkflow(
                f"on_failure must be one of OnFailure, not {self.on_failure!r:.60}"
            )
        if not 1 <= len(self.nodes) <= MAX_NODES:
            raise InvalidWorkflow(
                f"a workflow must have 1 to {MAX_NODES} nodes, not {len(self.nodes)}; use flow.add"
            )
        final = () if self.finaliser is None else (self.finaliser,)
        check_nodes((*self.nodes, *final))


class GrowingNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that a running node adds to its own workflow.

    `after` are indexes of new nodes. `after_names` and `before_names` are names of older nodes; the
    nodes in `before_names` have not started and will wait for this node too.
    """

    name: str
    job: NewJob
    after: tuple[int, ...] = ()
    after_names: tuple[str, ...] = ()
    before_names: tuple[str, ...] = ()
    when: When = When.ALL_SUCCEEDED


class WorkflowAdded(Record, msgspec.Struct, frozen=True):
    """The result of an enqueue. `created` is False when another workflow already had the key; `id`
    is then the id of that workflow."""

    id: int
    nodes: tuple[int, ...] = ()
    """The ids of its jobs, in the order of the nodes."""
    created: bool = True
    finaliser: int | None = None


class WorkflowSeen(Record, msgspec.Struct, frozen=True, kw_only=True):
    """A workflow as read from the store. `counts` is the number of its nodes in each state."""

    id: int
    name: str
    key: str | None
    tenant: str
    on_failure: OnFailure
    created_at: datetime
    ended_at: datetime | None
    outcome: Outcome | None
    paused_at: datetime | None
    cancelled_at: datetime | None
    finaliser_id: int | None
    reason: str | None
    counts: dict[State, int] = {}

    @property
    def state(self) -> str:
        """`running`, `paused`, `cancelling`, or how it ended."""
        if self.outcome is not None:
            return str(self.outcome)
        if self.cancelled_at is not None:
            return "cancelling"
        return "running" if self.paused_at is None else "paused"

    @property
    def total(self) -> int:
        """How many nodes there are, including the finaliser."""
        return sum(self.counts.values())

    @property
    def finished(self) -> int:
        """How many nodes have finished."""
        return sum(count for state, count in self.counts.items() if state.final)


class NodeSeen(Record, msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node of a workflow as read from the store. `after` are the ids of its parents."""

    id: int
    name: str
    task: str
    state: State
    when: When
    after: tuple[int, ...] = ()
    reason: str | None = None
    added_by: int | None = None


class NodePage(Record, msgspec.Struct, frozen=True):
    """Some nodes, in the order of their ids. `next` continues the list; None: no more nodes."""

    nodes: tuple[NodeSeen, ...]
    next: int | None


class ParentEnd(Record, msgspec.Struct, frozen=True, dict=True):
    """A parent of a job: its final state, if it has finished, and its result."""

    id: int
    name: str | None
    task: str | None
    state: State | None
    result_json: str | None

    @cached_property
    def result(self) -> Any:
        """What its handler returned, as JSON values."""
        return value_of(self, "result_json")


def check_nodes(nodes: Iterable[NewNode | GrowingNode]) -> None:
    """Refuse names that are invalid or used twice, parents that come after their child, and jobs
    that have `parents=`."""
    names: set[str] = set()
    for n, node in enumerate(nodes):
        if node.name in names:
            raise InvalidWorkflow(f"two nodes are called {node.name}; give each its own name=")
        check_name("node", node.name)
        names.add(node.name)
        if any(not 0 <= parent < n for parent in node.after):
            raise InvalidWorkflow(
                f"node {node.name} comes before one of its parents; put parents first"
            )
        if node.job.parents or node.job.features:
            raise InvalidWorkflow(f"node {node.name} has parents=; in a workflow use after=[...]")


def in_order(names: Sequence[str], parents: Sequence[Sequence[int]]) -> list[int]:
    """The indexes of all nodes, parents before children; otherwise in the order given.

    Raises `InvalidWorkflow`, which names the nodes, when nodes wait for each other in a cycle.
    """
    children: list[list[int]] = [[] for _ in names]
    missing = [0] * len(names)
    for n, those in enumerate(parents):
        for parent in set(those):
            children[parent].append(n)
            missing[n] += 1
    if all(parent < n for n, those in enumerate(parents) for parent in those):
        return list(range(len(names)))
    ordered = [n for n, count in enumerate(missing) if not count]
    for n in ordered:  # it grows while we walk
        for child in children[n]:
            missing[child] -= 1
            if not missing[child]:
                ordered.append(child)
    if len(ordered) < len(names):
        raise InvalidWorkflow(_circle(names, parents, {n for n, c in enumerate(missing) if c}))
    return ordered


def _circle(names: Sequence[str], parents: Sequence[Sequence[int]], stuck: set[int]) -> str:
    """Follow the parents of nodes that wait for each other until one repeats."""
    seen: dict[int, int] = {}
    here = min(stuck)
    while here not in seen:
        seen[here] = len(seen)
        here = next(parent for parent in parents[here] if parent in stuck)
    around = [names[n] for n in reversed([*seen][seen[here] :])]
    if len(around) == 1:
        return f"node {around[0]} waits for itself; remove it from its own after="
    shown = around[:MAX_SHOWN] + ["..."] * (len(around) > MAX_SHOWN)
    return (
        f"these nodes wait for each other in a cycle: {' -> '.join([*shown, around[0]])}; "
        "remove one of these dependencies"
    )


def last_nodes(nodes: Sequence[tuple[Sequence[int], When]]) -> list[int]:
    """The indexes of the last nodes: see the top of this module."""
    outlasted = {parent for after, when in nodes if when in WAITS_FOR_ALL for parent in after}
    return [n for n in range(len(nodes)) if n not in outlasted]


def features_in(nodes: Sequence[NewNode | GrowingNode]) -> list[int]:
    """The feature bits of each node. Every node has CHILDREN: other nodes or the workflow's end."""
    own = int(Feature.WORKFLOW | Feature.CHILDREN)
    waits, rule = Feature.PARENTS, Feature.RULE
    return [
        own
        + (waits if node.after or _older_parents(node) else 0)
        + (0 if node.when is When.ALL_SUCCEEDED else rule)
        for node in nodes
    ]


def _older_parents(node: NewNode | GrowingNode) -> tuple[str, ...]:
    return node.after_names if isinstance(node, GrowingNode) else ()
