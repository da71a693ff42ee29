"""Schedules as an application sees them: declared in code, or added while it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure import Running, Schedules, ScheduleTiming, TaskSet, Tenure
from tenure.errors import (
    InvalidCron,
    InvalidInput,
    InvalidName,
    ScheduleExists,
    ScheduleNotFound,
    UnknownZone,
)
from tenure.testing import drain


def test_a_schedule_stands_above_its_task(app: Tenure) -> None:
    @app.schedule("*/5 * * * *", tz="Europe/Berlin", overlap="skip")
    @app.task(name="shop.report", queue="slow")
    def report(region: str = "eu") -> None: ...

    [declared] = app.declared_schedules()
    assert declared.name == "shop.report"
    assert declared.timing == ScheduleTiming(cron="*/5 * * * *", tz="Europe/Berlin", overlap="skip")
    assert (declared.job.task, declared.job.queue) == ("shop.report", "slow")
    assert app.find("shop.report") is report, "the decorator gives the task back"


def test_calls_and_intervals_have_schedules_as_well(app: Tenure) -> None:
    @app.task(name="shop.report")
    def report(region: str) -> None: ...

    app.schedule("@daily", name="eu")(report.call("eu"))
    app.schedule(every_seconds=90, name="us")(report.options(priority=5).call("us"))
    eu, us = app.declared_schedules()
    assert (eu.name, eu.job.args) == ("eu", b'{"region":"eu"}')
    assert (us.timing.every_seconds, us.job.priority) == (90, 5)


def test_a_set_of_tasks_brings_its_schedules(app: Tenure) -> None:
    tasks = TaskSet()

    @tasks.schedule("@hourly")
    @tasks.task(name="other.work")
    def work() -> None: ...

    app.include(tasks)
    app.include(tasks)
    assert [each.name for each in app.declared_schedules()] == ["other.work"]
    with pytest.raises(InvalidInput, match="two schedules are named"):
        app.schedule("@daily")(work)


@pytest.mark.parametrize(
    ("cron", "options", "error"),
    [
        ("every day", {}, InvalidCron),
        ("@reboot", {}, InvalidCron),
        ("@daily", {"tz": "Mars/Base"}, UnknownZone),
        ("@daily", {"every_seconds": 5}, InvalidInput),
        (None, {}, InvalidInput),
        ("@daily", {"timezone": "UTC"}, InvalidInput),
        ("@daily", {"name": "no spaces"}, InvalidName),
        (5, {}, InvalidInput),
    ],
)
def test_mistakes_are_refused_where_they_are_made(
    app: Tenure, cron: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    @app.task()
    def work() -> None: ...

    with pytest.raises(error):
        app.schedule(cron, **options)(work)
    assert app.declared_schedules() == []


def test_it_needs_a_task(app: Tenure) -> None:
    def plain() -> None: ...

    wrong: Any = plain
    with pytest.raises(InvalidInput, match="above @app"):
        app.schedule("@daily")(wrong)
    with pytest.raises(InvalidInput, match=r"write @app.schedule"):
        app.schedule(wrong)
    with pytest.raises(InvalidInput, match="takes a call"):
        app.schedules.add("s", wrong, cron="@daily")


def test_a_task_that_needs_arguments_is_refused_where_it_is_scheduled(app: Tenure) -> None:
    @app.task()
    def work(job: Running, what: str) -> None: ...

    with pytest.raises(InvalidInput, match=r"schedule bad: .*missing a required argument: 'what'"):
        app.schedule("@daily", name="bad")(work)
    assert app.declared_schedules() == []
    app.schedule("@daily", name="good")(work.call("this"))


def test_or_before_a_worker_starts_if_its_annotations_are_defined_further_down(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.schedule("@daily", name="bad")
    @app.task()
    def work(what: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    monkeypatch.setitem(globals(), "Later", str)
    with pytest.raises(InvalidInput, match=r"schedule bad: .*missing a required argument: 'what'"):
        app.run_worker()


def test_from_adding_to_removing(app: Tenure) -> None:
    @app.task()
    def work(job: Running, region: str) -> str:
        told = job.metadata["schedule"]
        assert isinstance(told, dict)
        return f"{region} by {told['name']}"

    with app:
        added = app.schedules.add("eu", work.call("eu"), cron="0 3 * * *", tz="Europe/Berlin")
        assert app.schedules.list() == [added] == [app.schedules.get("eu")]
        with pytest.raises(ScheduleExists):
            app.schedules.add("eu", work.call("eu"), cron="@daily")
        edited = app.schedules.edit("eu", work.call("us"), every_seconds=60)
        assert (edited.timing, edited.args_json) == (
            ScheduleTiming(every_seconds=60),
            '{"region":"us"}',
        )
        assert app.schedules.pause("eu", reason="closed").reason == "closed"
        id = app.schedules.trigger("eu")
        assert "enqueued by schedule eu, triggered at" in app.why(id)
        drain(app)
        [run] = app.schedules.runs("eu")
        assert (run.job_id, run.triggered, run.state) == (id, True, "succeeded")
        assert app.get(id).result_json == '"us by eu"'
        assert app.schedules.resume("eu").next_at is not None
        app.schedules.remove("eu")
        with pytest.raises(ScheduleNotFound):
            app.schedules.get("eu")


STEPS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("edit", ("NAME",), {"cron": "0 4 * * *"}),
    ("get", ("NAME",), {}),
    ("pause", ("NAME",), {"reason": "why"}),
    ("resume", ("NAME",), {}),
    ("trigger", ("NAME",), {}),
    ("runs", ("NAME",), {"limit": 5}),
    ("list", (), {"limit": 1}),
    ("remove", ("NAME",), {}),
]


def test_both_colours_do_the_same(app: Tenure) -> None:
    @app.task()
    def work() -> None: ...

    def alike(answer: Any) -> Any:
        if isinstance(answer, list):
            return [alike(each) for each in answer]
        if hasattr(answer, "timing"):
            return answer.timing, answer.reason, answer.next_at
        return type(answer)

    async def both() -> None:
        async with app:
            app.schedules.add("one", work, cron="@daily")
            await app.schedules.add_async("other", work, cron="@daily")
            for name, args, options in STEPS:
                blocked = getattr(app.schedules, name)(*_named("one", args), **options)
                awaited = await getattr(app.schedules, f"{name}_async")(
                    *_named("other", args), **options
                )
                if name != "list":
                    assert alike(blocked) == alike(awaited), name

    asyncio.run(both())
    tried = {"add", *(name for name, _, _ in STEPS)}
    assert tried == {
        name for name in vars(Schedules) if not name.startswith("_") and not name.endswith("_async")
    }


def _named(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(name if each == "NAME" else each for each in args)


def test_a_tenant_has_schedules_of_its_own(app: Tenure) -> None:
    @app.task()
    def work() -> None: ...

    with app, Tenure(app.url, tenant="acme") as acme:
        app.schedules.add("s", work, cron="@daily")
        mine = acme.schedules.add("s", work.call(), cron="@hourly")
        assert mine.tenant == "acme"
        assert app.get(acme.schedules.trigger("s")).tenant == "acme"
        assert acme.schedules.get("s") != app.schedules.get("s")
        acme.schedules.remove("s")
        assert acme.schedules.get("s").tenant == "", "what is global can be seen"
        with pytest.raises(ScheduleNotFound):
            acme.schedules.remove("s")
