"""`tenure copy`, as people call it."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tenure.store import open_store
from tenure.store.copy import run as transfer
from tests.support.postgres import Server
from tests.support.stores import Clock
from tests.support.work import add, add_many, take
from tests.transfer import worlds
from tests.transfer.conftest import NewUrl
from tests.transfer.looks import told


def tenure(*words: str) -> subprocess.CompletedProcess[str]:
    """Call a command."""
    call = "from tenure.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", call, *words], capture_output=True, text=True,
        timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.slow
def test_a_file_moves_into_a_database_without_a_schema(
    new_url: NewUrl, pg_server: Server, clock: Clock
) -> None:
    file, database = new_url("sqlite"), pg_server.create_database()
    with open_store(file) as source:
        worlds.everything(source, clock)
        total = transfer.count(source)
        done = tenure("copy", "--from", file, "--to", database, "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("copied ")
        with open_store(database) as target:
            assert told(source, clock.now) == told(target, clock.now)
    again = tenure("copy", "--from", file, "--to", database, "--yes", "--json")
    assert again.returncode == 0, again.stderr
    copied = json.loads(again.stdout)
    assert copied["live"] + copied["finished"] == total
    pg_server.drop_database(database)


@pytest.mark.slow
def test_without_a_yes_nothing_is_copied(new_url: NewUrl, clock: Clock) -> None:
    one, two = new_url("sqlite"), new_url("sqlite")
    with open_store(one) as source, open_store(two) as target:
        add_many(source, clock.now, 3)
        asked = tenure("copy", "--from", one, "--to", two)
        assert asked.returncode == 2
        assert asked.stderr == "tenure: copy 3 jobs? Use --yes to confirm without a terminal\n"
        assert transfer.count(target) == 0


@pytest.mark.slow
def test_each_refusal_is_one_line_with_its_code(new_url: NewUrl, tmp_path: Path) -> None:
    one, two = new_url("sqlite"), new_url("sqlite")
    missing = tmp_path / "misspelt.db"
    now = datetime.now(UTC)
    with open_store(one) as source, open_store(two) as target:
        add(source, now)
        for words, code, line in (
            ((f"sqlite:///{missing}", two), 4, "there is no file"),
            ((one, one), 2, "are the same database"),
        ):
            _refuses(words, code, line)
        take(source, now, lease_seconds=3600)
        _refuses((one, two), 1, "1 jobs of the source are running; job 1 is on worker w1")
        add(target, now)
        _refuses((two, one), 1, "1 jobs of the target are running")
    assert not missing.exists()


def _refuses(words: tuple[str, str], code: int, line: str) -> None:
    refused = tenure("copy", "--from", words[0], "--to", words[1], "--yes")
    assert (refused.returncode, refused.stdout) == (code, "")
    assert refused.stderr.startswith("tenure: ")
    assert refused.stderr.count("\n") == 1
    assert line in refused.stderr
