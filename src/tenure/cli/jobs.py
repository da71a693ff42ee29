"""Commands that show jobs, and `enqueue`."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tenure.cli.context import CliContext, json_option, with_context
from tenure.cli.exit import Interrupted, TaskNotFound, interrupted_later
from tenure.cli.filters import SEE_FILTERS, Chosen, HelpOfFilters, parse
from tenure.cli.output import clean, echo
from tenure.cli.show import (
    ago,
    columns,
    duration,
    error_line,
    in_words,
    progress_of,
    short_error,
    when,
    write_json,
    write_table,
)
from tenure.errors import InvalidInput, JobFailed, PayloadInvalid, StoreUnavailable, WaitTimeout
from tenure.rules.codec import decode, encode
from tenure.rules.filters import Order
from tenure.rules.job import ErrorInfo, Job, Json, NewJob, Progress, State, Unique

if TYPE_CHECKING:
    from tenure.client import Client

ERRORS_LOOKED_AT = 10_000
MAX_PROGRESS = 1000
WHY_SECONDS = 3.0
"""`enqueue --wait` says after this time why the job does not run."""
NOT_SERVED = "no worker serves this queue"
USE_APP = "; or give --app, which uses the task's own queue"
PLACES = {"async": "on the event loop", "thread": "in a thread", "process": "in a child process"}
WIDE = 70
"""A terminal with fewer columns shows times without dates."""


@click.command()
@click.argument("task")
@click.option("--args", "args", default="{}", help="Arguments by name, as a JSON object.")
@click.option("--app", envvar="TENURE_APP", help="MODULE:NAME of the application that has TASK.")
@click.option("--unchecked", is_flag=True, help="Do not check the task against the application.")
@click.option("--queue", help="[default: the task's, or default]")
@click.option("--priority", type=int, help="-100 to 100; lower runs first.  [default: 0]")
@click.option("--delay-seconds", type=float, help="Start no earlier than this from now.")
@click.option("--key", help="Unique key: at most one live job per task and key.")
@click.option("--max-attempts", type=int, help="[default: the task's, or 5]")
@click.option("--timeout-seconds", type=float, help="Stop an attempt that runs longer.")
@click.option("--start-within-seconds", type=float,
              help="Skip the job if it has not started after this time.")  # fmt: skip
@click.option("--finish-within-seconds", type=float,
              help="The job's deadline; shown, not enforced.")  # fmt: skip
@click.option(
    "--wait", is_flag=True, help="Wait until the job finishes; exit with 1 unless it succeeds."
)
@json_option
@with_context
def enqueue(context: CliContext, /, *, task: str, args: str, app: str | None, unchecked: bool,
            wait: bool, as_json: bool, **options: object) -> None:  # fmt: skip
    """Enqueue one job of TASK.

    With --app, TENURE_APP or `app` in pyproject.toml this command checks the task and its
    arguments, and uses the task's own options. Otherwise the worker checks them.
    """
    job = job_of(context, task, {"args": args, "app": app, "unchecked": unchecked, **options})
    id = None
    try:
        with interrupted_later():  # never leave a job without printing its id
            [enqueued] = context.client.store.enqueue([job])
            id = enqueued.id
        chosen = options.get("queue") or app or context.settings.get("app")
        hint = "" if chosen else USE_APP
        finished = _wait(context.client, id, hint) if wait else None
    except KeyboardInterrupt:
        if id is None:
            raise
        raise Interrupted(f"interrupted; job {id} is not affected, see `tenure get {id}`") from None
    except StoreUnavailable as error:
        if id is None:
            raise
        raise StoreUnavailable(f"job {id} is enqueued, see `tenure get {id}`; {error}") from error
    if finished is not None:
        _tell_end(finished, as_json=as_json)
        return
    if as_json:
        write_json(enqueued)
    else:
        echo(f"job {id}" if enqueued.created else f"job {id} (existed)")
    if not (unchecked or app or context.settings.get("app") or context.tenant):
        _tell_if_unknown(context.client, task)


def _tell_if_unknown(client: "Client", task: str) -> None:
    """Say on stderr that no worker that is alive has such a task, and that no job of it has run."""
    known = {name for worker in client.workers() if worker.alive for name in worker.tasks}
    if task in known or client.store.list_jobs("attempts>0", task=task, limit=1).jobs:
        return
    near = get_close_matches(task, known, n=1)
    guess = f"did you mean {near[0]}?" if near else "check the name, or give --app to check it"
    echo(f"no worker that is alive has task {task}, and no job of it has run; {guess}", err=True)


def _wait(client: "Client", id: int, hint: str) -> Job:
    """The finished job. While it does not run, stderr says why, with a hint for a wrong queue."""
    told = None
    while True:
        try:
            return client.wait(id, timeout_seconds=WHY_SECONDS)
        except WaitTimeout:
            job = client.get(id)
            why = client.why(id)
            cause = (job.state, job.worker, why.partition(";")[2])
            if job.state is not State.RUNNING and cause != told:
                echo(f"job {id} waits: {why}{hint if NOT_SERVED in why else ''}", err=True)
            told = cause


JOB_OPTIONS = (
    "queue", "priority", "delay_seconds", "key", "max_attempts", "timeout_seconds",
    "start_within_seconds", "finish_within_seconds",
)  # fmt: skip


def job_of(context: CliContext, task: str, given: dict[str, Any]) -> NewJob:
    """The job that the options describe, checked against the application if one is given."""
    encoded = encode(_object(given.get("args") or "{}"), what="--args")
    options = {name: given[name] for name in JOB_OPTIONS if given.get(name) is not None}
    path = None if given.get("unchecked") else given.get("app") or context.settings.get("app")
    if path is None:
        return _new_job(task, encoded, options)
    return _checked(context, path, task, encoded, options)


def _new_job(task: str, args: Json, given: dict[str, Any]) -> NewJob:
    key = given.pop("key", None)
    return NewJob(task=task, args=args, unique=None if key is None else Unique(key=key), **given)


def _checked(
    context: CliContext, path: str, name: str, args: Json, given: dict[str, Any]
) -> NewJob:
    """The job as the application would create it. Without --url the application's URL is used."""
    from tenure.cli.apps import load_app

    app = load_app(path)
    task = app.find(name)
    if task is None:
        near = get_close_matches(name, [each.name for each in app], n=1)
        hint = f"did you mean {near[0]}?" if near else f"tasks: {', '.join(t.name for t in app)}"
        raise TaskNotFound(f"{path} has no task {name!r}; {hint}")
    try:
        words, named = task.signature.unpack(args)
    except PayloadInvalid as error:
        why = str(error).removeprefix(f"the arguments do not fit {name}: ")
        raise InvalidInput(f"--args does not fit {name}: {why}") from error
    job = task.options(**given).call(*words, **named).job
    context.agree_on_url(app)
    return msgspec.structs.replace(job, args=args)  # the worker fills in the defaults


