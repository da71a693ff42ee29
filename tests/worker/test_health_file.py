"""The file that a probe looks at: its time moves while claims make progress."""

from __future__ import annotations

import os
from pathlib import Path

from tenure import Tenure
from tests.worker.support import Lines, eventually, working


def test_the_file_is_touched_again_and_again(app: Tenure, tmp_path: Path) -> None:
    file = tmp_path / "alive"
    with working(app, health_file=file):
        eventually(file.exists)
        for _ in range(2):
            os.utime(file, (0, 0))
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
