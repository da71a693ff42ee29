"""A handler blocks the event loop: the thread of heartbeats and the loop both want to end it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.simulation import handlers, plan
from tests.simulation.faults import CALM, Fate, Faults
from tests.simulation.hub import Fiber
from tests.simulation.judge import judge, records_of
from tests.simulation.stage import Stage

QUIET = replace(
    plan.draw(1), weather=CALM, workers=1, producers=0, operators=0, lease_seconds=2.0, slots=4,
    crash_share=0.0, strikes={"pause": 1.0}, strike_seconds=1000.0, schedules={}, repeats=False,
    threads=True, least_seconds=5.0,
)  # fmt: skip


class SlowAnswers(Faults):
    """What is settled while the event loop is blocked is answered late, or fails at first."""

    fails = False

    def draw(self, sender: Fiber, now: float, *, op: str, reads: bool) -> Fate:
        fate = super().draw(sender, now, op=op, reads=reads)
        if not sender.process.was_stalled(now, now) or op != "settle":
            return fate
        if self.fails:
            self.fails = False
            return replace(fate, arrives=False)
        return replace(fate, back_seconds=1.0)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage(QUIET)
    stage.faults = stage.session.faults = SlowAnswers(stage.random, CALM)
    yield stage
    stage.close()


@pytest.mark.parametrize("fails", [False, True])
def test_an_attempt_that_timed_out_in_a_blocked_loop_is_settled_once(
    stage: Stage, fails: bool
) -> None:
    assert isinstance(stage.faults, SlowAnswers)
    stage.faults.fails = fails
    call = handlers.blocking.options(timeout_seconds=0.3, max_attempts=1).call(1.6)
    stage.play(first=[call])
    assert judge(stage) == ""
    [(id, *job)] = stage.session.memory.execute(
        "select id, state, reason, attempts from tenure_history where task = ?",
        (handlers.blocking.name,),
    )
    assert job == ["failed", "timeout", 1]
    settlements = records_of(stage).of("settle")
    settled = [call.answers for call in settlements if (id, 1) in call.sent.jobs]
    assert settled == ([["refused"], ["landed"]] if fails else [["landed"]])
