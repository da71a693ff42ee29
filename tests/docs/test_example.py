"""`make demo` does what it says, and cleans up after itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from examples.demo import audit, enqueue
from examples.shop import app
from tenure import Handle, State, Worker
from tests.docs.pages import ROOT

DEADLINE_SECONDS = 60.0


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "examples.demo"],
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
    assert "which runs the report" in shown
    assert "every job is accounted for" in shown
    assert "\r" not in shown  # no progress where nobody looks at it
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_example_with_130_and_leaves_nothing_running(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        boss = psutil.Process(process.pid)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(workers := boss.children(recursive=True)) < 3:  # a supervisor and two workers
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130, shown
    assert not any(worker.is_running() for worker in workers)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Handle[object]]]:
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{tmp_path / 'jobs.db'}")
    with app:
        yield enqueue(1)


def test_the_audit_of_the_example_finds_a_job_that_is_not_done(
    handles: list[Handle[object]], capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        async with Worker(app):  # serves no reports
            for handle in handles[1:-1]:
                await handle.wait_async(timeout_seconds=DEADLINE_SECONDS)
            label = await app.wait_async(handles[-1].id, timeout_seconds=DEADLINE_SECONDS)
            assert label.state is State.FAILED

    asyncio.run(work())
    assert audit(handles) == 1
    assert "NOT every job" in capsys.readouterr().out


def test_the_audit_of_the_example_finds_a_job_that_is_missing_or_has_another_result(
    handles: list[Handle[object]],
) -> None:
    async def work() -> None:
        async with Worker(app, {"default": 0, "reports": 1}):
            for handle in handles:
                await app.wait_async(handle.id, timeout_seconds=DEADLINE_SECONDS)

    asyncio.run(work())
    assert audit(handles) == 0
    assert audit(handles[:1] + handles[2:]) == 1
    app.replay(handles[1].id)  # it is not done any more
    assert audit(handles) == 1
