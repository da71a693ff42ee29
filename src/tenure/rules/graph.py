"""The graph of a workflow: its records, what makes it valid, and how it ends. Pure.

    NewWorkflow of NewNode -> WorkflowAdded     what a client asks for, and what it is told
    WorkflowSeen, NodeSeen                      what everybody may look at

Nodes name their parents by their position. A workflow is over when its *last* nodes are: those
after which no other node waits for all of its parents. Every other node is outlasted by a child, so
to watch the last ones is enough, and inner nodes never touch the row of the workflow. A node that
is cancelled while it waits outlasts nobody: its parents are watched from then on, too.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from tenure.errors import InvalidWorkflow
from tenure.rules.job import MAX_KEY_BYTES, Feature, NewJob, State, When, check_name, check_text
from tenure.rules.lifecycle import WAITS_FOR_ALL

MAX_NODES = 1_000_000
MAX_SHOWN = 5


class OnFailure(StrEnum):
    """What becomes of the rest when a node has failed."""

    FINISH = "finish"
    """What does not depend on it goes on."""
    STOP = "stop"
    """What has not started is cancelled, what runs is asked to stop; clean-ups still run."""


class Outcome(StrEnum):
    """How a workflow ended: the worst that became of its nodes. Skipped ones do not count."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class NewNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job of a workflow to be enqueued. `after` are the positions of its parents."""

    name: str
    job: NewJob
    after: tuple[int, ...] = ()
    when: When = When.ALL_SUCCEEDED


class NewWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow to be enqueued. `nodes` come in an order in which parents stand before children.

    `finaliser` runs once all nodes have ended, however they did.
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
            raise InvalidWorkflow(f"on_failure takes one of OnFailure, not {self.on_failure!r:.60}")
        if not 1 <= len(self.nodes) <= MAX_NODES:
            raise InvalidWorkflow(
                f"a workflow has from 1 to {MAX_NODES} nodes, not {len(self.nodes)}; use flow.add"
            )
        final = () if self.finaliser is None else (self.finaliser,)
        check_nodes((*self.nodes, *final))


class GrowingNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that a running node adds to its own workflow.

    `after` are positions among the new nodes, `after_names` and `before_names` name older ones;
    those in `before_names` still wait, and will wait for this one, too.
    """

    name: str
    job: NewJob
    after: tuple[int, ...] = ()
    after_names: tuple[str, ...] = ()
    before_names: tuple[str, ...] = ()
    when: When = When.ALL_SUCCEEDED


class WorkflowAdded(msgspec.Struct, frozen=True):
    """The answer to an enqueue. `created` is False when the key was held; `id` is the holder's."""

    id: int
    nodes: tuple[int, ...] = ()
    """The ids of its jobs, in the order of the nodes."""
    created: bool = True
    finaliser: int | None = None


class WorkflowSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow as anybody may see it. `counts` says how many of its nodes are in which state."""

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
        """How many nodes there are, the finaliser among them."""
        return sum(self.counts.values())

    @property
    def finished(self) -> int:
        """How many of them have ended."""
        return sum(count for state, count in self.counts.items() if state.final)


class NodeSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node of a workflow as anybody may see it. `after` are the ids of its parents."""

    id: int
    name: str
    task: str
    state: State
    when: When
    after: tuple[int, ...] = ()
    reason: str | None = None
    added_by: int | None = None


class NodePage(msgspec.Struct, frozen=True):
    """Some nodes, in the order of their ids. `next` continues the list; None: it ended."""

    nodes: tuple[NodeSeen, ...]
    next: int | None


class ParentEnd(msgspec.Struct, frozen=True, gc=False):
    """A parent of a job: how it ended, if it has, and what it returned, as JSON."""

    id: int
    name: str | None
    task: str | None
    state: State | None
    result: str | None


def check_nodes(nodes: Iterable[NewNode | GrowingNode]) -> None:
    """Refuse names that are invalid or used twice, parents that do not stand before their child,
    and jobs that bring parents of their own."""
    names: set[str] = set()
    for n, node in enumerate(nodes):
        if node.name in names:
            raise InvalidWorkflow(f"two nodes are named {node.name}; give each its own name=")
        check_name("node", node.name)
        names.add(node.name)
        if any(not 0 <= parent < n for parent in node.after):
            raise InvalidWorkflow(f"node {node.name} comes before one of its parents")
        if node.job.parents or node.job.features:
            raise InvalidWorkflow(f"node {node.name} has parents=; in a workflow use after=[...]")


def in_order(names: Sequence[str], parents: Sequence[Sequence[int]]) -> list[int]:
    """The positions of all nodes, parents before children; otherwise in the order given.

    Raises `InvalidWorkflow`, naming the nodes, when some wait for each other in a circle.
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
    """Walk up through nodes that wait for each other until one comes again."""
    seen: dict[int, int] = {}
    here = min(stuck)
    while here not in seen:
        seen[here] = len(seen)
        here = next(parent for parent in parents[here] if parent in stuck)
    around = [names[n] for n in reversed([*seen][seen[here] :])]
    if len(around) == 1:
        return f"node {around[0]} waits for itself; leave it out of its own after="
    shown = around[:MAX_SHOWN] + ["..."] * (len(around) > MAX_SHOWN)
    return f"these nodes wait for each other in a circle: {' -> '.join([*shown, around[0]])}"


def last_nodes(nodes: Sequence[tuple[Sequence[int], When]]) -> list[int]:
    """The positions of the nodes that no other one is sure to outlast: see above."""
    outlasted = {parent for after, when in nodes if when in WAITS_FOR_ALL for parent in after}
    return [n for n in range(len(nodes)) if n not in outlasted]


def features_in(nodes: Sequence[NewNode | GrowingNode]) -> list[int]:
    """What settlement has to look at for each node. All have children: another node, or the end."""
    own = int(Feature.WORKFLOW | Feature.CHILDREN)
    waits, rule = int(Feature.PARENTS), int(Feature.RULE)
    return [
        own
        + (waits if node.after or _older_parents(node) else 0)
        + (0 if node.when is When.ALL_SUCCEEDED else rule)
        for node in nodes
    ]


def _older_parents(node: NewNode | GrowingNode) -> tuple[str, ...]:
    return node.after_names if isinstance(node, GrowingNode) else ()
