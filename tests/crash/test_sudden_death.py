"""Workers that die without a word: their jobs run again, soon, fenced, and justly charged.

The moment of death is exact: the process kills itself at a named point of the worker's own code, or
inside the handler.
"""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tenure.rules.job import State, Unique, Until
from tests.crash import ledger
from tests.crash.cast import LEASE_SECONDS, MID_SWEEP, STALL, Stage, gone
from tests.crash.handlers import book_and_meet_a_signal, quick, quick_async, wait_deaf
from tests.support.patience import until
from tests.support.plain import Plain

pytestmark = pytest.mark.slow

RECOVERY_SECONDS = 60.0
"""Huge: `make trust ARGS=chaos` measures how long it takes."""


def assert_recovery(stage: Stage, id: int, lease_end: float) -> None:
    """The second claim came after the lease's end, by the database's own clock."""
    late = stage.at(id, "claimed", 2) - lease_end
    assert -0.02 <= late <= RECOVERY_SECONDS


def lease_end(stage: Stage, id: int) -> float:
    """When the lease of a running job ends, as the database has it."""
    ends = stage.store.get(id).expires_at
    assert ends is not None
    return ends.timestamp()


def test_killed_between_the_handlers_return_and_the_settlement(stage: Stage) -> None:
    [id] = stage.add(quick.call())
    victim = stage.victim(moment="before settle")
    assert gone(victim) == -signal.SIGKILL
    end = lease_end(stage, id)
    stage.worker()
    job = stage.finished(id)

    assert job.state is State.SUCCEEDED
    assert [word.token for word in stage.said("ran", id)] == [1, 2]
    assert stage.story(id) == [
        ("enqueued", 1), ("claimed", 1), ("crashed", 1), ("claimed", 2), ("succeeded", 2),
    ]  # fmt: skip
    assert (job.attempts, job.crashes, job.result_json) == (2, 1, "2")
    assert_recovery(stage, id, end)
    stage.check(disturbed={victim.pid}, recovery_seconds=RECOVERY_SECONDS)


@pytest.mark.parametrize("moment", ["before complete", "before commit", "after commit"])
def test_killed_around_a_completion_in_the_handlers_own_transaction(
    shared_stage: Stage, moment: str
) -> None:
    stage = shared_stage
    [id] = stage.add(book_and_meet_a_signal.call(moment, signal.SIGKILL))
    victim = stage.victim()
    assert gone(victim) == -signal.SIGKILL
    stage.worker()
    stage.drained()

    attempts = 1 if moment == "after commit" else 2
    job = stage.store.get(id)
    assert (job.state, job.token, job.attempts) == (State.SUCCEEDED, attempts, attempts)
    assert len(stage.said("ran", id)) == attempts
    assert ledger.entries(stage.url) == {id: 1}
    [child] = [j for j in stage.store.list_jobs().jobs if j.id != id]
    assert child.result_json == str(attempts)
    stage.check(disturbed={victim.pid}, effects={id: 1, child.id: 1})


def test_killed_right_after_the_claim_before_any_heartbeat(stage: Stage) -> None:
    [id] = stage.add(quick.call())
    victim = stage.victim(moment="after claim")
    assert gone(victim) == -signal.SIGKILL
    end = lease_end(stage, id)
    stage.worker()
    job = stage.finished(id)

    assert [word.token for word in stage.said("ran", id)] == [2]
    assert (job.state, job.attempts, job.crashes) == (State.SUCCEEDED, 2, 1)
    assert_recovery(stage, id, end)
    stage.check(disturbed={victim.pid}, recovery_seconds=RECOVERY_SECONDS)


def test_killed_while_a_handler_runs_that_was_renewed_for_long(stage: Stage) -> None:
    [id] = stage.add(wait_deaf.call("never"))
    victim = stage.victim()
    stage.heard("ran", id)
    first_end = lease_end(stage, id)
    until(lambda: lease_end(stage, id) > first_end + LEASE_SECONDS, "more than one renewal")
    victim.kill()
    end = lease_end(stage, id)
    stage.worker()
    stage.finished(id)

    assert [word.token for word in stage.said("ran", id)] == [1, 2]
    assert_recovery(stage, id, end)
    stage.check(disturbed={victim.pid}, recovery_seconds=RECOVERY_SECONDS)


def test_the_dead_workers_row_is_gone_before_its_job_is_rescued(stage: Stage) -> None:
    [id] = stage.add(wait_deaf.call("never"))
    victim = stage.victim()
    stage.heard("ran", id)
    until(stage.store.workers, "an announcement")
    victim.kill()
    end = lease_end(stage, id)
    [dead] = stage.store.workers()
    assert dead.pid == victim.pid
    stage.store.retire(dead.name)
    assert stage.store.workers() == []
    stage.worker()
    job = stage.finished(id)

    assert (job.state, job.crashes) == (State.SUCCEEDED, 1)
    assert_recovery(stage, id, end)
    stage.check(disturbed={victim.pid}, recovery_seconds=RECOVERY_SECONDS)


def test_killed_while_completions_are_buffered(stage: Stage) -> None:
    ids = stage.add(*[quick_async.call() for _ in range(30)])
    victim = stage.victim(moment="before settle")
    assert gone(victim) == -signal.SIGKILL
    buffered = {word.job for word in stage.said("ran")}
    assert len(buffered) > 1
    assert not any(stage.store.get(id).state.final for id in ids)
    stage.worker()
    stage.drained()

    runs = Counter(word.job for word in stage.said("ran"))
    assert {id for id, count in runs.items() if count == 2} == buffered
    assert all(stage.store.get(id).state is State.SUCCEEDED for id in ids)
    stage.check(disturbed={victim.pid})


