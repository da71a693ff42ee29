"""The docstring of each package lists its modules and its packages, one line each, and no others.

module.py    what it is
package/     what it is
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import tenure

ROOT = Path(tenure.__file__).parent
PACKAGES = sorted(path.parent for path in ROOT.rglob("__init__.py"))
ENTRY = re.compile(r"^(\w+(?:\.py|/)) {2,}\S", re.MULTILINE)


def members(package: Path) -> set[str]:
    """What the folder holds."""
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    return modules | {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_docstring_of_a_package_lists_its_modules(package: Path) -> None:
    tree = ast.parse((package / "__init__.py").read_text("utf-8"))
    listed = Counter(ENTRY.findall(ast.get_docstring(tree) or ""))
    assert listed == Counter(members(package))
