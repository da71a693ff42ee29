"""What help costs: it must not load what only commands need. Counted, not timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import environment

HEAVY = {"apsw", "asyncio", "msgspec", "psycopg", "rich", "sqlite3", "tenure.client",
         "tenure.store", "tenure.worker", "tenure.app", "tenure.job"}  # fmt: skip
LESS_HEAVY = HEAVY - {"msgspec", "tenure.job"}


def loaded(*words: str, folder: Path) -> set[str]:
    """The modules that a command has loaded when it ends."""
    code = (
        "import atexit, sys; from tenure.cli.main import main\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=folder,
        env=environment("sqlite:///nowhere.db"), timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return set(done.stderr.split())


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_loads_little(word: str, tmp_path: Path) -> None:
    modules = loaded(word, folder=tmp_path)
    assert "click" in modules
    assert not HEAVY & modules
    assert {name for name in modules if name.startswith("tenure")} == {
        "tenure", "tenure.cli", "tenure.cli.main", "tenure.cli.config", "tenure.cli.exit",
        "tenure.cli.output", "tenure.cli.words", "tenure.errors", "tenure.passwords",
    }  # fmt: skip


@pytest.mark.parametrize("command", ["ls", "rm", "stats", "top", "db", "doctor", "bench"])
def test_help_of_a_command_loads_no_database(command: str, tmp_path: Path) -> None:
    assert not LESS_HEAVY & loaded(command, "--help", folder=tmp_path)
