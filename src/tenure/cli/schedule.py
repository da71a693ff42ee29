"""Commands that show, change and trigger schedules."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from tenure.cli.context import CliContext, confirm, json_option, with_context, yes_option
from tenure.cli.jobs import job_of
from tenure.cli.output import clean, echo
from tenure.cli.show import as_builtins, when, write_json, write_table
from tenure.errors import InvalidInput, TenureError
from tenure.rules.limits import check_int
from tenure.rules.ticks import CatchUp, ScheduleTiming, check_timing, words
from tenure.store import NewSchedule, ScheduleInfo, ScheduleRun
from tenure.store.schedules.change import add_schedule, edit_schedule

C = TypeVar("C", bound=Callable[..., Any])

TIMING = (
    click.option("--cron", help="5 fields, 6 with seconds first, or an alias such as @daily."),
    click.option("--every-seconds", type=float, help="An interval, counted from 1970-01-01 UTC."),
    click.option("--tz", help="The time zone of --cron, such as Europe/Berlin.  [default: UTC]"),
    click.option("--catch-up", type=click.Choice(CatchUp.__args__),  # type: ignore[attr-defined]
                 help="Which missed ticks to run.  [default: latest]"),
    click.option("--catch-up-limit", type=int, help="Missed ticks to run at most.  [default: 64]"),
    click.option("--overlap", type=click.Choice(["allow", "skip"]),
                 help="What to do while the last job is not finished.  [default: allow]"),
    click.option("--jitter-seconds", type=float, help="Delay each job at random, up to this."),
)  # fmt: skip
JOB = (
    click.option("--args", "args", help="Arguments by name, as a JSON object."),
    click.option("--app", envvar="TENURE_APP", help="MODULE:NAME of the application with TASK."),
    click.option(
        "--unchecked", is_flag=True, help="Do not check the task against the application."
    ),
    click.option("--queue", help="[default: the task's, or default]"),
    click.option("--priority", type=int, help="-100 to 100; lower runs first.  [default: 0]"),
)


def _with(*options: Callable[[C], C]) -> Callable[[C], C]:
    def decorate(command: C) -> C:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.group()
def schedule() -> None:
    """Show and change schedules; run one now."""


@schedule.command("list")
@json_option
@with_context
def list_(context: CliContext, *, as_json: bool) -> None:
    """List schedules: when they tick, in words, and their next tick."""
    found = _all(context)
    if as_json:
        for each in found:
            write_json(_as_json(each, 1))
        return
    tenants = ("tenant",) if any(each.tenant for each in found) else ()
    head = (*tenants, "name", "task", "when", "next", "last", "last job")
    rows = (
        [*([each.tenant] if tenants else []), each.name, each.task, _words(each.timing),
         _next(each), each.last_at, each.last_job_id]
        for each in found
    )  # fmt: skip
    write_table(head, rows, empty="no schedules; add one with `tenure schedule add`")


def _all(context: CliContext) -> list[ScheduleInfo]:
    found = page = context.client.schedules.list()
    while page:
        page = context.client.schedules.list(after=page[-1])
        found = found + page
    return found


@schedule.command()
@click.argument("name")
@click.option("--next", "coming", default=5, show_default=True, help="Number of future ticks.")
@click.option("--runs", "past", default=5, show_default=True, help="Number of past ticks.")
@json_option
@with_context
def show(context: CliContext, *, name: str, coming: int, past: int, as_json: bool) -> None:
    """Show one schedule, its next ticks and its last ticks."""
    check_int("--next", coming, 0, 1000)
    found = context.client.schedules.get(name)
    runs = context.client.schedules.runs(name, limit=past) if past else []
    if as_json:
        write_json({**_as_json(found, coming), "runs": runs})
        return
    for what, text in _facts(found):
        echo(f"{what:10} {clean(text)}")
    for tick in found.upcoming(coming):
        echo(f"{'next':10} {_both(tick, found.timing)}")
    for run in runs:
        echo(f"{'run':10} {_both(run.tick_at, found.timing)}  {_outcome(run)}")


@schedule.command()
@click.argument("name")
@click.argument("task")
@_with(*TIMING, *JOB)
@json_option
@with_context
def add(context: CliContext, /, *, name: str, task: str, as_json: bool, **given: Any) -> None:
    """Add a schedule NAME that enqueues TASK. It ticks from now on.

    With --app, TENURE_APP or `app` in pyproject.toml this command checks the task and its
    arguments.
    """
    timing = ScheduleTiming(**_timing(given))
    check_timing(timing)
    job = job_of(context, task, given)
    added = context.client.store.run(add_schedule, NewSchedule(name=name, timing=timing, job=job))
    _tell(added, "is added", as_json=as_json)


@schedule.command()
@click.argument("name")
@click.option("--task", help="Enqueue another task; --args and other job options apply to it.")
@_with(*TIMING, *JOB)
@json_option
@with_context
def edit(
    context: CliContext, /, *, name: str, task: str | None, as_json: bool, **given: Any
) -> None:
    """Change the given options of a schedule. Past ticks are not run again."""
    timing = _timing(given)
    about_job = [key for key in ("args", "queue", "priority") if given.get(key) is not None]
    if about_job and task is None:
        raise InvalidInput(f"--{about_job[0]} needs --task: name the task to enqueue")
    if not timing and task is None:
        raise InvalidInput("nothing to change: give an option such as --cron")
    job = None if task is None else job_of(context, task, given)
    edited = context.client.store.run(edit_schedule, name, timing=timing, job=job)
    _tell(edited, "is changed", as_json=as_json)


@schedule.command()
@click.argument("name")
@click.option("--reason", help="Shown with the schedule.")
@json_option
@with_context
def pause(context: CliContext, *, name: str, reason: str | None, as_json: bool) -> None:
    """Pause a schedule."""
    _tell(context.client.schedules.pause(name, reason=reason), "is paused", as_json=as_json)


@schedule.command()
@click.argument("name")
@json_option
@with_context
def resume(context: CliContext, *, name: str, as_json: bool) -> None:
    """Resume a paused schedule. Ticks during the pause are not run."""
    _tell(context.client.schedules.resume(name), "is resumed", as_json=as_json)


@schedule.command()
@click.argument("name")
@json_option
@with_context
def trigger(context: CliContext, *, name: str, as_json: bool) -> None:
    """Enqueue a job of this schedule now, paused or not."""
    id = context.client.schedules.trigger(name)
    if as_json:
        write_json({"id": id})
    else:
        echo(f"job {id}")


@schedule.command()
@click.argument("name")
@yes_option
@json_option
@with_context
def remove(context: CliContext, *, name: str, yes: bool, as_json: bool) -> None:
    """Remove a schedule. Its jobs stay.

    A schedule that code declares comes back when a worker with that code starts: pause it instead.
    """
    found = context.client.schedules.get(name)
    what = f"remove schedule {name}, {_words(found.timing)}?"
    comes_back = " A worker whose code declares it adds it again." if found.declared else ""
    confirm(f"{what}{comes_back}", yes=yes)
    context.client.schedules.remove(name)
    if as_json:
        write_json({"name": name, "removed": True})
    else:
        echo(f"schedule {name} is removed")


def _timing(given: dict[str, Any]) -> dict[str, Any]:
    """The given options about timing."""
    names = ScheduleTiming.__struct_fields__
    return {name: given[name] for name in names if given.get(name) is not None}


def _tell(info: ScheduleInfo, what: str, *, as_json: bool) -> None:
    if as_json:
        write_json(_as_json(info, 1))
        return
    coming = "" if info.next_at is None else f"; next tick {_both(info.next_at, info.timing)}"
    echo(f"schedule {info.name} {what}: {_words(info.timing)}{coming}")


def _words(timing: ScheduleTiming) -> str:
    try:
        return words(timing)
    except TenureError:  # stored by another version of the code
        return timing.cron or "?"


def _next(info: ScheduleInfo) -> object:
    if info.paused_at is not None:
        return f"paused ({info.reason})" if info.reason else "paused"
    return info.next_at


def _both(at: datetime, timing: ScheduleTiming) -> str:
    """A time in the local zone and, if it reads differently, in the schedule's zone."""
    from zoneinfo import ZoneInfo

    here = when(at)
    try:
        there = at.astimezone(ZoneInfo(timing.tz)).isoformat(sep=" ", timespec="seconds")
    except (KeyError, OSError, ValueError):
        return here
    return here if there == here else f"{here} ({there} in {timing.tz})"


