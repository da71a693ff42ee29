"""Nothing that is promised is without a test, and the tables are true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scripts.bugs.rules import RULES as PATCHED
from tests.statements.coverage import (
    DEFECTS,
    DEFECTS_ELSEWHERE,
    FAILURES,
    NOT_BUILT,
    STATEMENTS,
    functions,
    ties,
)
from tests.statements.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
PROPERTIES = ROOT / "docs" / "explanation" / "properties.md"


def test_each_statement_is_tested_or_waits_for_a_part_that_is_not_built() -> None:
    tested = {number for number, _ in ties("statement")}
    assert tested | set(NOT_BUILT) == set(STATEMENTS)
    assert not tested & set(NOT_BUILT)


def test_each_defect_has_the_test_that_would_show_it_or_waits_for_its_part() -> None:
    tested = {name for name, _ in ties("defect")}
    assert tested | set(DEFECTS_ELSEWHERE) == set(DEFECTS)
    assert not tested & set(DEFECTS_ELSEWHERE)


def test_each_rule_has_a_test_and_a_patch_that_takes_it_out() -> None:
    assert {name for name, _ in ties("rule")} == set(RULES)
    assert {bug.name for bug in PATCHED} == set(RULES)


def test_each_patch_is_for_a_test_that_is_tied_to_its_rule() -> None:
    tied = set(ties("rule"))
    for bug in PATCHED:
        assert (bug.name, re.sub(r"\[.*\]", "", bug.test)) in tied


def test_each_rule_says_how_its_test_was_seen_failing() -> None:
    for name, test in ties("rule"):
        file, function = test.split("::")
        told = ast.get_docstring(functions(ROOT / file)[function]) or ""
        assert "Seen failing" in told, (name, test)


def named_in_the_docs() -> set[str]:
    return set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", PROPERTIES.read_text("utf-8")))


def test_every_test_that_the_docs_name_exists() -> None:
    named = named_in_the_docs()
    assert named
    for test in sorted(named):
        file, function = test.split("::")
        assert function in functions(ROOT / file), test


@pytest.mark.parametrize("kind", ["statement", "rule", "defect"])
def test_the_docs_name_every_tied_test_in_the_row_of_its_property(kind: str) -> None:
    rows = {
        cells[1].strip().strip("*`"): line
        for line in PROPERTIES.read_text("utf-8").splitlines()
        if line.startswith("|")
        for cells in [line.split("|")]
    }
    for name, test in ties(kind):
        assert f"`{test}`" in rows[str(name)], (name, test)


@pytest.mark.parametrize("failure", FAILURES)
def test_each_failure_of_others_has_its_test(failure: str) -> None:
    row = re.search(rf"^\| {failure} \|.*$", PROPERTIES.read_text("utf-8"), re.MULTILINE)
    assert row is not None
    assert "`tests/" in row[0]


def test_the_docs_have_a_row_for_everything_promised() -> None:
    text = PROPERTIES.read_text("utf-8")
    for name in [*STATEMENTS, *RULES, *DEFECTS, *FAILURES]:
        assert re.search(rf"^\| `?{re.escape(str(name))}`? \|", text, re.MULTILINE), name
