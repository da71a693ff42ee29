"""The schedules of an application: add, edit, pause, trigger and list them at run time.

app.schedules.add("nightly-eu", report.call("eu"), cron="0 3 * * *", tz="Europe/Berlin")
app.schedules.pause("nightly-eu", reason="the source is down")

Every operation exists as `x` and as `x_async`. Schedules that are declared in code are here, too.
"""

from typing import Any, ParamSpec, Protocol, TypeVar, Unpack

from tenure.store import AsyncStore, Store
from tenure.store.api import Operation, both
from tenure.store.schedules import change as schedules
from tenure.store.schedules.records import NewSchedule, ScheduleInfo
from tenure.tasks import Call, Task, TimingOptions, job_of, timing_of

P = ParamSpec("P")
R = TypeVar("R")


class Stores(Protocol):
    """The part of an application that schedules use."""

    @property
    def store(self) -> Store:
        """For callers in threads."""

    @property
    def async_store(self) -> AsyncStore:
        """For callers on the running event loop."""


class Schedules:
    """The schedules of an application, limited to its tenant if it has one."""

    def __init__(self, app: Stores) -> None:
        self._app = app

    def add(
        self, name: str, call: Call[Any] | Task[..., Any], **timing: Unpack[TimingOptions]
    ) -> ScheduleInfo:
        """Add a schedule that ticks from now on. Raises `ScheduleExists` if the name is taken."""
        return self._run(schedules.add_schedule, _new(name, call, timing))

    async def add_async(
        self, name: str, call: Call[Any] | Task[..., Any], **timing: Unpack[TimingOptions]
    ) -> ScheduleInfo:
        """Add a schedule that ticks from now on. Raises `ScheduleExists` if the name is taken."""
        return await self._run_async(schedules.add_schedule, _new(name, call, timing))

    def edit(
        self,
        name: str,
        call: Call[Any] | Task[..., Any] | None = None,
        **timing: Unpack[TimingOptions],
    ) -> ScheduleInfo:
        """Change the given fields. Ticks that were due before follow the old ones."""
        job = None if call is None else job_of(call)
        return self._run(schedules.edit_schedule, name, timing=timing, job=job)

    async def edit_async(
        self,
        name: str,
        call: Call[Any] | Task[..., Any] | None = None,
        **timing: Unpack[TimingOptions],
    ) -> ScheduleInfo:
        """Change the given fields. Ticks that were due before follow the old ones."""
        job = None if call is None else job_of(call)
        return await self._run_async(schedules.edit_schedule, name, timing=timing, job=job)

    get, get_async = both(schedules.get_schedule)
    runs, runs_async = both(schedules.schedule_runs)
    pause, pause_async = both(schedules.pause_schedule)
    resume, resume_async = both(schedules.resume_schedule)
    trigger, trigger_async = both(schedules.trigger_schedule)
    remove, remove_async = both(schedules.remove_schedule)
    list, list_async = both(schedules.list_schedules)

    def _run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._app.store.run(operation, *args, **kwargs)

    async def _run_async(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._app.async_store.run(operation, *args, **kwargs)


def _new(name: str, call: Call[Any] | Task[..., Any], timing: TimingOptions) -> NewSchedule:
    return NewSchedule(name=name, timing=timing_of(timing), job=job_of(call))
