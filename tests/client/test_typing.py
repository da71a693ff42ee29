"""mypy and pyright, both strict, accept what is right and refuse what is wrong, line by line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD = Path("tests/client/typing_good.py")
BAD = Path("tests/client/typing_bad.py")

Complaints = dict[tuple[str, int], list[str]]


def run(*command: str) -> str:
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return ran.stdout


def mypy(_folder: Path) -> Complaints:
    """With the settings of the project, which are strict."""
    found: Complaints = {}
    shown = run(sys.executable, "-m", "mypy", "--no-pretty", str(GOOD), str(BAD))
    for name, line, message in re.findall(r"^(\S+?):(\d+): error: (.*)$", shown, re.MULTILINE):
        found.setdefault((Path(name).name, int(line)), []).append(message)
    return found


def pyright(folder: Path) -> Complaints:
    """As pyright's own `strict` mode."""
    settings = {
        "include": [str(ROOT / GOOD), str(ROOT / BAD)],
        "extraPaths": [str(ROOT / "src"), str(ROOT)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
    }
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    shown = run(
        sys.executable, "-m", "basedpyright",
        "--pythonpath", sys.executable, "--project", str(config), "--outputjson",
    )  # fmt: skip
    found: Complaints = {}
    for each in json.loads(shown)["generalDiagnostics"]:
        if each["severity"] == "error":
            place = (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
            found.setdefault(place, []).append(each["message"])
    return found


def marked() -> set[int]:
    lines = (ROOT / BAD).read_text("utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# E")}


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checkers_accept_what_is_right_and_refuse_what_is_wrong(
    checker: Callable[[Path], Complaints], tmp_path: Path
) -> None:
    complaints = checker(tmp_path)
    expected = {(BAD.name, line) for line in marked()}
    unexpected = {place: told for place, told in complaints.items() if place not in expected}
    assert unexpected == {}
    assert expected - complaints.keys() == set()
    assert len(expected) > 40
