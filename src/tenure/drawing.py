"""A workflow as text: its nodes in order, each with its parents. Pure.

Nodes of one task with the same parents and children share a row, so a fan of ten thousand nodes is
as easy to read as a fan of three.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime

from tenure.rules.graph import NodeSeen, WorkflowSeen
from tenure.rules.job import State, When

MAX_LINES = 200
MAX_NAMES = 3
MARKS = {
    State.WAITING: ".", State.SCHEDULED: "~", State.QUEUED: "-", State.RUNNING: ">",
    State.SUCCEEDED: "+", State.FAILED: "!", State.CANCELLED: "x", State.SKIPPED: "o",
}  # fmt: skip
_ORDER = list(MARKS)


def draw(workflow: WorkflowSeen, nodes: Sequence[NodeSeen]) -> str:
    """The workflow's state, then one row for each node or group of similar nodes."""
    groups = _groups(nodes)
    names = {id: _name(group) for group in groups for id in (node.id for node in group)}
    depths = _depths(nodes)
    lines = [headline(workflow)]
    for group in groups[:MAX_LINES]:
        after = list(dict.fromkeys(names.get(parent, str(parent)) for parent in group[0].after))
        lines.append(_line(group, depths[group[0].id], after, workflow.finaliser_id))
    if len(groups) > MAX_LINES:
        lines.append(f"  ... and {len(groups) - MAX_LINES} more rows")
    return "\n".join(lines)


def headline(workflow: WorkflowSeen) -> str:
    """The workflow's name, id, state and progress."""
    key = "" if workflow.key is None else f" [{workflow.key}]"
    said = f"{workflow.name}{key} {workflow.id}: {workflow.state}"
    if workflow.total:
        said += f", {workflow.finished} of {workflow.total} finished"
    if workflow.reason is not None:
        said += f" ({workflow.reason})"
    if workflow.ended_at is not None:
        said += f", took {_seconds(workflow.created_at, workflow.ended_at)}"
    return said


def _seconds(since: datetime, until: datetime) -> str:
    return f"{(until - since).total_seconds():.1f} s"


def _groups(nodes: Sequence[NodeSeen]) -> list[list[NodeSeen]]:
    """Nodes with the same task, rule, parents and children, in the order of their first node."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for node in nodes:
        for parent in node.after:
            children[parent].append(node.id)
    alike: dict[object, list[NodeSeen]] = {}
    for node in nodes:
        kind = (node.task, node.when, node.after, tuple(children[node.id]))
        alike.setdefault(kind, []).append(node)
    return list(alike.values())


def _depths(nodes: Sequence[NodeSeen]) -> dict[int, int]:
    """The distance of each node from the start; parents may come after children in `nodes`."""
    above = {node.id: node.after for node in nodes}
    depths: dict[int, int] = {}
    for start in above:
        stack = [start]
        while stack:
            id = stack[-1]
            missing = [p for p in above.get(id, ()) if p in above and p not in depths]
            if missing:
                stack += missing
                continue
            stack.pop()
            depths[id] = 1 + max((depths.get(p, 0) for p in above[id]), default=-1)
    return depths


def _name(group: Sequence[NodeSeen]) -> str:
    names = [node.name for node in group]
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    return f"{names[0]} ... {names[-1]} ({len(names)})"


def _line(
    group: Sequence[NodeSeen], depth: int, after: Sequence[str], finaliser: int | None
) -> str:
    counts = Counter(node.state for node in group)
    worst = max(counts, key=_ORDER.index)
    if len(counts) == 1 and len(group) == 1:
        became = str(worst)
    else:
        became = ", ".join(f"{counts[s]} {s}" for s in _ORDER if counts[s])
    first = group[0]
    said = f"  {'  ' * depth}{MARKS[worst]} {_name(group)}: {became}"
    if first.reason is not None and worst in (State.SKIPPED, State.CANCELLED):
        said += f" ({first.reason})"
    if first.id == finaliser:
        return said + "  <- all others"
    if after:
        rule = "" if first.when is When.ALL_SUCCEEDED else f", {str(first.when).replace('_', ' ')}"
        shown = ", ".join(after[:MAX_NAMES]) + (", ..." if len(after) > MAX_NAMES else "")
        said += f"  <- {shown}{rule}"
    return said
