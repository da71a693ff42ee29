"""No violation in many steps; and the simulation itself can be trusted.

`make trust ARGS=simulation` for millions of steps.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bugs import BUGS
from scripts.bugs.finding import find
from tests.simulation.run import run_seed
from tests.simulation.stage import Stage

ROOT = Path(__file__).resolve().parents[2]
STEPS = {"share": 40_000, "whole": 200_000}
FIRST_SEEDS = (1, 100_001)
"""Half of the steps from each, in processes of their own: there are two processors."""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own, in which the order of sets is fixed."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_no_seed_breaks_an_invariant(first: int, whole: bool) -> None:
    steps = STEPS["whole" if whole else "share"] // len(FIRST_SEEDS)
    done = python(
        "-m", "tests.simulation", "--seed", str(first), "--steps", str(steps), "--jobs", "1"
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    counted = re.search(r"([\d,]+) steps, ", done.stdout.splitlines()[-2])
    assert counted is not None
    assert int(counted[1].replace(",", "")) >= steps
    assert re.search(r"^recovery: \d+ jobs ran again", done.stdout, re.MULTILINE)
    for what in ("kill", "pause", "cut", "jump", "stop", "crash point", "failed", "undone", "lost",
                 "busy", "delayed"):  # fmt: skip
        assert re.search(rf"[\d,]+ {what}", done.stdout), f"no {what} in all the runs"


@pytest.mark.slow
def test_a_seed_gives_the_same_run_again_whatever_ran_before() -> None:
    first = python("-m", "tests.simulation", "--seed", "7", "--trace")
    assert first.returncode == 0, first.stdout + first.stderr
    assert len(first.stdout.splitlines()) > 100
    second = python("-c", (
        "from tests.simulation.run import run_seed\n"
        "run_seed(10)\n"
        "result = run_seed(7, trace=True)\n"
        "print(result.told(), *result.trace, sep='\\n', end='')"
    ))  # fmt: skip
    assert second.stdout == first.stdout, second.stderr


@pytest.mark.slow
def test_a_run_leaves_nothing_behind() -> None:
    """Thousands of runs in one process must not fill its memory."""
    run_seed(1)
    assert not [found for found in gc.get_objects() if isinstance(found, Stage)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_interrupted_tells_what_was_done(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.simulation", "--minutes", "60", "--jobs", "1"],
        cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"}, stdout=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        running.stdout.readline()
        running.send_signal(number)
        *_, totals, violations = running.stdout.read().splitlines()
    assert running.returncode == 0
    assert re.match(r"seeds 1 to \d+: [\d,]+ steps, \d+ runs, .* faults \(", totals)
    assert violations == "0 violations"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["settle-by-id", "sweep-by-id"])
def test_a_bug_is_found(name: str) -> None:
    [bug] = [bug for bug in BUGS if bug.name == name]
    [layer] = find(bug, 20_000).layers
    assert layer.name == "simulation"
    assert layer.found, layer.said
