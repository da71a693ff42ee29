"""The page of properties names tests that exist, and each rule with its tests."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.rules import RULES, functions, ties

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "properties.md").read_text("utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_that_the_page_names_exists() -> None:
    named = set(TEST.findall(PAGE))
    assert len(named) > 100
    for file, function in sorted(named):
        assert function in functions(ROOT / file), f"{file}::{function}"


def test_every_row_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    heads = [row for row in rows if row.endswith("| shown by |")]
    assert [row for row in rows if row not in heads and not TEST.search(row)] == []


def test_the_page_has_every_rule_with_its_tests() -> None:
    rows = {
        found[1]: line
        for line in PAGE.splitlines()
        if (found := re.match(r"\| `([\w-]+)` \|", line)) is not None
    }
    assert rows.keys() == RULES.keys()
    for name, says in RULES.items():
        assert f"| {says} |" in rows[name]
    for name, test in ties():
        assert f"`{test}`" in rows[name], (name, test)
