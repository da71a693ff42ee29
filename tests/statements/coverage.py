"""What is promised, in short, and what of it concerns parts that are not built yet.

`ties` reads from the tests of this folder which statement, rule or defect each of them is tied to.
docs/explanation/properties.md shows the same to people.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

FILES = "files written by attempts are not built yet"

STATEMENTS = range(1, 72)

NOT_BUILT = {
    53: f"{FILES}: each attempt has a place of its own",
    54: f"{FILES}: the manifest comes last",
}

DEFECTS = (
    *(f"J-{n}" for n in range(1, 12)),
    *(f"F-{n}" for n in range(1, 17)),
    *(f"B-{n}" for n in range(1, 11)),
    *(f"C-{n}" for n in range(1, 19)),
)

FAILURES = (
    *(f"F{n}" for n in (1, 2, 3, 4, 5, 6, 10, 11, 12, 13)),
    *(f"G{n}" for n in (1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 14, 15)),
    *(f"H{n}" for n in (1, 2, 3, 4, 6, 7, 8, 9, 11, 12)),
)
"""What has happened to other queues with time, with keys and limits, and with workflows."""

DEFECTS_ELSEWHERE: dict[str, str] = {}


def ties(kind: str) -> Iterator[tuple[str | int, str]]:
    """Each (name, test) that is tied by `@kind(name)`, in the order of the files."""
    for file in sorted(FOLDER.glob("test_*.py")):
        for test in functions(file).values():
            for name in _names(test, kind):
                yield name, f"tests/statements/{file.name}::{test.name}"


@cache
def functions(file: Path) -> dict[str, ast.FunctionDef]:
    """The functions of a file, by name."""
    tree = ast.parse(file.read_text("utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _names(test: ast.FunctionDef, kind: str) -> Iterator[str | int]:
    for decorator in test.decorator_list:
        if (
            isinstance(decorator, ast.Call)
            and isinstance(decorator.func, ast.Name)
            and decorator.func.id == kind
        ):
            for argument in decorator.args:
                assert isinstance(argument, ast.Constant)
                assert isinstance(argument.value, str | int)
                yield argument.value
