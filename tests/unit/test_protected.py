"""The event loop and the tasks of a worker refuse to be ended by a handler."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.errors import LoopMisused
from tenure.running import reset_current, set_current
from tenure.worker import protected
from tenure.worker.protected import misused_since, protect

JOB: Any = SimpleNamespace(id=17, task="greedy", queue="default", attempt=1, worker="w1")


class LaterLoop(asyncio.SelectorEventLoop):
    """Its clock is ahead of the system's, as that of a simulation may be."""

    def time(self) -> float:
        return super().time() + 1e6


def test_an_attempt_to_end_the_loop_is_timed_by_the_clock_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attempts are timed by the same clock, so both can be compared."""
    monkeypatch.setattr(protected, "_last_misuse", None)  # and other tests must not see it
    loop = LaterLoop()
    protect(loop)
    before = set_current(JOB)
    started_at = loop.time()
    try:
        with pytest.raises(LoopMisused):
            loop.stop()
    finally:
        reset_current(before)
        loop.close()
    assert misused_since(started_at) == JOB.id
    assert misused_since(loop.time() + 1.0) is None
