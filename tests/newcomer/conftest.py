"""Runs of the demo, small and kept."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES, OTHERS = 400, 9
RUN_SECONDS = 280.0
MOST_KILLS = 4


@dataclass(frozen=True)
class Kept:
    """A demo that has ended: what it has printed, what it has left, whom the test has killed."""

    folder: Path
    printed: str
    status: int
    killed_by_us: frozenset[int]


def command(*options: str | Path) -> list[str | Path]:
    """The demo, at a size for tests."""
    return [sys.executable, "-m", "examples.demo", "--pages", str(PAGES), *options]


def environment(folder: Path) -> dict[str, str]:
    """Ours, with another place for temporary files."""
    folder.mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(folder), "TENURE_URL": ""}


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A demo whose workers are killed at random moments, besides the one that it kills itself."""
    home = tmp_path_factory.mktemp("kept")
    chance, killed = random.Random(), set[int]()
    with subprocess.Popen(
        command("--keep", home / "kept"), cwd=ROOT, env=environment(home / "tmp"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        printed = ""
        try:
            while process.poll() is None and len(killed) < MOST_KILLS:
                try:
                    process.wait(chance.uniform(0.2, 2.5))
                except subprocess.TimeoutExpired:
                    killed |= kill_one(psutil.Process(process.pid), chance)
            printed, _ = process.communicate(timeout=RUN_SECONDS)
        finally:
            process.kill()
    return Kept(home / "kept", printed, process.returncode, frozenset(killed))


def kill_one(demo: psutil.Process, chance: random.Random) -> set[int]:
    """Kill a worker, whatever it does at the moment. Answers whom."""
    try:
        workers = [each for each in demo.children() if each.status() != psutil.STATUS_ZOMBIE]
        if not workers:
            return set()
        victim = chance.choice(workers)
        # It cannot end by itself between the two: it is stopped. So it is we who end it.
        victim.send_signal(signal.SIGSTOP)
        victim.kill()
    except psutil.NoSuchProcess:
        return set()
    return {victim.pid}


def figures(printed: str, line: str) -> list[int]:
    """The figures in this line of the summary."""
    [found] = re.findall(rf"^  {line}  .*$", printed, re.MULTILINE)
    return [int(each.replace(",", "")) for each in re.findall(r"\d[\d,]*(?!\w)", found)]
