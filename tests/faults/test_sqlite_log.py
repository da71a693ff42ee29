"""A reader that keeps an old snapshot lets SQLite's write-ahead log grow. It is found and named."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tenure.rules.codec import encode
from tenure.store import AsyncStore, Store, open_store
from tenure.store.sqlite import wal
from tenure.store.sqlite.driver import LARGE_WAL_BYTES
from tenure.worker.environment import Environment
from tenure.worker.settings import WorkerSettings
from tenure.worker.upkeep.upkeep import Upkeep
from tests.support.patience import until
from tests.support.work import job

TENURE = str(Path(sys.executable).with_name("tenure"))
BIG = [job(args=encode("x" * 500_000))] * 20
READER = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("begin")
list(connection.execute("select count(*) from tenure_job"))
print("reads", flush=True)
sys.stdin.read()
"""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux names the process")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store on a file."""
    with open_store(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=NORMAL") as opened:
        opened.enqueue([job()])
        yield opened


@contextmanager
def reader(folder: Path) -> Iterator[int]:
    """Another process that keeps its snapshot; its id."""
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(folder / "jobs.db")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "reads\n"
        yield process.pid


def grow(store: Store, folder: Path) -> None:
    """Write until the log is too large."""
    for _ in range(50):
        if (folder / "jobs.db-wal").stat().st_size > LARGE_WAL_BYTES:
            return
        store.enqueue(BIG)
    pytest.fail("the log does not grow")


@on_linux
def test_the_process_that_keeps_the_log_is_named(store: Store, tmp_path: Path) -> None:
    with reader(tmp_path) as pid:
        assert store.storage_trouble() is None  # the log is small
        grow(store, tmp_path)
        trouble = store.storage_trouble()
        assert trouble is not None
        assert f"process {pid} ({sys.executable} -c" in trouble
        for command in ("health", "doctor"):
            done = subprocess.run(
                [TENURE, "--url", f"sqlite:///{tmp_path / 'jobs.db'}", command, "--json"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 1
            said = [json.loads(line) for line in done.stdout.splitlines()]
            assert f"process {pid} " in json.dumps(said)

    # It is gone: nothing keeps the log any more, and the next writes cut it.
    assert store.storage_trouble() is None
    log = tmp_path / "jobs.db-wal"
    until(lambda: store.enqueue(BIG) and log.stat().st_size <= LARGE_WAL_BYTES)


def test_a_reader_that_this_machine_does_not_show_is_noticed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel hides the locks of another container, and not all file systems tell their number.

    Seen failing with the locks alone: nothing was said."""
    (tmp_path / "locks").touch()
    monkeypatch.setattr(wal, "_LOCKS", tmp_path / "locks")
    with reader(tmp_path):
        grow(store, tmp_path)
        trouble = store.storage_trouble()
        assert trouble is not None
        assert "cannot be emptied: a process reads an old snapshot" in trouble
    assert store.storage_trouble() is None


def test_a_large_transaction_is_no_trouble(store: Store, tmp_path: Path) -> None:
    store.enqueue([job(args=encode("x" * 500_000))] * 200)
    assert (tmp_path / "jobs.db-wal").stat().st_size > LARGE_WAL_BYTES
    assert store.storage_trouble() is None


def test_a_worker_logs_it_once_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    class Said:
        trouble: str | None = None

        async def storage_trouble(self) -> str | None:
            return self.trouble

    said = Said()
    upkeep = Upkeep(
        cast(AsyncStore, said), cast(WorkerSettings, None), Environment(), cast(Any, None)
    )
    with caplog.at_level(logging.WARNING, "tenure.worker"):
        for said.trouble in (None, "first", "first", None, "second"):
            asyncio.run(upkeep._look_at_storage())
    assert [record.getMessage() for record in caplog.records] == [
        f"a problem of storage: {text}" for text in ("first", "second")
    ]
