"""SIGKILL before each statement of each operation, while it is under way, and before the answer."""

from __future__ import annotations

import pytest

from tenure.testing.recorder import OPS
from tests.points.conftest import Ask
from tests.points.play import DEEDS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("operation", DEEDS)
def test_all_is_well_wherever_it_dies(ask: Ask, operation: str) -> None:
    report = ask(operation)
    names = [statement.name for statement in report.statements]
    about = DEEDS[operation].about
    assert any(name.startswith(about) for name in names), f"no {about} among {names}"
    assert any(statement.commits for statement in report.statements)
    assert report.points > len(names)
    assert report.kills > 0
    assert report.violations == []


SETTINGS = {
    "declare_gates", "set_gate", "reset_gate",
    "declare_schedules", "add_schedule", "edit_schedule", "remove_schedule",
    "pause_schedule", "resume_schedule", "trigger_schedule", "declare_hooks", "remove_hook",
}  # fmt: skip
"""What is allowed, and when: these touch no job that is there."""


def test_every_operation_that_is_recorded_has_points() -> None:
    recorded = {op.name for op in OPS.values()}
    assert {deed.call for deed in DEEDS.values()} == recorded - SETTINGS
    assert recorded >= SETTINGS


BROKEN = [
    ("enqueue with unique keys", ["insert_job", "insert_jobs"], "is held by job"),
    ("workflow release of children", ["freed_children", "free_nodes"], "wait for nobody"),
    ("schedule fire", ["insert_job", "insert_jobs"], "jobs ended as"),
    ("settle in the caller's transaction", ["lease_of_worker", "succeed"], "effect twice"),
]


@pytest.mark.parametrize(("operation", "splits", "word"), BROKEN)
def test_a_commit_too_many_is_noticed(
    ask: Ask, operation: str, splits: list[str], word: str
) -> None:
    """The victim commits before a statement at which it must not."""
    violations = ask(operation, splits=splits, every=2).violations
    assert any("half done" in violation for violation in violations)
    assert any(word in violation for violation in violations), violations
