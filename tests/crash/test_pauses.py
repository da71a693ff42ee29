"""Workers that stop for longer than their lease and go on: refused, told, and free for new work.

A process is stopped by SIGSTOP, at a named point of its own code or from outside, until its lease
is over; SIGCONT wakes it.
"""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from tenure.rules.job import State
from tenure.tasks import Task
from tenure.testing.recorder import Answered
from tests.crash import ledger
from tests.crash.cast import QUIET, Stage, is_stopped
from tests.crash.handlers import (
    book_and_meet_a_signal,
    end_as,
    hold,
    hold_async,
    hold_in_child,
    hold_lonely,
    quick_async,
    write_late,
)
from tests.processes.crew import Member
from tests.support.history import Call, read_records
from tests.support.patience import until
from tests.support.plain import Plain

pytestmark = pytest.mark.slow

HOLDERS = [hold, hold_async, hold_in_child]


def stopped(stage: Stage, member: Member) -> None:
    """Wait until it has stopped itself at its moment."""
    stage.heard("moment")
    until(lambda: is_stopped(member.pid), "the process is stopped")


def rows(stage: Stage) -> dict[str, Any]:
    """Everything that the database knows about jobs, once nobody holds any.

    A worker whose handler completed its job in a transaction of its own gives the lease back later.
    """
    until(lambda: not leases(stage), "every lease is given back")
    with Plain(stage.url) as plain:
        return {
            name: plain.table(name) for name in ("job", "history", "event", "note", "step", "lease")
        }


def calls(stage: Stage, member: Member, op: str) -> list[Call]:
    """The answered operations of one kind of a process."""
    found = read_records(stage.folder).of(op)
    return [call for call in found if call.pid == member.pid and call.answer is not None]


def leases(stage: Stage) -> list[int]:
    """The leases that the database has."""
    with Plain(stage.url) as plain:
        return [row[0] for row in plain.rows("select id from tenure.lease")]


def lost_leases(stage: Stage, member: Member) -> list[int]:
    """Wait until a heartbeat of this process is refused; answers which leases it has lost."""

    def found() -> list[int]:
        answers = [call.answer for call in calls(stage, member, "extend")]
        return [id for answer in answers if isinstance(answer, Answered) for id in answer.lost]

    until(found, "the answer to the late heartbeat")
    return found()


@pytest.mark.parametrize("how", ["return", "raise", "snooze"])
def test_a_late_settlement_changes_nothing(stage: Stage, how: str) -> None:
    [id] = stage.add(end_as.options(max_attempts=2).call(how))
    late = stage.victim(moment="before settle", signal=signal.SIGSTOP, **QUIET)
    stopped(stage, late)
    stage.worker()
    stage.finished(id)
    before = rows(stage)
    late.signal(signal.SIGCONT)
    until(lambda: calls(stage, late, "settle"), "the late settlement")

    assert [call.answers for call in calls(stage, late, "settle")] == [["stale"]]
    assert rows(stage) == before
    until(lambda: "was refused" in stage.log_of(late), "a word about it")
    stage.check(disturbed={late.pid})


@pytest.mark.parametrize("task", HOLDERS, ids=lambda task: task.name.rpartition(".")[2])
def test_a_handler_is_told_that_its_job_has_moved_on(stage: Stage, task: Task[[str], str]) -> None:
    [id] = stage.add(task.call("never"))
    late = stage.victim(moment="before heartbeat", signal=signal.SIGSTOP, **QUIET)
    stage.heard("ran", id)
    stage.open("armed")
    stopped(stage, late)
    stage.worker()
    job = stage.finished(id)
    assert (job.state, job.result_json) == (State.SUCCEEDED, '"token 2"')
    before = rows(stage)
    late.signal(signal.SIGCONT)
    told = stage.heard("told", id)

    assert {word.token for word in told} == {1}
    assert lost_leases(stage, late)
    until(lambda: "lease was lost; not recorded" in stage.log_of(late), "the handler's end")
    # A worker that was stopped within a heartbeat cannot tell this from a server that is silent: it
    # may put the job back, which is refused.
    settlements = calls(stage, late, "settle")
    assert all(call.answers == ["stale"] for call in settlements), settlements
    assert rows(stage) == before
    stage.check(disturbed={late.pid})


