"""Each rule has a test that is tied to it, and a patch that takes it out of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from scripts.bugs.rules import RULES as PATCHED
from tests.support.rules import RULES, functions, ties

ROOT = Path(__file__).resolve().parents[2]


def test_each_rule_has_a_test_and_a_patch_that_takes_it_out() -> None:
    assert {name for name, _ in ties()} == set(RULES)
    assert {bug.name for bug in PATCHED} == set(RULES)


def test_each_patch_is_for_a_test_that_is_tied_to_its_rule() -> None:
    tied = set(ties())
    for bug in PATCHED:
        assert (bug.name, re.sub(r"\[.*\]", "", bug.test)) in tied


def test_each_rule_says_how_its_test_was_seen_failing() -> None:
    for name, test in ties():
        file, function = test.split("::")
        told = ast.get_docstring(functions(ROOT / file)[function]) or ""
        assert "Seen failing" in told, (name, test)
