"""No-op jobs through one worker process on SQLite, against the engine's claim and settle loop.

Targets: at least 0.3 of the engine's rate with `async def` handlers, 0.2 with `def` handlers.
Tasks of other kinds that have no jobs cost at most 3 %, also if jobs are enqueued by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

from bench.engine import bare_sqlite
from bench.harness import Result
from bench.lab import Lab
from bench.worker import throughput
from bench.worker.process import WorkerProcess
from tenure.store import Store, open_store

NAMES = (
    "worker.sqlite.async",
    "worker.sqlite.thread",
    "worker.sqlite.unused_kinds",
    "worker.sqlite.by_name_unused_kinds",
)


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    with ExitStack() as stack:

        def database() -> tuple[str, Store, bare_sqlite.Count]:
            path = lab.file("jobs.db")
            url = f"sqlite:///{path}"
            store = stack.enter_context(open_store(url))
            auditor = stack.enter_context(closing(bare_sqlite.connect(path)))
            return url, store, bare_sqlite.Count(auditor)

        def working(side: str) -> throughput.Working:
            url, store, count = database()
            tasks = throughput.SIDES[side].tasks
            worker = stack.enter_context(WorkerProcess(url, tasks))
            return throughput.Working(store, count, worker, side)

        _, store, count = database()
        rounds = throughput.measure(
            throughput.Engine(store, count),
            {side: working(side) for side in throughput.SIDES},
            jobs=lab.size(30_000, 10_000),
        )
    yield from throughput.results("sqlite", rounds)
