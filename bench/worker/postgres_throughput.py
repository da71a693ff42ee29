"""No-op jobs through one worker process on PostgreSQL, against the engine's claim and settle loop.

Targets: at least 0.7 of the engine's rate with `async def` handlers, 0.4 with `def` handlers.
Tasks of other kinds that have no jobs cost at most 3 %, also if jobs are enqueued by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg

from bench.engine import bare_postgres
from bench.harness import Result
from bench.lab import Lab
from bench.worker import throughput
from bench.worker.process import WorkerProcess
from tenure.store import Store

NAMES = (
    "worker.postgres.async",
    "worker.postgres.thread",
    "worker.postgres.unused_kinds",
    "worker.postgres.by_name_unused_kinds",
)


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    with ExitStack() as stack:

        def database() -> tuple[str, Store, bare_postgres.Count]:
            url = stack.enter_context(lab.database())
            store = stack.enter_context(lab.postgres_store(url))
            auditor = stack.enter_context(psycopg.connect(url, autocommit=True))
            return url, store, bare_postgres.Count(auditor)

        def working(side: str) -> throughput.Working:
            url, store, count = database()
            tasks = throughput.SIDES[side].tasks
            worker = stack.enter_context(WorkerProcess(url, tasks))
            return throughput.Working(store, count, worker, side)

        _, store, count = database()
        rounds = throughput.measure(
            throughput.Engine(store, count),
            {side: working(side) for side in throughput.SIDES},
            jobs=lab.size(20_000, 8_000),
        )
    yield from throughput.results("postgres", rounds)
