"""Schedules whose COMMIT got no answer: one job per tick, and the answer that was meant."""

from __future__ import annotations

import pytest

from tenure.errors import ScheduleExists
from tenure.rules.ticks import ScheduleTiming
from tenure.store import NewSchedule, Store
from tests.faults.test_unanswered import landed_or_not
from tests.support.proxy import Proxy
from tests.support.stores import Clock
from tests.support.work import job

NEW = NewSchedule(name="s", timing=ScheduleTiming(cron="* * * * *"), job=job())


@landed_or_not
def test_a_firing_makes_one_job_per_tick(
    far: Store, near: Store, proxy: Proxy, clock: Clock, landed: bool
) -> None:
    near.add_schedule(NEW, now=clock.now)
    far.paused_queues()
    cut = proxy.cut_commit("insert into tenure.tick", landed=landed)
    far.fire(now=clock.advance(60))
    assert cut.done
    assert near.fire(now=clock.now).jobs == ()
    [run], [made] = near.schedule_runs("s"), near.list_jobs().jobs
    assert run.job_id == made.id


@landed_or_not
def test_a_trigger_makes_one_job_and_says_which(
    far: Store, near: Store, proxy: Proxy, clock: Clock, landed: bool
) -> None:
    near.add_schedule(NEW, now=clock.now)
    far.paused_queues()
    cut = proxy.cut_commit("insert into tenure.tick", landed=landed)
    id = far.trigger_schedule("s", now=clock.now)
    assert cut.done
    [run], [made] = near.schedule_runs("s"), near.list_jobs().jobs
    assert run.job_id == made.id == id


@landed_or_not
def test_a_schedule_is_added_once(
    far: Store, near: Store, proxy: Proxy, clock: Clock, landed: bool
) -> None:
    far.paused_queues()
    cut = proxy.cut_commit("insert into tenure.schedule", landed=landed)
    added = far.add_schedule(NEW, now=clock.now)
    assert cut.done
    assert near.list_schedules() == [added]
    with pytest.raises(ScheduleExists):
        far.add_schedule(NEW, now=clock.now)


@landed_or_not
def test_a_schedule_is_removed_once(
    far: Store, near: Store, proxy: Proxy, clock: Clock, landed: bool
) -> None:
    near.add_schedule(NEW, now=clock.now)
    far.paused_queues()
    cut = proxy.cut_commit("delete from tenure.schedule", landed=landed)
    far.remove_schedule("s", now=clock.now)
    assert cut.done
    assert near.list_schedules() == []
