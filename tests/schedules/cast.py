"""What processes do in these tests, and what their database must look like afterwards."""

from __future__ import annotations

import logging
import os
import signal
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from tenure import Tenure, Worker
from tenure.rules.job import NewJob
from tenure.rules.ticks import ScheduleTiming, fired_by
from tenure.store import NewSchedule, Store, open_store
from tenure.store.postgres.tx import PostgresTx
from tenure.store.session import Row
from tenure.store.sqlite.tx import SQLiteTx
from tests.processes.crew import Voice

EVERY_SECOND = ScheduleTiming(cron="* * * * * *", catch_up="all", catch_up_limit=1000)
SECOND = timedelta(seconds=1)


def work(voice: Voice, url: str) -> None:
    """A worker whose code declares a schedule for every second."""
    logging.basicConfig(level=logging.ERROR)
    app = Tenure(url)

    @app.schedule("* * * * * *", name="beat", catch_up="all", catch_up_limit=1000)
    @app.task(name="cast.beat")
    async def beat() -> None: ...

    voice.say("begun", os.getpid())
    Worker(app, schedule_seconds=0.5, promote_seconds=0.1, sweep_seconds=0.5, lease_seconds=5.0,
           heartbeat_seconds=1.0, drain_seconds=5.0).run()  # fmt: skip
    voice.say("left")


def fire_once(voice: Voice, url: str, now: datetime) -> None:
    """Wait for the others, and fire."""
    with open_store(url) as store:
        voice.wait()
        voice.say("fired", list(store.fire(now=now).jobs))


def fire_and_die(voice: Voice, url: str, now: datetime, before: int) -> None:
    """Fire, and be killed before the n-th statement of it; says so when that never comes."""
    with open_store(url) as store:
        store.list_schedules()  # connected
        _die_before(before)
        store.fire(now=now)
    voice.say("survived")


def trigger_and_die(voice: Voice, url: str, now: datetime, before: int) -> None:
    """The same for a trigger."""
    with open_store(url) as store:
        store.list_schedules()
        _die_before(before)
        store.trigger_schedule("s", now=now)
    voice.say("survived")


def _die_before(number: int) -> None:
    left = number

    def killing(original: Any) -> Any:
        async def fetch(self: Any, statement: str, **params: object) -> list[Row]:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            rows: list[Row] = await original(self, statement, **params)
            return rows

        return fetch

    for kind in (PostgresTx, SQLiteTx):
        kind.fetch = killing(kind.fetch)  # type: ignore[method-assign]


def schedule(name: str = "s", timing: ScheduleTiming = EVERY_SECOND) -> NewSchedule:
    """A schedule of a plain job."""
    return NewSchedule(name=name, timing=timing, job=NewJob(task="cast.beat"))


def ticks_of_jobs(store: Store) -> list[datetime]:
    """For which ticks there are jobs, one entry per job, in order of time."""
    found: list[datetime] = []
    page = store.list_jobs(limit=1000)
    while True:
        for job in page.jobs:
            by = fired_by(job.metadata_json)
            assert by is not None
            found.append(by.tick)
        if page.next is None:
            return sorted(found)
        page = store.list_jobs(limit=1000, after=page.next)


def assert_one_job_per_tick(store: Store, name: str) -> list[datetime]:
    """Each tick has one job, each job its tick, and none is missing in between."""
    ticks = ticks_of_jobs(store)
    assert len(set(ticks)) == len(ticks), "a tick has two jobs"
    runs = store.schedule_runs(name, limit=1000)
    assert sorted(run.tick_at for run in runs) == ticks
    assert len({run.job_id for run in runs}) == len(runs)
    assert all(later - tick == SECOND for tick, later in pairwise(ticks)), ticks
    return ticks
