"""Workers declare the schedules of their code, and fire whatever is due."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest

from tenure import Tenure
from tenure.errors import StoreUnavailable
from tenure.rules.job import State
from tenure.rules.ticks import ScheduleTiming
from tenure.store import AsyncStore, open_store
from tenure.store.proxy import AsyncStoreProxy
from tenure.store.schedules.fire import fire
from tenure.worker.environment import Environment
from tests.support.patience import until
from tests.support.plain import Plain
from tests.support.working import working
from tests.worker.support import Lines

SOON = 0.05


@pytest.mark.slow
def test_a_worker_fires_what_its_code_declares(app: Tenure) -> None:
    ran: list[str] = []

    @app.schedule(every_seconds=1)
    @app.task(name="tests.beat")
    def beat() -> None:
        ran.append("beat")

    with working(app, schedule_seconds=SOON):
        until(lambda: len(ran) >= 2)
    runs = app.schedules.runs("tests.beat")
    assert len(runs) >= 2
    assert all(run.fired_at >= run.tick_at for run in runs)
    assert len({run.job_id for run in runs}) == len(runs)


@pytest.mark.slow
def test_a_worker_notices_what_is_added_while_it_works(app: Tenure) -> None:
    @app.task()
    async def work() -> str:
        return "done"

    with working(app, schedule_seconds=SOON):
        app.schedules.add("s", work, every_seconds=1)
        until(lambda: [run for run in app.schedules.runs("s") if run.state is State.SUCCEEDED])
        app.schedules.remove("s")


def test_a_triggered_job_runs_at_once(app: Tenure) -> None:
    @app.schedule("@yearly", name="s")
    @app.task()
    async def work() -> None: ...

    with working(app, schedule_seconds=1000):
        until(app.schedules.list)
        id = app.schedules.trigger("s")
        assert app.wait(id, timeout_seconds=30).state is State.SUCCEEDED


def messages(lines: Lines) -> list[str]:
    return [record.getMessage() for record in list(lines.records)]


def test_the_log_says_what_became_of_declarations(app: Tenure, lines: Lines) -> None:
    @app.task(name="tests.work")
    async def work() -> None: ...

    with open_store(app.url) as store:
        other = Tenure(app.url)
        for name, cron in (("edited", "@daily"), ("gone", "@daily")):
            other.schedule(cron, name=name)(work.call())
        store.declare_schedules(other.declared_schedules())
        store.edit_schedule("edited", timing={"cron": "@weekly"})
    app.schedule("@daily", name="edited")(work)
    app.schedule("@daily", name="new")(work)
    with working(app):
        until(lambda: any("no longer declared" in line for line in messages(lines)))
    said = messages(lines)
    assert "schedule new was set as this code declares it" in said
    assert any(line.startswith("schedule edited differs from its declaration") for line in said)
    assert any(line.startswith("schedule gone is no longer declared") for line in said)
    assert app.schedules.get("edited").timing == ScheduleTiming(cron="@weekly")


@pytest.mark.slow
def test_a_schedule_that_cannot_tick_here_is_told_once(app: Tenure, lines: Lines) -> None:
    @app.task()
    async def work() -> None: ...

    app.schedules.add("bad", work, every_seconds=1)
    with Plain(app.url) as plain:
        plain.rows("update tenure.schedule set timing = ?", '{"cron":"* * * * *","tz":"Mars/Base"}')
    app.schedules.add("good", work, every_seconds=1)
    with working(app, schedule_seconds=SOON):
        until(lambda: len(app.schedules.runs("good")) >= 2)
    told = [line for line in messages(lines) if "cannot be fired by this worker" in line]
    assert len(told) == 1
    assert "Mars/Base" in told[0]


class Away(AsyncStoreProxy):
    """A store whose firings fail for a while."""

    failing = True
    tries = 0

    async def run(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        if call is fire and Away.failing:
            Away.tries += 1
            raise StoreUnavailable("away, says the test")
        return await self._store.run(call, *args, **kwargs)


class AwayEnvironment(Environment):
    """The environment of such stores."""

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        return Away(store, self)


@pytest.mark.slow
def test_an_outage_is_outlasted_told_once_and_caught_up_with(app: Tenure, lines: Lines) -> None:
    Away.failing, Away.tries = True, 0

    @app.schedule(every_seconds=1, name="s", catch_up="all")
    @app.task()
    async def work() -> None: ...

    with working(app, environment=AwayEnvironment(), schedule_seconds=SOON):
        until(lambda: Away.tries >= 30)
        Away.failing = False
        until(lambda: len(app.schedules.runs("s")) >= 3)
    told = [r for r in lines.records if "firing schedules failed" in r.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING]
    ticks = sorted(run.tick_at for run in app.schedules.runs("s"))
    assert {(later - tick).total_seconds() for tick, later in pairwise(ticks)} == {1.0}
