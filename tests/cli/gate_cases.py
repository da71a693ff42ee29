"""The commands about gates, in a terminal and as --json."""

from __future__ import annotations

from typing import Any

from tenure.rules.gates import GateSeen, Limits
from tenure.rules.job import NewJob
from tenure.store import open_store
from tests.cli.cases import Act, Case, Look, shows, tells
from tests.cli.world import World


def _gates(world: World) -> None:
    """Two gates; at one of them jobs wait, one runs, and a limit was set by hand."""
    with open_store(world.url) as store:
        store.declare_gates({"doc": Limits(max_running=1, keyed=True), "api": Limits(rate=10)})
        store.enqueue([NewJob(task="shop.greet", queue="docs", gate="doc", gate_key="7")] * 3)
        store.claim("w-1", {"docs": 1})
        store.set_gate("api", rate=5.0, burst=20)


def _stored(world: World, name: str) -> GateSeen:
    with open_store(world.url) as store:
        [seen] = store.gates(name=name)
        return seen


def _allows(name: str, limits: Limits) -> Act:
    """Afterwards the gate allows this."""

    def act(world: World) -> None:
        assert _stored(world, name).limits == limits

    return act


def _says(name: str, limits: Limits) -> Look:
    """The answer says so, and the database, too."""

    def look(lines: list[Any], world: World) -> None:
        [line] = lines
        assert (line["name"], line["limits"]["max_running"]) == (name, limits.max_running)
        assert _stored(world, name).limits == limits

    return look


def _listed(lines: list[Any], world: World) -> None:  # noqa: ARG001
    assert [line["name"] for line in lines] == ["api", "doc"]
    api, doc = lines
    assert (api["by_hand"], api["limits"]["rate"], api["declared"]["rate"]) == (True, 5.0, 10)
    assert (doc["running"], doc["waiting"], doc["lines"]) == (1, 2, 1)


def _shown(lines: list[Any], world: World) -> None:  # noqa: ARG001
    [line] = lines
    assert line["longest"] == [{"queue": "docs", "key": "\x1f7", "waiting": 2, "running": 1}]


GATE_CASES = {
    "gate list": Case(
        shows("gate", "list", before=_gates,
              texts=["api", "5 per 1 s (burst 20)", "doc", "1 at once for each key",
                     "by hand", "by code"]),
        tells("gate", "list", before=_gates, look=_listed),
    ),
    "gate show": Case(
        shows("gate", "show", "doc", before=_gates,
              texts=["allows 1 at once for each key", "1 running, 2 waiting", "docs"]),
        tells("gate", "show", "doc", before=_gates, look=_shown),
    ),
    "gate set": Case(
        shows("gate", "set", "doc", "--max-running", "3", before=_gates,
              texts=["gate doc allows 3 at once for each key"],
              after=_allows("doc", Limits(max_running=3, keyed=True))),
        tells("gate", "set", "api", "--rate", "0", "--max-running", "4", before=_gates,
              look=_says("api", Limits(max_running=4))),
    ),
    "gate reset": Case(
        shows("gate", "reset", "api", before=_gates, texts=["gate api allows 10 per 1 s"],
              after=_allows("api", Limits(rate=10.0))),
        tells("gate", "reset", "doc", before=_gates,
              look=_says("doc", Limits(max_running=1, keyed=True))),
    ),
}  # fmt: skip
