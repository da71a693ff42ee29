"""Shorthands for tests of workflows: a graph in one line, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from tenure.rules.claim import Claimed
from tenure.rules.graph import GrowingNode, NewNode, NewWorkflow, Outcome, WorkflowAdded
from tenure.rules.job import State, When
from tenure.rules.lifecycle import Settlement, fail, succeed
from tenure.store import Store
from tests.support.work import ERROR, job, settle, take

Parents = tuple[str, ...]
CHAIN: dict[str, Parents] = {"a": (), "b": ("a",), "c": ("b",)}


def graph(parents: Mapping[str, Parents], whens: Mapping[str, When] | None = None) -> Any:
    """Nodes by name, parents first: graph({"a": (), "b": ("a",)})."""
    names = list(parents)
    return tuple(
        NewNode(
            name=name, job=job(task=f"app.{name}"),
            after=tuple(names.index(parent) for parent in parents[name]),
            when=(whens or {}).get(name, When.ALL_SUCCEEDED),
        )
        for name in names
    )  # fmt: skip


def flow(
    parents: Mapping[str, Parents],
    whens: Mapping[str, When] | None = None,
    *,
    finaliser: str | None = None,
    **options: Any,
) -> NewWorkflow:
    """A workflow of such nodes."""
    final = None if finaliser is None else NewNode(name=finaliser, job=job(task=f"app.{finaliser}"))
    options = {"name": "flow"} | options
    return NewWorkflow(nodes=graph(parents, whens), finaliser=final, **options)


def more(name: str, **options: Any) -> GrowingNode:
    """A node that a running one adds."""
    return GrowingNode(name=name, job=job(task=f"app.{name}"), **options)


def states(store: Store, id: int) -> dict[str, State]:
    """The states of all nodes, by name."""
    return {node.name: node.state for node in store.list_nodes(id).nodes}


def take_named(store: Store, now: datetime, most: int = 1000) -> dict[str, Claimed]:
    """Claim all that is in line, by the name of the node."""
    return {claimed.task.removeprefix("app."): claimed for claimed in take(store, now, most)}


def run_all(
    store: Store,
    now: datetime,
    ends: Mapping[str, Callable[[Claimed], Settlement]] | None = None,
) -> list[str]:
    """Run what is in line until nothing is; answers the names in the order in which they ran."""
    ran: list[str] = []
    while claimed := take(store, now, 1000):
        for held in claimed:
            name = held.task.removeprefix("app.")
            ran.append(name)
            settle(store, now, (ends or {}).get(name, succeed)(held))
    return ran


def failing(held: Claimed) -> Settlement:
    """The attempt fails for good."""
    return fail(held, ERROR)


def added(store: Store, now: datetime, *args: Any, **options: Any) -> WorkflowAdded:
    """Enqueue such a workflow."""
    return store.enqueue_workflow(flow(*args, **options), now=now)


def outcome(store: Store, id: int) -> Outcome | None:
    """How a workflow ended, if it has."""
    return store.get_workflow(id).outcome


def finish(store: Store, now: datetime, *held: Any) -> None:
    """These succeed."""
    settle(store, now, *(succeed(each) for each in held))
