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
    assert "every job is accounted for" in shown
    assert "\r" not in shown  # no progress where nobody looks at it
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_example_with_130_and_leaves_nothing_running(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        boss = psutil.Process(process.pid)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(workers := boss.children(recursive=True)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130, shown
    assert not any(worker.is_running() for worker in workers)
    assert list(tmp_path.iterdir()) == []