def test_killed_after_the_settlements_landed_before_the_worker_heard_of_it(stage: Stage) -> None:
    ids = stage.add(*[quick_async.call() for _ in range(30)])
    victim = stage.victim(moment="after settle")
    assert gone(victim) == -signal.SIGKILL
    landed = {id for id in ids if stage.store.get(id).state is State.SUCCEEDED}
    assert landed
    stage.worker()
    stage.drained()

    runs = Counter(word.job for word in stage.said("ran"))
    assert all(runs[id] == 1 for id in landed)
    assert {stage.store.get(id).token for id in landed} == {1}
    stage.check(disturbed={victim.pid})


def test_jobs_that_were_claimed_ahead_come_back_uncharged(stage: Stage) -> None:
    stage.add(*[quick.call() for _ in range(40)])  # short ones: the worker learns to claim ahead
    victim = stage.victim(thread_slots=1, process_slots=100)  # one block for all that is ahead
    stage.drained()
    [long, *others] = stage.add(wait_deaf.call("never"), *[quick.call() for _ in range(30)])
    stage.heard("ran", long)
    with Plain(stage.url) as plain:
        started = "select count(*) from tenure.lease where started is not null"
        until(lambda: plain.one(started) == 1, "a heartbeat that says who has started")
    ahead = [id for id in others if stage.store.get(id).state is State.RUNNING]
    victim.kill()
    assert ahead
    assert [word for id in others for word in stage.said("ran", id)] == []
    stage.worker()
    stage.drained()

    assert stage.store.get(long).attempts == 2
    for id in others:
        job, lost = stage.store.get(id), int(id in ahead)
        assert (job.state, job.attempts, job.crashes) == (State.SUCCEEDED, 1, lost)
        assert [word.token for word in stage.said("ran", id)] == [1 + lost]
    stage.check(disturbed={victim.pid})


@pytest.mark.parametrize(
    ("moment", "number"),
    [("before sweep", signal.SIGKILL), (MID_SWEEP, signal.SIGKILL), ("before sweep", STALL)],
)
def test_a_rescuer_that_dies_or_stalls_is_replaced_by_any_other(
    stage: Stage, number: int, moment: str
) -> None:
    [id] = stage.add(wait_deaf.call("never"))
    victim = stage.victim()
    stage.heard("ran", id)
    victim.kill()
    rescuer = stage.victim(moment=moment, signal=number)
    stage.heard("moment")
    if number == signal.SIGKILL:
        assert gone(rescuer) == -signal.SIGKILL
    end = lease_end(stage, id)
    stage.worker()
    job = stage.finished(id)

    assert (job.state, job.token, job.crashes) == (State.SUCCEEDED, 2, 1)
    assert stage.story(id).count(("crashed", 1)) == 1
    if moment == "before sweep":
        assert_recovery(stage, id, end)
    stage.check(disturbed={victim.pid})


def test_a_rescuer_that_stops_with_its_locks_held_holds_up_the_leases_of_one_transaction_only(
    postgres_stage: Stage,
) -> None:
    """Another worker sweeps past the locked leases, to one that has expired since."""
    stage = postgres_stage
    ids = stage.add(*[wait_deaf.call("never") for _ in range(2)])
    victims = [stage.victim({"default": 1}) for _ in ids]  # a lease for each job
    stage.heard("ran", times=2)
    for victim in victims:
        victim.kill()
    rescuer = stage.victim(moment=MID_SWEEP, signal=signal.SIGSTOP)
    stage.heard("moment")
    [later] = stage.add(wait_deaf.call("never"))
    ids.append(later)
    victims.append(stage.victim({"default": 1}))
    stage.heard("ran", later)
    victims[-1].kill()
    stage.worker()
    until(lambda: stage.store.get(later).state.final, "the job of the later lease")
    rescuer.kill()
    stage.drained()

    assert [stage.store.get(id).token for id in ids] == [2, 2, 2]
    stage.check(disturbed={victim.pid for victim in victims})


def test_a_rescue_beside_a_new_holder_of_the_same_key(stage: Stage) -> None:
    keyed = wait_deaf.options(unique=Unique(key="once", until=Until.STARTED))
    first, other = stage.add(keyed.call("never"), wait_deaf.call("never"))
    victim = stage.victim()
    stage.heard("ran", times=2)
    [second] = stage.store.enqueue([keyed.call("open").job])
    assert second.created
    stage.open("open")
    victim.kill()
    stage.worker()
    stage.drained()

    assert {stage.store.get(id).state for id in (first, other, second.id)} == {State.SUCCEEDED}
    assert [stage.store.get(id).crashes for id in (first, other)] == [1, 1]
    stage.check(disturbed={victim.pid})


def test_a_rescued_job_keeps_its_key_until_it_is_finished(stage: Stage) -> None:
    keyed = wait_deaf.options(key="once")
    [id] = stage.add(keyed.call("never"))
    victim = stage.victim()
    stage.heard("ran", id)
    victim.kill()
    [again] = stage.store.enqueue([keyed.call("never").job])
    assert (again.id, again.created) == (id, False)
    stage.worker()
    stage.finished(id)
    [new] = stage.store.enqueue([keyed.call("open").job])
    stage.open("open")
    assert new.created
    stage.drained()
    stage.check(disturbed={victim.pid})
