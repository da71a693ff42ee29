"""Schedules: statements 40 and 41, and the defects that belong to them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import succeed
from tenure.rules.ticks import ScheduleTiming, fired_by
from tenure.store import Fired, NewSchedule, Store
from tenure.store.schedules import fire as firing
from tenure.store.schedules.fire import fire
from tests.statements.conftest import Opener
from tests.statements.support import Database, Held, at_once, claim_one, defect, statement
from tests.support.stores import START, Clock

MINUTELY = NewSchedule(
    name="s", timing=ScheduleTiming(cron="* * * * *"), job=NewJob(task="app.work")
)


def ticks(store: Store) -> list[datetime]:
    """For which ticks there are jobs."""
    found = [fired_by(job.metadata) for job in store.list_jobs(limit=1000).jobs]
    return sorted(by.tick for by in found if by is not None)


@statement(40)
def test_many_who_fire_at_once_fire_a_tick_once(
    open_shared: Opener, shared_database: Database
) -> None:
    """The unique row of the tick decides, not who looked first."""
    stores = [open_shared() for _ in range(6)]
    clock = Clock(START)
    stores[0].add_schedule(MINUTELY, now=clock.now)
    for number in range(1, 9):
        clock.advance(60)
        at_once([partial(store.fire, now=clock.now) for store in stores])
        stores[0].fire(now=clock.now)
        assert shared_database.count("job") == shared_database.count("tick") == number


@statement(40)
def test_a_tick_that_has_its_row_is_never_fired_again(
    store: Store, clock: Clock, database: Database
) -> None:
    """Not even when the schedule itself says that it was not dealt with."""
    store.add_schedule(MINUTELY, now=clock.now)
    store.fire(now=clock.advance(60))
    database.rows("update tenure.schedule set done_until = created_at, next_at = created_at")
    assert store.fire(now=clock.now).jobs == ()
    assert ticks(store) == [clock.now]


@statement(41)
@pytest.mark.parametrize("kept", [True, False])
def test_a_firing_in_flight_is_left_to_its_worker_and_done_when_it_fails(
    pg: Store, clock: Clock, hold: Callable[[], Held], kept: bool
) -> None:
    """While its transaction is open nobody waits for it or fires the tick as well; when it is
    undone the next one fires the tick."""
    pg.add_schedule(MINUTELY, now=clock.now)
    clock.advance(60)
    in_flight = hold()
    assert len(in_flight.do(fire, now=clock.now).jobs) == 1
    assert pg.fire(now=clock.now) == Fired(wait_seconds=1.0)
    (in_flight.commit if kept else in_flight.rollback)()
    assert len(pg.fire(now=clock.now).jobs) == (0 if kept else 1)
    assert ticks(pg) == [clock.now]


@statement(41)
@defect("C-14")
def test_a_firing_that_fails_half_way_leaves_nothing_and_is_done_later(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick, its job and the progress of the schedule are one transaction: a crash after any of
    them loses no tick, nor the rest of a catch-up."""
    timing = ScheduleTiming(cron="* * * * *", catch_up="all")
    store.add_schedule(NewSchedule(name="s", timing=timing, job=MINUTELY.job), now=clock.now)
    before = store.get_schedule("s")
    clock.advance(180)

    async def fail(*_: Any) -> None:
        raise RuntimeError("killed by the test")

    for step in ("enqueue_ticks", "_advance"):
        with monkeypatch.context() as patch:
            patch.setattr(firing, step, fail)
            with pytest.raises(RuntimeError):
                store.fire(now=clock.now)
        assert store.get_schedule("s") == before
        assert ticks(store) == []
        assert store.schedule_runs("s") == []
    assert len(store.fire(now=clock.now).jobs) == 3


@statement(41)
@defect("C-16")
def test_a_run_needs_no_closing_and_is_never_fired_again(store: Store, clock: Clock) -> None:
    """Whether a run is over is read from its job, so nothing is left open: a job that takes long is
    not taken for lost, and one that has finished frees the schedule at once."""
    timing = ScheduleTiming(cron="* * * * *", overlap="skip")
    store.add_schedule(NewSchedule(name="s", timing=timing, job=MINUTELY.job), now=clock.now)
    store.fire(now=clock.advance(60))
    job = claim_one(store, clock)
    for _ in range(30):
        assert store.fire(now=clock.advance(60)).jobs == ()
    store.extend("w1", {job.lease_id: [job.id]}, lease_seconds=3600, now=clock.now)
    store.settle("w1", [succeed(job, encode(None))], now=clock.now)
    assert len(store.fire(now=clock.advance(60)).jobs) == 1
    assert len(store.list_jobs().jobs) == 2