def test_everything_that_a_late_handler_writes_is_refused(shared_stage: Stage) -> None:
    stage = shared_stage
    [id] = stage.add(write_late.call("late"))
    late = stage.victim(**QUIET)
    stage.heard("ran", id)
    stage.stop(late)
    stage.worker()
    stage.drained()
    before = rows(stage)
    stage.open("late")
    late.signal(signal.SIGCONT)
    stage.heard("refused", id, times=3)

    assert [word.what for word in stage.said("refused", id)] == ["save", "step", "complete"]
    assert {word.token for word in stage.said("landed", id)} == {2}
    until(lambda: "lease was lost; not recorded" in stage.log_of(late), "the handler's end")
    assert rows(stage) == before
    assert ledger.entries(stage.url) == {id: 1}
    stage.check(disturbed={late.pid})


def test_a_late_worker_enqueues_nothing_with_its_completion(shared_stage: Stage) -> None:
    stage = shared_stage
    [id] = stage.add(book_and_meet_a_signal.call("before the transaction", signal.SIGSTOP))
    late = stage.victim(**QUIET)
    stopped(stage, late)
    stage.worker()
    stage.drained()
    late.signal(signal.SIGCONT)
    stage.heard("refused", id)

    children = [job for job in stage.store.list_jobs().jobs if job.id != id]
    assert [child.result_json for child in children] == ["2"]
    assert ledger.entries(stage.url) == {id: 1}
    stage.check(disturbed={late.pid})


def test_a_late_worker_in_the_middle_of_its_transaction_enqueues_nothing(
    postgres_stage: Stage,
) -> None:
    stage = postgres_stage
    ledger.create(stage.url)
    [id] = stage.add(book_and_meet_a_signal.call("before complete", signal.SIGSTOP))
    late = stage.victim(**QUIET)
    stopped(stage, late)
    stage.worker()
    stage.drained()
    late.signal(signal.SIGCONT)
    stage.heard("refused", id)

    assert stage.store.get(id).result_json == '"token 2"'
    children = [job for job in stage.store.list_jobs().jobs if job.id != id]
    assert [child.result_json for child in children] == ["2"]
    assert ledger.entries(stage.url) == {id: 1}
    stage.check(disturbed={late.pid})


def test_stopped_between_completion_and_commit_nobody_else_can_take_the_job(
    postgres_stage: Stage,
) -> None:
    stage = postgres_stage
    ledger.create(stage.url)
    [id] = stage.add(book_and_meet_a_signal.call("before commit", signal.SIGSTOP))
    late = stage.victim(**QUIET)
    stopped(stage, late)
    other = stage.worker()
    ends = stage.store.get(id).expires_at
    assert ends is not None
    sweeps = len(calls(stage, other, "sweep"))
    until(lambda: time.time() > ends.timestamp(), "the end of the lease")
    until(lambda: len(calls(stage, other, "sweep")) > sweeps + 3, "sweeps that pass over it")
    late.signal(signal.SIGCONT)
    stage.drained()

    job = stage.store.get(id)
    assert (job.state, job.token, job.crashes) == (State.SUCCEEDED, 1, 0)
    assert ledger.entries(stage.url) == {id: 1}
    stage.check(disturbed={late.pid})


def test_a_late_heartbeat_is_refused_even_before_anybody_took_the_job(stage: Stage) -> None:
    [id] = stage.add(hold.call("never"))
    late = stage.victim(moment="before heartbeat", signal=signal.SIGSTOP, **QUIET)
    stage.heard("ran", id)
    stage.open("armed")
    stopped(stage, late)
    ends = stage.store.get(id).expires_at
    assert ends is not None
    [lease] = leases(stage)
    until(lambda: time.time() > ends.timestamp() + 0.1, "the end of the lease")
    late.signal(signal.SIGCONT)
    stage.heard("told", id)

    assert lost_leases(stage, late) == [lease]
    until(lambda: "lease was lost; not recorded" in stage.log_of(late), "the handler's end")
    stage.worker()
    job = stage.finished(id)
    assert (job.state, job.token) == (State.SUCCEEDED, 2)  # by either worker
    stage.check(disturbed={late.pid})


def test_a_lost_job_gives_its_only_slot_back(stage: Stage) -> None:
    [stale, waiting] = stage.add(
        hold_lonely.call("never"), quick_async.options(queue="lonely").call()
    )
    worker = stage.victim({"lonely": 1})
    stage.heard("ran", stale)
    stage.stop(worker)
    until(lambda: stage.store.sweep().requeued == 1, "somebody takes the job back")
    assert stage.store.get(waiting).state is State.QUEUED
    worker.signal(signal.SIGCONT)
    stage.drained()

    assert {word.pid for word in stage.said("ran")} == {worker.pid}
    assert [word.token for word in stage.said("ran", stale)] == [1, 2]
    assert len(stage.said("ran", waiting)) == 1
    stage.check(disturbed={worker.pid})
