"""Steps of jobs whose workers die or stop: what is recorded is not run again, nor by the late."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest

from tenure.rules.codec import decode
from tenure.rules.job import State
from tenure.tasks import Task
from tests.crash.cast import QUIET, Stage, gone
from tests.crash.handlers import step_late, steps, steps_async, steps_in_child
from tests.support.patience import until

pytestmark = pytest.mark.slow

DEATHS = ["after record 0", "before effect 1", "before record 1", "after record 1"]
"""Of the first attempts, in turn."""


def run_to_the_end(stage: Stage, task: Task[[list[str]], Any]) -> int:
    """Workers, one after the other, until the job is finished. Answers its id."""
    [id] = stage.add(task.call(DEATHS))
    victims = []
    if task is not steps_in_child:
        for _ in DEATHS:
            victims.append(stage.victim())
            assert gone(victims[-1]) == -signal.SIGKILL
    stage.worker()
    assert stage.finished(id).state is State.SUCCEEDED
    stage.check(disturbed={victim.pid for victim in victims})
    return id


@pytest.mark.parametrize(
    "task", [steps, steps_async, steps_in_child], ids=["thread", "async", "process"]
)
def test_a_step_runs_once_unless_it_is_killed_between_effect_and_record(
    stage: Stage, task: Task[[list[str]], Any]
) -> None:
    """Attempt 3 dies in between, so step 1 has its effect twice; all others have it once."""
    id = run_to_the_end(stage, task)

    assert Counter(word.what for word in stage.said("effect", id)) == {0: 1, 1: 2, 2: 1}
    assert [word.token for word in stage.said("ran", id)] == [1, 2, 3, 4, 5]
    result = decode(stage.store.get(id).result_json or "", list[list[int]])
    assert result == [[0, 1], [1, 4], [2, 5]], "what was recorded is what counts"
    recorded = [(step.name, step.token) for step in stage.store.steps(id)]
    assert recorded == [("step 0", 1), ("step 1", 4), ("step 2", 5)]


def test_a_worker_that_stops_for_longer_than_its_lease_records_nothing(stage: Stage) -> None:
    """It stops in the middle of a step. When it goes on, the job is another's, and over."""
    [id] = stage.add(step_late.call("late"))
    late = stage.victim(**QUIET)
    stage.heard("effect", id)
    stage.stop(late)
    stage.worker()
    job = stage.finished(id)
    before = stage.store.steps(id)
    stage.open("late")
    late.signal(signal.SIGCONT)
    [refused] = stage.heard("refused", id)

    assert refused.token == 1
    assert decode(job.result_json or "") == ["token 1", "token 2"]
    assert stage.store.steps(id) == before
    assert [(step.name, step.token) for step in before] == [("early", 1), ("late", 2)]
    assert [word.token for word in stage.said("effect", id)] == [1, 2]
    until(lambda: "lease was lost; not recorded" in stage.log_of(late), "the handler's end")
    stage.check(disturbed={late.pid})
