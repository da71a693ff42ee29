"""CPU time of a worker process that has nothing to do, in percent of one core.

The value is that of the hungrier store. Limit: 3 %; the ratio is against the limit, so it should be
at most 1.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.cpu import cpu_seconds
from bench.harness import Result
from bench.lab import Lab
from bench.worker.app import LAST
from bench.worker.process import WorkerProcess
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.store import Store, open_store

NAMES = ("worker.idle_cpu",)
LIMIT_PERCENT = 3.0
SETTLE_DOWN_SECONDS = 2.0


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    seconds = lab.size(10, 5)
    with lab.database() as url, lab.postgres_store(url) as store:
        used = {"PostgreSQL": _idle_percent(url, store, seconds)}
    url = f"sqlite:///{lab.file('jobs.db')}"
    with open_store(url) as store:
        used["SQLite"] = _idle_percent(url, store, seconds)
    ratios = [percent / LIMIT_PERCENT for percent in used.values()]
    each = ", ".join(f"{store} {percent:.2f}" for store, percent in used.items())
    yield Result(
        name=NAMES[0],
        value=round(max(used.values()), 2),
        unit="% of a core",
        ratio=round(max(ratios), 3),
        against=f"limit: {LIMIT_PERCENT:g} % ({each})",
        spread=(round(min(ratios), 3), round(max(ratios), 3)),
    )


def _idle_percent(url: str, store: Store, seconds: float) -> float:
    with WorkerProcess(url, "async") as worker:
        store.enqueue([NewJob(task=LAST, args=encode({}))])
        worker.hear()  # it has started, and run a job
        time.sleep(SETTLE_DOWN_SECONDS)
        start, before = time.perf_counter(), cpu_seconds(worker.pid)
        time.sleep(seconds)
        used = cpu_seconds(worker.pid) - before
        return 100 * used / (time.perf_counter() - start)
