"""Workflows that the producers enqueue: small graphs with every rule, some of which grow."""

from __future__ import annotations

from random import Random
from typing import Any

from tenure.client import Client
from tenure.rules.job import When
from tenure.tasks import Call
from tenure.workflow import Node, Workflow
from tests.simulation import handlers

KEYS = 4
JOIN = "join"


def build(app: Client, random: Random) -> Workflow:
    """A graph of two to seven nodes; the last one waits for all that can be waited for."""
    draw = random.random
    flow = app.workflow(
        "flow",
        key=f"key {int(KEYS * draw())}" if draw() < 0.3 else None,
        on_failure=random.choice(("finish", "stop")),
        finaliser=handlers.quick.call() if draw() < 0.4 else None,
        tenant=f"tenant {int(2 * draw())}" if draw() < 0.1 else None,
    )
    nodes: list[Node[Any]] = []
    for _ in range(1 + int(6 * draw())):
        after = random.sample(nodes, min(len(nodes), int(3 * draw())))
        nodes.append(flow.add(_call(random), after=after, when=_rule(random, after)))
    flow.add(handlers.quick.call(), after=nodes, when=_rule(random, nodes), name=JOIN)
    return flow


def _call(random: Random) -> Call[Any]:
    draw = random.random
    choices: list[tuple[Call[Any], int]] = [
        (handlers.quick.call(), 4),
        (handlers.stepping.call(1 + int(3 * draw())), 1),
        (handlers.in_thread.call(0.2 * draw()), 1),
        (handlers.growing.call(1 + int(3 * draw()), JOIN if draw() < 0.5 else None), 2),
        (handlers.quick.options(delay_seconds=0.5 * draw()).call(), 1),
        (handlers.one_of_few.call(0.1 * draw()), 1),
        (handlers.quick.options(max_attempts=1).call(), 4),
    ]
    [(call, _)] = random.choices(choices, [weight for _, weight in choices])
    return call


def _rule(random: Random, after: list[Node[Any]]) -> When:
    if not after or random.random() < 0.5:
        return When.ALL_SUCCEEDED
    rule: When = random.choice([*When])
    return rule
