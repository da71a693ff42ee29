"""The layers that look for a bug in a copy of the code, the cheapest first.

simulation   the real code on a virtual clock, with faults: seeds from 1 on
its test     the test that is named for the bug, on each database that the patch is for

A layer that finds it ends the search. A marked rule is the exception: its own test must notice,
whatever else does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.bugs.bug import POSTGRES, ROOT, SQLITE, Bug, DoesNotApply
from scripts.bugs.rules import RULES

TEST_SECONDS = 600
SEARCH_SECONDS = 1800
FOUND = re.compile(r"^(.+?) \(invariant (\d+)\)", re.MULTILINE)
COUNTED = re.compile(r"seeds .*?([\d,]+) steps")

# A patch that only breaks the code proves nothing: these are not how a missing rule looks.
BROKEN = re.compile(
    r"syntax error|SyntaxError|NameError|ImportError|no such column|UndefinedColumn"
)


@dataclass(frozen=True)
class Layer:
    """What one layer said of a bug."""

    name: str
    found: bool
    said: str


@dataclass(frozen=True)
class Finding:
    """What came of a bug."""

    bug: Bug
    layers: tuple[Layer, ...]

    @property
    def is_good(self) -> bool:
        """Was it found by who must find it?"""
        by_test = any(layer.found and layer.name != "simulation" for layer in self.layers)
        return by_test if self.bug in RULES else any(layer.found for layer in self.layers)


def find(bug: Bug, steps: int, *, ask_all: bool = False) -> Finding:
    """Put a bug into a copy of the code, and ask one layer after the other."""
    with tempfile.TemporaryDirectory(prefix="tenure-bugs-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        try:
            bug.apply(tree)
        except DoesNotApply as error:
            return Finding(bug, (Layer("patch", False, f"NO LONGER APPLIES: {error}"),))
        layers: list[Layer] = []
        try:
            if bug.is_simulated or ask_all:
                layers.append(_simulate(tree, max(steps, bug.least_steps)))
            if ask_all or bug in RULES or not any(layer.found for layer in layers):
                layers.append(_test(tree, bug))
        except subprocess.TimeoutExpired as error:
            layers.append(Layer("time", False, str(error)))
    return Finding(bug, tuple(layers))


def copy_tree(to: Path) -> None:
    """Copy what the layers need."""
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("src", "tests", "scripts", "examples"):
        shutil.copytree(ROOT / name, to / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", to)


def passes(tests: Sequence[str]) -> bool:
    """Do the tests pass on the code as it is?"""
    with tempfile.TemporaryDirectory(prefix="tenure-bugs-") as folder:
        copy_tree(Path(folder))
        status, output = _pytest(Path(folder), tests, limit_seconds=4 * TEST_SECONDS)
    if status != 0:
        print(output)
        print("Tests fail without any bug; nothing can be concluded.")
    return status == 0


def _simulate(tree: Path, steps: int) -> Layer:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--steps", str(steps), "--jobs", "1"],
        cwd=tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": f"{tree / 'src'}:{tree}", "PYTHONHASHSEED": "0"},
        text=True, timeout=SEARCH_SECONDS,
    )  # fmt: skip
    counted = COUNTED.search(done.stdout)
    after = f"{counted[1] if counted else '?'} steps"
    if BROKEN.search(done.stdout):
        return Layer("simulation", False, f"THE PATCH BREAKS THE CODE\n{done.stdout[-2000:]}")
    said = FOUND.search(done.stdout)
    if said:
        return Layer("simulation", True, f"{said[1].strip()} (invariant {said[2]}), {after}")
    if done.returncode == 0:
        return Layer("simulation", False, f"nothing in {after}")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    why = next((line for line in reversed(lines) if _tells(line)), lines[-1])
    return Layer("simulation", True, f"{_in_words(why)}, {after}")


def _tells(line: str) -> bool:
    return "Error" in line or line.startswith("the rows")


def _in_words(line: str) -> str:
    """The words of an assertion, without the numbers that say which job it was."""
    text = line.removeprefix("the rows do not add up: ").removeprefix("AssertionError: ")
    text = re.sub(r"\b(live )?jobs? \d+\b", r"a \1job", text)
    return re.sub(r"\{[\d, ]+\}", "some", text)[:100]


def _test(tree: Path, bug: Bug) -> Layer:
    folder = bug.test.split("/")[1]
    _, output = _pytest(tree, [bug.test])
    failed = list(_failures(output))
    missing = set(bug.noticed_on) - {database for database, _, _ in failed}
    if missing or not failed:
        where = ", ".join(sorted(missing))
        return Layer(folder, False, f"NOT NOTICED {where}\n{output[-2000:]}")
    if BROKEN.search(output):
        return Layer(folder, False, f"THE PATCH BREAKS THE CODE\n{output[-2000:]}")
    return Layer(folder, True, bug.test.rsplit("::", maxsplit=1)[-1])


def _pytest(
    tree: Path, tests: Sequence[str], *, limit_seconds: float = TEST_SECONDS
) -> tuple[int, str]:
    """Run tests of a copied tree against its own code."""
    variables = {"PYTHONPATH": str(tree / "src"), "COLUMNS": "400", "TENURE_PATIENCE": "30"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfE", "-n", "0", "-k", "not async",
         "-p", "no:cacheprovider", "--tb", "native", "--timeout", "60", *tests],
        cwd=tree, env=os.environ | variables,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=limit_seconds,
    )  # fmt: skip
    return done.returncode, done.stdout


def _failures(output: str) -> Iterator[tuple[str, str, str]]:
    """The failed tests in a closing summary: (database, test, message)."""
    for test, message in re.findall(r"^FAILED \S+::(\S+)(?: - (.*))?$", output, re.MULTILINE):
        names = re.findall(r"\[(.*)\]", test)
        is_sqlite = bool(names) and ("sqlite" in names[0] or "apsw" in names[0])
        yield SQLITE if is_sqlite else POSTGRES, test, message
