"""`make demo` does what it says, and cleans up after itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from examples.drain import audit, squared
from tenure.codec import encode
from tenure.job import NewJob
from tenure.lifecycle import fail, succeed
from tenure.store import open_store
from tests.docs.pages import ROOT

DEADLINE_SECONDS = 60.0


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "examples.drain"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_the_example_accounts_for_every_job_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        shown, _ = process.communicate(timeout=240)
    assert process.returncode == 0, shown
    assert "killing worker" in shown
    assert "every job is accounted for" in shown
    assert "\r" not in shown  # no progress where nobody looks at it
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_example_with_130_and_leaves_nothing_running(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        boss = psutil.Process(process.pid)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(workers := boss.children()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130, shown
    assert not any(worker.is_running() for worker in workers)
    assert list(tmp_path.iterdir()) == []


def test_the_audit_of_the_example_finds_a_job_that_is_not_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        args = encode({"number": 7})
        jobs = [NewJob(task="poison", args=args), NewJob(task="square", args=args)]
        ids = [added.id for added in store.enqueue(jobs)]
        [lease] = store.claim("w", {"default": 2})
        poison, square = lease.jobs
        store.settle("w", [fail(poison, encode("dead"))])
        assert audit(store, ids) == 1
        store.settle("w", [succeed(square, encode(squared(square)))])
        assert audit(store, ids) == 0
        assert audit(store, [*ids, 3]) == 1
    assert "NOT every job" in capsys.readouterr().out
