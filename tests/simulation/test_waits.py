"""A thread that waits while the database is away waits in the time of the simulation."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.simulation import handlers
from tests.simulation.faults import CALM, Fate, Faults
from tests.simulation.hub import Fiber
from tests.simulation.judge import judge
from tests.simulation.stage import Stage
from tests.simulation.test_blocked_loop import QUIET


class NoSteps(Faults):
    """The first requests to record a step fail."""

    failing = 3

    def draw(self, sender: Fiber, now: float, *, op: str, reads: bool) -> Fate:
        fate = super().draw(sender, now, op=op, reads=reads)
        if op != "record_step" or not self.failing:
            return fate
        self.failing -= 1
        return replace(fate, arrives=False)


def test_a_thread_waits_for_the_database_in_simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    real_waits: list[object] = []
    monkeypatch.setattr(threading.Event, "wait", lambda _, timeout=None: real_waits.append(timeout))
    stage = Stage(replace(QUIET, lease_seconds=30.0))
    stage.faults = stage.session.faults = faults = NoSteps(stage.random, CALM)
    try:
        stage.play(first=[handlers.stepping_thread.options(max_attempts=1).call(1)])
        assert judge(stage) == ""
        assert faults.failing == 0
        assert real_waits == []
    finally:
        stage.close()
