"""The docstring of a package names its modules: all of them, and none that does not exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PACKAGES = sorted(path.parent for path in (ROOT / "src/tenure").rglob("__init__.py"))
ENTRY = re.compile(r"^((?:[a-z_0-9]+(?:\.py|/)? ?)+?)(?: {2,}|$)", re.MULTILINE)
"""The names at the start of a line, before its explanation: `a.py b.py    what they do`."""


@pytest.mark.parametrize(
    "package", PACKAGES, ids=lambda path: path.relative_to(ROOT / "src").as_posix()
)
def test_the_docstring_of_a_package_lists_its_rooms(package: Path) -> None:
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
    words = {word.removesuffix(".py").removesuffix("/") for word in re.findall(r"[\w./]+", text)}
    assert not (modules | folders) - words, "not listed"
    entries = {
        name.removesuffix(".py").removesuffix("/")
        for names in ENTRY.findall(text)
        for name in names.split()
    }
    assert not entries - modules - folders - {"__main__"}, "do not exist"
