"""The file that a probe looks at: its time moves while claims make progress, and can start jobs."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tenure import Tenure
from tenure.worker.claiming import claimer
from tests.worker.support import Lines, ended, eventually, process_of, working


def test_the_file_is_touched_again_and_again(app: Tenure, tmp_path: Path) -> None:
    file = tmp_path / "alive"
    with working(app, health_file=file):
        eventually(file.exists)
        for _ in range(2):
            os.utime(file, (0, 0))
            eventually(lambda: file.stat().st_mtime > 0)


@pytest.mark.parametrize("slots", [{"thread_slots": 2}, {"queues": {"slow": 2}}])
def test_a_worker_whose_slots_are_all_stuck_is_not_well(
    app: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: dict[str, Any]
) -> None:
    """Its handlers were given up and do not end: nothing of theirs can start here any more."""
    monkeypatch.setattr(claimer, "TOUCH_SECONDS", 0.01)
    go_on = threading.Event()

    @app.task(timeout_seconds=0.05, max_attempts=1, queue="slow")
    def hangs() -> None:
        go_on.wait(60)

    file = tmp_path / "alive"
    with working(app, **({"queues": {"slow": 0}} | slots), health_file=file) as worker:
        ended(app, hangs.enqueue().id)
        os.utime(file, (0, 0))
        eventually(lambda: file.stat().st_mtime > 0)  # there is a slot left
        ended(app, hangs.enqueue().id)
        eventually(process_of(worker).intake.is_stuck)
        os.utime(file, (0, 0))
        looks = process_of(worker).claimer._polling.looked_at
        eventually(lambda: process_of(worker).claimer._polling.looked_at > looks + 0.1)
        assert file.stat().st_mtime == 0
        go_on.set()
        eventually(lambda: file.stat().st_mtime > 0)


def test_a_file_that_cannot_be_touched_is_reported_and_jobs_run_all_the_same(
    app: Tenure, tmp_path: Path, lines: Lines
) -> None:
    @app.task()
    async def works() -> int:
        return 1

    with working(app, health_file=tmp_path / "missing" / "alive"):
        assert works.enqueue().wait(timeout_seconds=30) == 1
        eventually(lambda: any("cannot be touched" in r.getMessage() for r in list(lines.records)))
