"""A worker process as in `app`, without statistics: it counts nothing and writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest.mock import patch

from tenure.worker.counting import EndCounter
from tenure.worker.leases import LeasedJob
from tenure.worker.upkeep.upkeep import Upkeep


def _count_nothing(
    _: EndCounter, attempts: Sequence[tuple[LeasedJob, float | None]], kind: str
) -> None:
    """In place of what counts each attempt."""


async def _write_nothing(_: Upkeep) -> None:
    await asyncio.Event().wait()


patch.object(EndCounter, "_count", _count_nothing).start()
patch.object(Upkeep, "statistics", _write_nothing).start()

if __name__ == "__main__":
    from bench.workloads.app import app, queues

    app.run_worker(dict.fromkeys(queues.split(","), 0))
