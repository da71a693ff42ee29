"""The seeded bugs are what they say: each patch fits, each test exists, each is in the table.

Whether they are found takes `make bugs`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.bugs import BUGS, table
from scripts.bugs.bug import Bug
from scripts.bugs.rules import RULES
from tests.support.rules import functions

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.title)
def test_a_patch_fits_the_code_as_it_is(bug: Bug, tmp_path: Path) -> None:
    """Code that moved needs its patch written anew; `make bugs` would say so much later."""
    for path in {edit.path for edit in bug.edits}:
        copy = tmp_path / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / path).read_bytes())
    bug.apply(tmp_path)


def test_each_bug_names_a_test_that_exists() -> None:
    for bug in BUGS:
        file, function = re.sub(r"\[.*\]", "", bug.test).split("::")
        assert function in functions(ROOT / file), bug.title


def test_no_two_bugs_are_one() -> None:
    titles = [bug.title for bug in BUGS]
    assert len(set(titles)) == len(titles) >= 100


def test_the_page_has_every_bug_and_each_was_found() -> None:
    rows = table.rows()
    assert list(rows) == [bug.title for bug in BUGS], "make bugs ARGS=--write"
    for bug in BUGS:
        simulated, tested = rows[bug.title]
        assert tested or (table.was_seen(simulated) and bug not in RULES), bug.title
