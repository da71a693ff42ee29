"""The file that a probe looks at: its time moves while claims make progress, and can start jobs."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tenure import Tenure, Worker
from tenure.errors import ConfigError
from tenure.worker.claiming import claimer
from tenure.worker.settings import check_health_file
from tests.worker.support import Lines, ended, eventually, process_of, working


@pytest.mark.slow
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


def test_a_file_that_cannot_be_touched_is_reported_once_per_outage(
    app: Tenure, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer, "TOUCH_SECONDS", 0.01)
    folder = tmp_path / "run"
    folder.mkdir()

    @app.task()
    async def works() -> int:
        return 1

    def reports() -> int:
        return sum("cannot be touched" in record.getMessage() for record in list(lines.records))

    with working(app, health_file=folder / "alive") as worker:
        for outage in (1, 2):
            eventually((folder / "alive").exists)
            shutil.rmtree(folder)
            eventually(lambda n=outage: reports() >= n)  # type: ignore[misc]
            looked = process_of(worker).claimer._polling.looked_at
            eventually(
                lambda t=looked: process_of(worker).claimer._polling.looked_at > t + 0.3  # type: ignore[misc]
            )
            assert reports() == outage
            assert works.enqueue().wait(timeout_seconds=30) == 1
            folder.mkdir()


def test_a_file_that_the_worker_can_never_touch_is_refused_at_start(
    app: Tenure, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    for file, text in (
        (tmp_path / "missing" / "alive", f"there is no folder {tmp_path}/missing; create it first"),
        (tmp_path / "folder", "is a folder; name a file in it"),
        (Path("/proc/alive"), "/proc/alive cannot be written"),
    ):
        worker = Worker(app, health_file=file)
        with pytest.raises(ConfigError, match=text):
            worker.run()
        with pytest.raises(ConfigError, match=text):
            asyncio.run(worker.serve())


def test_the_check_leaves_no_file_and_no_time(tmp_path: Path) -> None:
    check_health_file(tmp_path / "alive")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "alive").touch()
    os.utime(tmp_path / "alive", (7, 7))
    check_health_file(tmp_path / "alive")
    assert (tmp_path / "alive").stat().st_mtime == 7