def _tell_end(finished: Job, *, as_json: bool) -> None:
    if as_json:
        write_json(finished)
    elif finished.state is State.SUCCEEDED:
        echo(clean(finished.result_json or "null"))
    if finished.state is not State.SUCCEEDED:
        raise JobFailed(
            f"job {finished.id} is {finished.state}: {short_error(finished)}",
            state=finished.state, error=finished.error,
        )  # fmt: skip


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"--args is not JSON: {error}") from error
    except (ValueError, RecursionError):  # too many digits, or nested too deeply: decode says so
        value = decode(text)
    if not isinstance(value, dict):
        raise InvalidInput(
            '--args must be a JSON object of arguments by name, such as {"to": "me"}'
        )
    return value


@click.command(cls=HelpOfFilters)
@click.argument("filter", nargs=-1)
@click.option("--limit", default=50, show_default=True, type=click.IntRange(min=0),
              help="Number of jobs to list; 0 means all.")  # fmt: skip
@click.option(
    "--order", type=click.Choice([order.value for order in Order]), help="[default: newest]"
)
@click.option("--seconds", default=10.0, show_default=True, type=click.FloatRange(min=0),
              help="Search for this long; 0 means to the end.")  # fmt: skip
@click.option("--after", help="Go on where a search that ran out of time has ended.")
@json_option
@with_context
def ls(context: CliContext, *, filter: tuple[str, ...], limit: int, order: str | None,
       seconds: float, after: str | None, as_json: bool) -> None:  # fmt: skip
    """List jobs, newest first.

    FILTER: ids, or words such as state=failed,cancelled queue=mail 'created>2h'.
    """
    chosen = parse(filter)
    jobs = chosen.find(
        context.client,
        limit=limit or None,
        seconds=seconds or None,
        after=after,
        order=None if order is None else Order(order),
    )
    if as_json:
        for job in jobs:
            write_json(job)
        _tell_rest(chosen)
        return
    shown = list(jobs)
    _tell_rest(chosen, found=len(shown))
    progress = progress_by_id(context.client, shown)
    head = ("id", "state", "queue", "task", "attempt", "age", "reason")
    if not progress:
        write_table(head, (_row(job) for job in shown), empty="no jobs")
        return
    rows = ((*_row(job), progress_of(job, progress.get(job.id))) for job in shown)
    write_table((*head, "progress"), rows)


