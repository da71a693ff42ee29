"""Stores and model tell the same stories: every answer, and at the end every row.

A step is one operation on one store whose answer is compared. A failure prints the seed of its
story and the shortest story found; `python -m tests.model.explore --seed N` tells it again.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.model.machine import run
from tests.model.sides import Side, open_sides


class Plan(NamedTuple):
    """Stores that are told the same stories, from which seed on, and for how many steps."""

    styles: tuple[str, ...]
    first_seed: int
    steps: int


MAIN = ("sqlite-apsw", "postgres-sync")
OTHERS = ("sqlite-sqlite3", "postgres-async")
PLANS = (
    *(Plan(MAIN, 1000 * part, 1500) for part in range(6)),
    *(Plan(OTHERS, 20_000 + 1000 * part, 1000) for part in range(2)),
    *(Plan(("sqlite-apsw",), 30_000 + 1000 * part, 5000) for part in range(2)),
    Plan(("sqlite-async",), 40_000, 1000),
)
SHARE = 4
"""In `make test`: one of so many steps."""


def tell(sides: list[Side], plan: Plan) -> int:
    """Tell stories until there were enough steps."""
    done, seed = 0, plan.first_seed
    while done < plan.steps:
        done += run(seed, sides)
        seed += 1
    return done


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{'+'.join(plan.styles)}-{plan[1]}")
def test_stores_answer_and_store_what_the_model_does(
    plan: Plan, request: pytest.FixtureRequest, whole: bool
) -> None:
    needs_server = any(style.startswith("postgres") for style in plan.styles)
    server = request.getfixturevalue("pg_server") if needs_server else None
    if not whole:
        plan = plan._replace(steps=plan.steps // SHARE)
    with open_sides(plan.styles, server) as sides:
        assert tell(sides, plan) >= plan.steps


def test_at_least_five_thousand_steps_are_planned() -> None:
    assert sum(plan.steps for plan in PLANS) >= 5_000 * SHARE


@pytest.mark.slow
def test_a_short_walk_on_sqlite() -> None:
    with open_sides(("sqlite-apsw",), None) as sides:
        assert tell(sides, Plan(("sqlite-apsw",), 50_000, 500)) >= 500
