"""Who is who: names are random, a successor inherits nothing, and orphans end."""

from __future__ import annotations

import signal

import psutil
import pytest

from tenure.rules.job import State
from tests.crash.cast import LEASE_SECONDS, Stage, gone
from tests.crash.handlers import hold, quick, wait_deaf
from tests.support.audit import audit
from tests.support.patience import until

RECOVERY_SECONDS = 60.0
"""Huge: `make trust ARGS=chaos` measures how long it takes."""


@pytest.mark.slow
def test_a_successor_has_another_name_and_inherits_no_claim(stage: Stage) -> None:
    [id] = stage.add(wait_deaf.call("never"))
    first = stage.victim()
    stage.heard("ran", id)
    until(stage.store.workers, "an announcement")
    first.kill()
    second = stage.worker()
    until(lambda: len(stage.store.workers()) == 2, "the successor's announcement")
    old, new = (
        next(seen for seen in stage.store.workers() if seen.pid == member.pid)
        for member in (first, second)
    )
    job = stage.finished(id)

    assert old.host == new.host
    assert old.name != new.name
    assert (job.token, job.worker) == (2, new.name)
    between = stage.at(id, "claimed", 2) - stage.at(id, "claimed", 1)
    assert between >= LEASE_SECONDS
    stage.check(disturbed={first.pid}, recovery_seconds=RECOVERY_SECONDS)


@pytest.mark.slow
def test_two_workers_in_one_process_have_two_names(stage: Stage) -> None:
    worker = stage.worker(lives=2)
    stage.add(*[quick.call() for _ in range(3)])
    stage.drained()
    worker.signal(signal.SIGTERM)
    worker.wait_for("left", 1)
    stage.add(*[quick.call() for _ in range(3)])
    stage.drained()
    worker.signal(signal.SIGTERM)
    assert gone(worker) == 0

    jobs = stage.store.list_jobs().jobs
    assert len({job.worker for job in jobs}) == 2
    assert {word.pid for word in stage.said("ran")} == {worker.pid}
    stage.check(disturbed=set())


def children_of(pid: int) -> list[psutil.Process]:
    """Everything that a process has started, and what that has started."""
    return psutil.Process(pid).children(recursive=True)


def has_ended(process: psutil.Process) -> bool:
    """Is it gone, or dead and not yet buried?"""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
def test_when_the_supervisor_is_killed_its_workers_drain_and_end(stage: Stage) -> None:
    ids = stage.add(*[hold.call("end") for _ in range(2)])
    supervisor = stage.victim({"default": 1}, processes=2)
    stage.heard("ran", times=2)
    members = children_of(supervisor.pid)
    assert {word.pid for word in stage.said("ran")} <= {member.pid for member in members}
    supervisor.kill()
    stage.open("end")
    until(lambda: all(has_ended(member) for member in members), "both workers end")

    assert {stage.store.get(id).state for id in ids} == {State.SUCCEEDED}
    assert {stage.store.get(id).token for id in ids} == {1}
    # It does not wait long for that.
    assert len(stage.store.workers()) == stage.log_of(supervisor).count("could not sign off")
    audit(stage.url)


@pytest.mark.slow
def test_an_orphaned_worker_gives_back_what_outlives_the_grace(stage: Stage) -> None:
    ids = stage.add(*[wait_deaf.call("never") for _ in range(2)])
    supervisor = stage.victim({"default": 1}, processes=2, drain_seconds=0.2, kill_seconds=0.2)
    stage.heard("ran", times=2)
    members = children_of(supervisor.pid)
    supervisor.kill()
    until(lambda: all(has_ended(member) for member in members), "both workers end")

    assert {stage.store.get(id).reason for id in ids} == {"shutdown"}
    assert {stage.store.get(id).attempts for id in ids} == {0}
    audit(stage.url)