def _tell_rest(chosen: Chosen, found: int | None = None) -> None:
    """A search that ran out of time says so, and how to go on."""
    if chosen.next is not None:
        so_far = ", none found yet" if found == 0 else ""
        echo(
            f"looked at {chosen.looked_at} jobs{so_far}; continue with --after {chosen.next}, or "
            "search longer with --seconds", err=True,
        )  # fmt: skip


def progress_by_id(client: "Client", jobs: Sequence[Job]) -> dict[int, Progress]:
    """The progress of those that run and have reported some. The store of a tenant shows none."""
    running = [job.id for job in jobs if job.state is State.RUNNING]
    if not running or client.tenant:
        return {}
    return client.store.progress_many(running[:MAX_PROGRESS])


def _row(job: Job) -> tuple[object, ...]:
    charged = f"{min(job.attempts + (not job.state.final), job.max_attempts)}/{job.max_attempts}"
    reason = short_error(job) if job.state is State.FAILED else job.reason
    if (
        job.state is State.RUNNING or reason == job.state
    ):  # why an earlier attempt ended; a repetition
        reason = None
    return job.id, job.state, job.queue, job.task, charged, ago(job.created_at), reason


@click.command()
@click.argument("id", type=int)
@json_option
@with_context
def get(context: CliContext, *, id: int, as_json: bool) -> None:
    """Show everything about one job."""
    job = context.client.get(id)
    if as_json:
        write_json(job)
        return
    if words := progress_of(job, context.client.progress(id)):
        echo(f"{'progress':18} {words}")
    for field in job.__struct_fields__:
        value = getattr(job, field)
        if value is None or value in ("", False):
            continue
        if job.error is not None and field == "error_json":
            _write_error(job.error)
        elif job.duration_seconds is not None and field == "duration_seconds":
            echo(f"{'duration':18} {duration(job.duration_seconds)}")
        elif job.needs is not None and field == "needs":
            echo(f"{'runs':18} {PLACES[job.needs]}")
        else:
            text = when(value) if isinstance(value, datetime) else clean(str(value))
            echo(f"{field.removesuffix('_json'):18} {text}")


def _write_error(error: ErrorInfo) -> None:
    echo(f"{'error':18} {clean(str(error))}")
    for part in (error.traceback, error.output or ""):
        for line in part.splitlines():
            echo(f"    {clean(line)}")


