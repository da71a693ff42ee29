"""The commands about workflows, in a terminal and as --json."""

from __future__ import annotations

from typing import Any

from tenure.rules import lifecycle
from tenure.rules.codec import encode
from tenure.rules.graph import NewNode, NewWorkflow, WorkflowSeen
from tenure.rules.job import NewJob, State
from tenure.store import open_store
from tests.cli.cases import Act, Case, Look, shows, tells
from tests.cli.world import World

CHAIN = ("fetch", "parse", "store")


def _flow(world: World) -> None:
    """A chain whose first node has failed, and an open one; both in a queue of their own."""
    with open_store(world.url) as store:
        nodes = tuple(
            NewNode(name=name, job=NewJob(task="shop.greet", queue="flows", max_attempts=1),
                    after=(n - 1,) if n else ())
            for n, name in enumerate(CHAIN)
        )  # fmt: skip
        store.enqueue_workflow(NewWorkflow(name="ingest", key="doc-7", nodes=nodes))
        [lease] = store.claim("w-1", {"flows": 1})
        [held] = lease.jobs
        store.settle("w-1", [lifecycle.fail(held, encode({"type": "E"}))], done_leases=[lease.id])
        fan = (NewNode(name="one", job=NewJob(task="shop.long", queue="flows")),
               *(NewNode(name=f"n-{n}", job=NewJob(task="shop.greet"), after=(0,))
                 for n in range(5)))  # fmt: skip
        store.enqueue_workflow(NewWorkflow(name="fan", nodes=fan))


def _paused(world: World) -> None:
    _flow(world)
    with open_store(world.url) as store:
        store.pause_workflow(world.flow)


def _seen(world: World, id: int) -> WorkflowSeen:
    with open_store(world.url) as store:
        return store.get_workflow(id)


def _is(name: str, state: str) -> Act:
    """Afterwards the workflow is in this state."""

    def act(world: World) -> None:
        assert _seen(world, getattr(world, name)).state == state

    return act


def _says(name: str, state: str) -> Look:
    """The answer says so, and the database, too."""

    def look(lines: list[Any], world: World) -> None:
        [line] = lines
        assert (line["id"], line["state"], line["changed"]) == (getattr(world, name), state, True)
        _is(name, state)(world)

    return look


def _listed(lines: list[Any], world: World) -> None:
    assert [line["id"] for line in lines] == [world.flow, world.ended_flow]
    assert [line["state"] for line in lines] == ["running", "failed"]
    assert lines[1]["key"] == "doc-7"


def _shown(lines: list[Any], world: World) -> None:
    [line] = lines
    assert (line["id"], line["finished"], line["total"]) == (world.ended_flow, 3, 3)
    assert [(node["name"], node["state"]) for node in line["nodes"]] == [
        ("fetch", "failed"), ("parse", "skipped"), ("store", "skipped"),
    ]  # fmt: skip
    assert line["nodes"][1]["after"] == [line["nodes"][0]["id"]]


def _replayed(lines: list[Any], world: World) -> None:
    _says("ended_flow", "running")(lines, world)
    counts = _seen(world, world.ended_flow).counts
    assert counts == {State.QUEUED: 1, State.WAITING: 2}


WORKFLOW_CASES = {
    "workflow list": Case(
        shows("workflow", "list", before=_flow,
              texts=["ingest", "doc-7", "failed", "fan", "running", "%flow"]),
        tells("workflow", "list", before=_flow, look=_listed),
    ),
    "workflow show": Case(
        shows("workflow", "show", "%flow", before=_flow,
              texts=["0 of 6 finished", "one: queued", "n-0 ... n-4 (5): 5 waiting  <- one"]),
        tells("workflow", "show", "%ended_flow", before=_flow, look=_shown),
    ),
    "workflow cancel": Case(
        shows("workflow", "cancel", "%flow", before=_flow, answer="y\n",
              texts=["of fan, 6 nodes?", "is cancelled"], after=_is("flow", "cancelled")),
        tells("workflow", "cancel", "%flow", "--yes", before=_flow,
              look=_says("flow", "cancelled")),
    ),
    "workflow pause": Case(
        shows("workflow", "pause", "%flow", "--reason", "wait", before=_flow,
              texts=["is paused"], after=_is("flow", "paused")),
        tells("workflow", "pause", "%flow", before=_flow, look=_says("flow", "paused")),
    ),
    "workflow resume": Case(
        shows("workflow", "resume", "%flow", before=_paused, texts=["is resumed"],
              after=_is("flow", "running")),
        tells("workflow", "resume", "%flow", before=_paused, look=_says("flow", "running")),
    ),
    "workflow replay": Case(
        shows("workflow", "replay", "%ended_flow", "fetch", before=_flow,
              texts=["runs fetch again"], after=_is("ended_flow", "running")),
        tells("workflow", "replay", "%ended_flow", "fetch", before=_flow, look=_replayed),
    ),
}  # fmt: skip