def _facts(info: ScheduleInfo) -> list[tuple[str, str]]:
    timing = info.timing
    facts = [
        ("schedule", info.name),
        ("tenant", info.tenant),
        ("task", f"{info.task} {info.args}"),
        ("queue", f"{info.queue}, priority {info.priority}"),
        ("when", _words(timing)),
        ("cron", timing.cron or ""),
        ("missed", _missed(timing)),
        ("overlap", timing.overlap),
        ("jitter", f"up to {timing.jitter_seconds:g} s" if timing.jitter_seconds else ""),
        ("from", "code" if info.declared else "run time"),
        ("paused", "" if info.paused_at is None else f"since {when(info.paused_at)}"),
        ("reason", info.reason or ""),
    ]
    return [(what, text) for what, text in facts if text]


def _missed(timing: ScheduleTiming) -> str:
    if timing.catch_up == "all":
        return f"all, at most {timing.catch_up_limit}"
    return {"skip": "skipped", "latest": "only the latest"}[timing.catch_up]


def _outcome(run: ScheduleRun) -> str:
    how = "triggered, " if run.triggered else ""
    if run.job_id is None:
        return "skipped: the last job was not finished"
    return f"{how}job {run.job_id} {run.state or 'is removed'}"


def _as_json(info: ScheduleInfo, coming: int) -> dict[str, object]:
    timing = {name: getattr(info.timing, name) for name in ScheduleTiming.__struct_fields__}
    shown = as_builtins(info)
    del shown["timing"]
    return {**shown, **timing, "words": _words(info.timing), "next": info.upcoming(coming)}
