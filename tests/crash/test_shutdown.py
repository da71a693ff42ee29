"""Workers that are told to end: in good order, in a hurry, or at once; nothing is lost or stuck."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from tenure.rules.job import State
from tenure.tasks import Task
from tests.crash.cast import Stage, gone
from tests.crash.handlers import hold, hold_async, hold_in_child, quick, quick_async, wait_deaf
from tests.processes.crew import Member
from tests.support.patience import until

pytestmark = pytest.mark.slow

HOLDERS = [hold, hold_async, hold_in_child]
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def has_gone_after(worker: Member, number: signal.Signals) -> bool:
    """A second signal counts when the first one was a moment ago: until then it is sent again."""
    with suppress(ProcessLookupError):
        worker.signal(number)
    return worker.process.exitcode is not None


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_lets_running_jobs_finish_and_takes_no_new_ones(
    stage: Stage, number: signal.Signals
) -> None:
    [running] = stage.add(hold.call("end"))
    worker = stage.worker()
    stage.heard("ran", running)
    worker.signal(number)
    until(lambda: "is draining" in stage.log_of(worker), "the worker drains")
    [late] = stage.add(quick.call())
    stage.open("end")
    assert gone(worker) == 0

    job = stage.store.get(running)
    assert (job.state, job.token, job.attempts) == (State.SUCCEEDED, 1, 1)
    assert stage.store.get(late).state is State.QUEUED
    # It does not wait long for that.
    assert len(stage.store.workers()) == stage.log_of(worker).count("could not sign off")
    stage.check(disturbed=set(), drained=False)


@pytest.mark.parametrize(
    "task", [*HOLDERS, wait_deaf], ids=lambda task: task.name.rpartition(".")[2]
)
def test_a_job_that_outlives_the_grace_is_given_back_uncharged(
    stage: Stage, task: Task[[str], str]
) -> None:
    [id] = stage.add(task.call("never"))
    worker = stage.worker(drain_seconds=0.2, kill_seconds=0.2)
    stage.heard("ran", id)
    worker.signal(signal.SIGTERM)
    assert gone(worker) == 0

    job = stage.store.get(id)
    assert (job.state, job.attempts, job.crashes, job.reason) == (State.QUEUED, 0, 0, "shutdown")
    assert stage.story(id)[-1] == ("released", 1)
    stage.worker()
    assert (stage.finished(id).attempts, stage.store.get(id).token) == (1, 2)
    stage.check(disturbed=set())


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGTERM, signal.SIGTERM, 143),
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGINT, 130),
    ],
)
def test_a_second_signal_ends_at_once_and_the_lease_brings_the_job_back(
    stage: Stage, first: signal.Signals, second: signal.Signals, code: int
) -> None:
    [id] = stage.add(wait_deaf.call("never"))
    worker = stage.victim(drain_seconds=600.0)
    stage.heard("ran", id)
    worker.signal(first)
    until(lambda: "is draining" in stage.log_of(worker), "the worker drains")
    until(lambda: has_gone_after(worker, second), "the second signal ends it")
    assert gone(worker) == code
    assert stage.store.get(id).state is State.RUNNING
    stage.worker()
    job = stage.finished(id)

    assert (job.state, job.token, job.crashes) == (State.SUCCEEDED, 2, 1)
    stage.check(disturbed={worker.pid})


def test_what_is_finished_is_written_before_the_end(stage: Stage) -> None:
    ids = stage.add(*[quick_async.call() for _ in range(50)])
    worker = stage.worker(moment="before settle", signal=signal.SIGTERM)
    assert gone(worker) == 0

    ran = {word.job for word in stage.said("ran")}
    assert len(ran) > 1
    done = {id for id in ids if stage.store.get(id).state is State.SUCCEEDED}
    assert done == ran
    left = set(ids) - done
    assert {(stage.store.get(id).state, stage.store.get(id).attempts) for id in left} <= {
        (State.QUEUED, 0)
    }
    stage.check(disturbed=set(), drained=False)


def test_jobs_claimed_ahead_go_back_uncharged_at_the_end(stage: Stage) -> None:
    stage.add(*[quick.call() for _ in range(40)])  # short ones: the worker learns to claim ahead
    worker = stage.worker(thread_slots=1, process_slots=100)
    stage.drained()
    [long, *others] = stage.add(hold.call("end"), *[quick.call() for _ in range(30)])
    stage.heard("ran", long)
    ahead = [id for id in others if stage.store.get(id).state is State.RUNNING]
    assert ahead
    worker.signal(signal.SIGTERM)
    until(lambda: "is draining" in stage.log_of(worker), "the worker drains")
    until(lambda: all(stage.store.get(id).state is State.QUEUED for id in ahead), "given back")
    stage.open("end")
    assert gone(worker) == 0

    for id in ahead:
        job = stage.store.get(id)
        assert (job.attempts, job.crashes, job.reason) == (0, 0, "shutdown")
    assert stage.store.get(long).state is State.SUCCEEDED
    stage.check(disturbed=set(), drained=False)