@click.command()
@click.argument("id", type=int)
@json_option
@with_context
def why(context: CliContext, *, id: int, as_json: bool) -> None:
    """Explain where a job is and why it does not run."""
    words = context.client.why(id)
    write_json({"id": id, "why": words}) if as_json else echo(words)


@click.command()
@click.argument("id", type=int)
@json_option
@with_context
def timeline(context: CliContext, *, id: int, as_json: bool) -> None:
    """Show the history of one job: what happened, when, and in which worker."""
    story = context.client.timeline(id)
    if as_json:
        for event in story:
            write_json(event)
        return
    short = (columns() or WIDE) < WIDE
    details = [in_words(event.detail) for event in story]
    if story[-1].kind == State.FAILED:
        details[-1] = short_error(context.client.get(id))
    rows = (
        (when(event.at, short=short), event.kind, event.token, event.worker,
         None if detail == event.kind else detail)
        for event, detail in zip(story, details, strict=True)
    )  # fmt: skip
    write_table(("at", "event", "token", "worker", "detail"), rows)


@click.command()
@click.argument("id", type=int)
@json_option
@with_context
def attempts(context: CliContext, *, id: int, as_json: bool) -> None:
    """Show every attempt of one job: where and how long it ran, and how it ended."""
    listed = context.client.attempts(id)
    if as_json:
        for attempt in listed:
            write_json(attempt)
        return
    short = (columns() or WIDE) < WIDE
    rows = (
        (
            each.number,
            when(each.started_at, short=short),
            each.outcome,
            None if each.duration_seconds is None else f"{each.duration_seconds:.3g} s",
            {True: "yes", False: "no", None: None}[each.charged],
            each.token,
            each.worker,
            each.notes_json,
            each.reason if each.error is None else error_line(each.error),
        )
        for each in listed
    )
    head = (
        "number", "started", "outcome", "ran", "charged", "token", "worker", "notes", "error",
    )  # fmt: skip
    write_table(head, rows, empty="no attempts")


@click.command()
@click.argument("id", type=int)
@json_option
@with_context
def steps(context: CliContext, *, id: int, as_json: bool) -> None:
    """Show the recorded steps of one job and their results, in order."""
    recorded = context.client.steps(id)
    if as_json:
        for step in recorded:
            write_json(step)
        return
    short = (columns() or WIDE) < WIDE
    rows = (
        (
            when(step.recorded_at, short=short),
            step.name,
            step.token,
            step.function,
            step.result_json,
        )
        for step in recorded
    )
    head = ("at", "step", "token", "function", "result")
    write_table(head, rows, empty="no steps")


@click.command(epilog=SEE_FILTERS)
@click.argument("filter", nargs=-1)
@json_option
@with_context
def errors(context: CliContext, *, filter: tuple[str, ...], as_json: bool) -> None:
    """Show failed jobs, grouped by task and error, most frequent first."""
    chosen = parse(filter)
    groups: Counter[tuple[str, str]] = Counter()
    latest: dict[tuple[str, str], Job] = {}
    failed = chosen.find(context.client, frozenset({State.FAILED}))
    for job in islice(failed, ERRORS_LOOKED_AT):
        group = (job.task, short_error(job))
        groups[group] += 1
        latest.setdefault(group, job)
    if groups.total() == ERRORS_LOOKED_AT:
        echo(f"only the latest {ERRORS_LOOKED_AT} are counted; use a filter", err=True)
    found = [(count, *group, latest[group]) for group, count in groups.most_common()]
    if as_json:
        for count, task, error, job in found:
            write_json({"jobs": count, "task": task, "error": error, "latest": job.id,
                        "latest_at": job.finished_at})  # fmt: skip
        return
    head = ("jobs", "task", "latest", "age", "error")
    rows = ((count, task, job.id, ago(job.finished_at), error) for count, task, error, job in found)
    write_table(head, rows, empty="no failed jobs")
