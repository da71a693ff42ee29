"""What a worker does for all, also one that does not live for long."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tenure.errors import StoreBusy
from tenure.worker.environment import Environment
from tenure.worker.settings import WorkerSettings
from tenure.worker.upkeep import upkeep
from tenure.worker.upkeep.upkeep import Upkeep


def test_a_worker_asks_soon_whether_a_prune_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PRUNE_SOON_SECONDS", 0.01)

    async def main() -> int:
        pruned, times = asyncio.Event(), 0

        class Store:
            async def prune(self, *, every_seconds: float) -> None:
                nonlocal times
                assert every_seconds == 3600.0
                times += 1
                pruned.set()

        loops = Upkeep(cast(Any, Store()), WorkerSettings(), Environment(), lambda: None)
        pruning = asyncio.create_task(loops.prune())
        async with asyncio.timeout(10):
            await pruned.wait()
        pruning.cancel()
        return times

    assert asyncio.run(main()) == 1


def test_a_prune_that_fails_is_not_repeated_with_every_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def main() -> None:
        failed = asyncio.Event()

        class Store:
            async def prune(self, *, every_seconds: float) -> None:  # noqa: ARG002
                if len(pauses) > 3:
                    failed.set()
                raise StoreBusy("locked")

        loops = Upkeep(cast(Any, Store()), WorkerSettings(), Environment(), lambda: None)
        monkeypatch.setattr(asyncio, "sleep", pause)
        pruning = asyncio.create_task(loops.prune())
        async with asyncio.timeout(10):
            await failed.wait()
        pruning.cancel()

    asyncio.run(main())
    assert min(pauses) >= upkeep.PRUNE_SOON_SECONDS / 2
