"""Commands that look at jobs, and the one that makes them."""

import json
from collections import Counter
from itertools import islice

import click

from tenure.cli.desk import Desk, json_option, with_desk
from tenure.cli.filters import parse
from tenure.cli.show import ago, clean, table, when, write_json, write_table
from tenure.codec import encode
from tenure.errors import InvalidInput, JobFailed
from tenure.job import Job, NewJob, State, Unique

ERRORS_LOOKED_AT = 10_000


@click.command()
@click.argument("task")
@click.option("--args", "args", default="{}", help="Arguments by name, as a JSON object.")
@click.option("--queue", default="default", show_default=True)
@click.option("--priority", default=0, show_default=True, help="Lower goes first, -100 to 100.")
@click.option("--delay-seconds", type=float, help="Not before so many seconds from now.")
@click.option("--key", help="At most one live job per task and key.")
@click.option("--max-attempts", default=5, show_default=True)
@click.option("--timeout-seconds", type=float, help="Stop an attempt that runs longer.")
@click.option("--wait", is_flag=True, help="Wait for its end; exit 1 unless it succeeds.")
@json_option
@with_desk
def enqueue(desk: Desk, *, task: str, args: str, wait: bool, as_json: bool, key: str | None,
            queue: str, priority: int, delay_seconds: float | None, max_attempts: int,
            timeout_seconds: float | None) -> None:  # fmt: skip
    """Put one job of TASK in line.

    The task's code is not needed here, so its arguments are checked by the worker.
    """
    job = NewJob(
        task=task, args=encode(_object(args), what="--args"), queue=queue, priority=priority,
        delay_seconds=delay_seconds, unique=None if key is None else Unique(key=key),
        max_attempts=max_attempts, timeout_seconds=timeout_seconds,
    )  # fmt: skip
    [enqueued] = desk.client.store.enqueue([job])
    if not wait:
        if as_json:
            write_json(enqueued)
        else:
            click.echo(f"job {enqueued.id}" if enqueued.created else f"job {enqueued.id} (existed)")
        return
    finished = desk.client.wait(enqueued.id)
    write_json(finished) if as_json else click.echo(finished.result or finished.state)
    if finished.state is not State.SUCCEEDED:
        raise JobFailed(
            f"job {finished.id} is {finished.state}: {_short_error(finished)}",
            state=finished.state, error=finished.error,
        )  # fmt: skip


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"--args is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(
            '--args must be a JSON object of arguments by name, such as {"to": "me"}'
        )
    return value


@click.command()
@click.argument("filter", nargs=-1)
@click.option("--limit", default=50, show_default=True, help="At most so many; 0 means all.")
@json_option
@with_desk
def ls(desk: Desk, *, filter: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List jobs, newest first.

    FILTER: ids, or words such as state=failed,cancelled queue=mail task=app.send.
    """
    jobs = islice(parse(filter).find(desk.client), limit or None)
    if as_json:
        for job in jobs:
            write_json(job)
        return
    head = ("id", "state", "queue", "task", "attempt", "age", "reason")
    write_table(head, (_row(job) for job in jobs), empty="no jobs")


def _row(job: Job) -> tuple[object, ...]:
    charged = f"{min(job.attempts + (not job.state.final), job.max_attempts)}/{job.max_attempts}"
    return job.id, job.state, job.queue, job.task, charged, ago(job.created_at), job.reason


@click.command()
@click.argument("id", type=int)
@json_option
@with_desk
def get(desk: Desk, *, id: int, as_json: bool) -> None:
    """Show everything about one job."""
    job = desk.client.get(id)
    if as_json:
        write_json(job)
        return
    for name in job.__struct_fields__:
        value = getattr(job, name)
        if value is None or value in ("", False):
            continue
        if name == "error":
            _write_error(str(value))
        else:
            click.echo(
                f"{name:18} {when(value) if hasattr(value, 'astimezone') else clean(str(value))}"
            )


def _write_error(error: str) -> None:
    told = json.loads(error)
    click.echo(f"{'error':18} {clean(told.get('type', ''))}: {clean(told.get('message', ''))}")
    for part in ("traceback", "output"):
        for line in told.get(part, "").splitlines():
            click.echo(f"    {clean(line)}")


@click.command()
@click.argument("id", type=int)
@json_option
@with_desk
def why(desk: Desk, *, id: int, as_json: bool) -> None:
    """Say where a job is, and why it does not run."""
    words = desk.client.why(id)
    write_json({"id": id, "why": words}) if as_json else click.echo(words)


@click.command()
@click.argument("id", type=int)
@json_option
@with_desk
def timeline(desk: Desk, *, id: int, as_json: bool) -> None:
    """Tell the story of one job."""
    story = desk.client.timeline(id)
    if as_json:
        for event in story:
            write_json(event)
        return
    rows = ((event.at, event.kind, event.token, event.worker, event.detail) for event in story)
    write_table(("at", "event", "token", "worker", "detail"), rows)


@click.command()
@click.argument("filter", nargs=-1)
@json_option
@with_desk
def errors(desk: Desk, *, filter: tuple[str, ...], as_json: bool) -> None:
    """Failed jobs, grouped by task and error, most frequent first."""
    chosen = parse(filter)
    groups: Counter[tuple[str, str]] = Counter()
    latest: dict[tuple[str, str], Job] = {}
    failed = chosen.find(desk.client, frozenset({State.FAILED}))
    for job in islice(failed, ERRORS_LOOKED_AT):
        group = (job.task, _short_error(job))
        groups[group] += 1
        latest.setdefault(group, job)
    rows = [
        {"jobs": count, "task": task, "error": error, "latest": latest[task, error].id,
         "age": ago(latest[task, error].finished_at)}
        for (task, error), count in groups.most_common()
    ]  # fmt: skip
    if as_json:
        for row in rows:
            write_json(row)
        return
    head = ("jobs", "task", "latest", "age", "error")
    lines = table(head, ([row[name] for name in head] for row in rows))
    click.echo("\n".join(lines) if rows else "no failed jobs")


def _short_error(job: Job) -> str:
    if job.error is None:
        return job.reason or "?"
    told = json.loads(job.error)
    message = told.get("message", "").splitlines()
    return f"{told.get('type', '?')}: {message[0] if message else ''}".rstrip(": ")
