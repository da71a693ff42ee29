"""A worker whose jobs fail with tracebacks of 100 kB stays small, and becomes small again."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from tenure import Tenure
from tests.support.patience import until
from tests.worker_flat.failing import tasks
from tests.worker_flat.test_flat import PATIENCE_SECONDS, ROOT

FAILURES = 3000
PEAK_MB, LEFT_MB = 200, 60
"""How much above its start. An unbounded backlog of errors took 350 MB for 10,000 failures."""


@pytest.mark.slow
@pytest.mark.parametrize("style", ["sqlite-apsw", "postgres-sync"], indirect=True)
@pytest.mark.parametrize("task", ["flat.fail", "flat.fail_in_thread"])
def test_failures_with_long_tracebacks_leave_no_memory_behind(store_url: str, task: str) -> None:
    app = Tenure(store_url)
    app.include(tasks)
    found = app.find(task)
    assert found is not None
    call = found.call
    command = [sys.executable, "-m", "tests.worker_flat.failing", store_url]
    with app, subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            worker = psutil.Process(process.pid)

            def rss_mb() -> float:
                memory = worker.memory_info()
                return (memory.rss - memory.shared) / 1e6  # SQLite maps its file into memory

            def live() -> int:
                return sum(count.jobs for count in app.count_live())

            app.enqueue_many([call() for _ in range(10)])
            until(lambda: not live())
            start = peak = rss_mb()
            app.enqueue_many([call() for _ in range(FAILURES)])
            while live():
                peak = max(peak, rss_mb())
            print(f"\n{start:.0f} MB at the start, {peak:.0f} MB at the peak")
            assert peak < start + PEAK_MB
            until(lambda: rss_mb() < start + LEFT_MB)
            print(f"{rss_mb():.0f} MB at the end")
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
