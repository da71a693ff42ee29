"""The schedules of an application: added, edited, paused, triggered and looked at, while it runs.

app.schedules.add("nightly-eu", report.call("eu"), cron="0 3 * * *", tz="Europe/Berlin")
app.schedules.pause("nightly-eu", reason="the source is down")

Every operation exists as `x` and as `x_async`. What code declares is here, too.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack

from tenure.store import AsyncStore, Store
from tenure.store.schedules import change as schedules
from tenure.store.schedules.records import NewSchedule, ScheduleInfo
from tenure.store.session import Scope
from tenure.tasks import Call, Task, TimingOptions, job_of, timing_of

P = ParamSpec("P")
R = TypeVar("R")
Operation = Callable[Concatenate[Scope, P], Coroutine[Any, Any, R]]


class Stores(Protocol):
    """What is needed of an application."""

    @property
    def store(self) -> Store:
        """For callers in threads."""

    @property
    def async_store(self) -> AsyncStore:
        """For callers on the running event loop."""


def _blocking(operation: Operation[P, R]) -> "Callable[Concatenate[Schedules, P], R]":
    @wraps(operation)
    def method(self: "Schedules", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._app.store.run(operation, *args, **kwargs)

    return method


def _awaiting(
    operation: Operation[P, R],
) -> "Callable[Concatenate[Schedules, P], Coroutine[Any, Any, R]]":
    @wraps(operation)
    async def method(self: "Schedules", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._app.async_store.run(operation, *args, **kwargs)

    return method


class Schedules:
    """What an application can do with schedules, for its tenant if it has one."""

    def __init__(self, app: Stores) -> None:
        self._app = app

    def add(
        self, name: str, call: Call[Any] | Task[..., Any], **timing: Unpack[TimingOptions]
    ) -> ScheduleInfo:
        """Add a schedule; it ticks from now on. Raises `ScheduleExists` when the name is taken."""
        return self._app.store.run(schedules.add_schedule, _new(name, call, timing))

    async def add_async(
        self, name: str, call: Call[Any] | Task[..., Any], **timing: Unpack[TimingOptions]
    ) -> ScheduleInfo:
        """Add a schedule; it ticks from now on. Raises `ScheduleExists` when the name is taken."""
        return await self._app.async_store.run(schedules.add_schedule, _new(name, call, timing))

    def edit(
        self,
        name: str,
        call: Call[Any] | Task[..., Any] | None = None,
        **timing: Unpack[TimingOptions],
    ) -> ScheduleInfo:
        """Change what is given. Ticks that have passed stay passed."""
        job = None if call is None else job_of(call)
        return self._app.store.run(schedules.edit_schedule, name, timing=timing, job=job)

    async def edit_async(
        self,
        name: str,
        call: Call[Any] | Task[..., Any] | None = None,
        **timing: Unpack[TimingOptions],
    ) -> ScheduleInfo:
        """Change what is given. Ticks that have passed stay passed."""
        job = None if call is None else job_of(call)
        run = self._app.async_store.run
        return await run(schedules.edit_schedule, name, timing=timing, job=job)

    get = _blocking(schedules.get_schedule)
    get_async = _awaiting(schedules.get_schedule)
    runs = _blocking(schedules.schedule_runs)
    runs_async = _awaiting(schedules.schedule_runs)
    pause = _blocking(schedules.pause_schedule)
    pause_async = _awaiting(schedules.pause_schedule)
    resume = _blocking(schedules.resume_schedule)
    resume_async = _awaiting(schedules.resume_schedule)
    trigger = _blocking(schedules.trigger_schedule)
    trigger_async = _awaiting(schedules.trigger_schedule)
    remove = _blocking(schedules.remove_schedule)
    remove_async = _awaiting(schedules.remove_schedule)
    list = _blocking(schedules.list_schedules)
    list_async = _awaiting(schedules.list_schedules)


def _new(name: str, call: Call[Any] | Task[..., Any], timing: TimingOptions) -> NewSchedule:
    return NewSchedule(name=name, timing=timing_of(timing), job=job_of(call))
