"""There is no leader: whoever fires, dies, restarts or comes late, a tick has one job."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta

import pytest

from tenure.rules.job import State
from tenure.store import Store, open_store
from tests.conftest import migrate
from tests.processes.crew import Crew
from tests.schedules.cast import (
    SECOND,
    assert_one_job_per_tick,
    fire_and_die,
    fire_once,
    schedule,
    ticks_of_jobs,
    trigger_and_die,
    work,
)
from tests.support.patience import until
from tests.support.postgres import Server
from tests.support.stores import START


def test_many_who_fire_at_once_make_one_job_per_tick(url: str, crew: Crew) -> None:
    with open_store(url) as store:
        for n in range(5):
            store.add_schedule(schedule(f"s{n}"), now=START)
        now = START + 20 * SECOND
        members = [crew.start(fire_once, url, now) for _ in range(6)]
        crew.go()
        crew.join()
        made = [id for member in members for id in member.said("fired")[0]]
        left = store.fire(now=now).jobs  # what was in the hands of others, if any
        assert len(made) + len(left) == len({*made, *left}) == 100
        for n in range(5):
            assert len(store.schedule_runs(f"s{n}", limit=1000)) == 20


@pytest.mark.slow
def test_killed_before_any_statement_of_a_firing(url: str, crew: Crew) -> None:
    """All or nothing: what the dead one has not committed the next one does."""
    with open_store(url) as store:
        store.add_schedule(schedule(), now=START)
        now, deaths = START, 0
        for before in range(1, 30):
            now += SECOND
            member = crew.start(fire_and_die, url, now, before)
            member.process.join(60)
            fired = len(ticks_of_jobs(store))
            assert fired in (before - 1, before), "half a firing"
            if member.said("survived"):
                break
            deaths += member.process.exitcode == -signal.SIGKILL
            _fire_until(store, now, before)
            assert len(ticks_of_jobs(store)) == before
        assert deaths >= 6
        assert_one_job_per_tick(store, "s")


@pytest.mark.slow
def test_killed_before_any_statement_of_a_trigger(url: str, crew: Crew) -> None:
    with open_store(url) as store:
        store.add_schedule(schedule(), now=START)
        deaths = 0
        while True:
            now = START + timedelta(hours=deaths)
            member = crew.start(trigger_and_die, url, now, deaths + 1)
            member.process.join(60)
            if member.said("survived"):
                break
            deaths += 1
            assert store.schedule_runs("s") == []
            assert store.list_jobs().jobs == ()
        assert deaths >= 5
        [run], [job] = store.schedule_runs("s"), store.list_jobs().jobs
        assert run.job_id == job.id


def _fire_until(store: Store, now: datetime, count: int) -> None:
    """As workers do. Until the server has noticed a death, what the dead one locked is left out."""

    def is_done() -> bool:
        store.fire(now=now)
        return len(ticks_of_jobs(store)) >= count

    until(is_done)


def _ticked(store: Store, count: int) -> None:
    until(lambda: len(store.list_jobs(states=[State.SUCCEEDED], limit=1000).jobs) >= count)


@pytest.mark.slow
def test_three_workers_and_a_restart_of_the_database(crew: Crew) -> None:
    """The server is gone around several ticks; each of them has one job nevertheless."""
    with Server() as server:
        url = server.create_database()
        migrate(url)
        members = [crew.start(work, url) for _ in range(3)]
        store = open_store(url, give_up_seconds=30)
        for member in members:
            member.wait_for("begun")
        _ticked(store, 2)
        server.restart("immediate")
        _ticked(store, len(ticks_of_jobs(store)) + 2)
        server.restart("fast")
        _ticked(store, len(ticks_of_jobs(store)) + 2)
        for member in members:
            member.signal(signal.SIGTERM)
        for member in members:
            member.process.join(60)
            assert member.process.exitcode == 0
        assert len(assert_one_job_per_tick(store, "beat")) >= 6
        store.close()


@pytest.mark.slow
def test_workers_that_are_killed_around_a_tick(url: str, crew: Crew) -> None:
    members = [crew.start(work, url) for _ in range(3)]
    for member in members:
        member.wait_for("begun")
    with open_store(url) as store:
        heirs = []
        for victim in members:
            _ticked(store, len(ticks_of_jobs(store)) + 1)
            heirs.append(crew.start(work, url))
            heirs[-1].wait_for("begun")
            victim.kill()
        _ticked(store, len(ticks_of_jobs(store)) + 2)
        for heir in heirs:
            heir.signal(signal.SIGTERM)
        for heir in heirs:
            heir.process.join(60)
        assert len(assert_one_job_per_tick(store, "beat")) >= 5
