"""Commands that show queues and workers; pause and resume of queues."""

from collections import Counter, defaultdict
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from tenure.cli.context import CliContext, json_option, with_context
from tenure.cli.output import echo
from tenure.cli.show import ago, span, write_json, write_table
from tenure.rules.job import State

if TYPE_CHECKING:
    from tenure.client import Client

LIVE = (State.WAITING, State.SCHEDULED, State.QUEUED, State.RUNNING)
SLOW_SECONDS = 0.2
"""If a worker took longer than this to count the live jobs, its count is shown."""
OLD_SECONDS = 300.0
"""A count that is older than this is not shown."""


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def queues(ctx: click.Context, as_json: bool) -> None:
    """Show queues; pause and resume them."""
    if ctx.invoked_subcommand is None:
        _list_queues(as_json=as_json)


@with_context
def _list_queues(context: CliContext, *, as_json: bool) -> None:
    rows, counted_seconds = queue_rows(context.client)
    if as_json:
        for row in rows:
            write_json(row)
        return
    head = ("queue", "waiting", "scheduled", "queued", "running", "age", "paused")
    shown = (
        [row["queue"], row["waiting"], row["scheduled"], row["queued"], row["running"],
         age(row["oldest_seconds"]), row["paused"]]
        for row in rows
    )  # fmt: skip
    write_table(head, shown, empty="no queues with live jobs")
    if counted_seconds is not None:
        echo(counted(counted_seconds))


def age(seconds: object) -> str:
    """How long the first ready job of a queue has waited, such as 5m."""
    return span(seconds) if isinstance(seconds, float) else "-"


def counted(seconds: float) -> str:
    """How old the counts are."""
    return f"live jobs as counted {span(seconds)} ago"


def queue_rows(client: "Client") -> tuple[list[dict[str, object]], float | None]:
    """Counts per queue, the age of its first ready job, and whether it is paused.

    If there are many live jobs, the counts are those of the last sample; returns how old it is.
    """
    counts: defaultdict[str, Counter[State]] = defaultdict(Counter)
    sample = None if client.tenant else client.depth()
    if sample and sample.took_seconds >= SLOW_SECONDS and sample.age_seconds < OLD_SECONDS:
        for each in sample.queues:
            counts[each.queue][State(each.state)] += each.jobs
    else:
        sample = None
        for count in client.count_live():
            counts[count.queue][count.state] += count.jobs
    oldest = {} if client.tenant else {o.queue: o.age_seconds for o in client.oldest_ready()}
    paused = {queue.name: queue.reason or "paused" for queue in client.paused_queues()}
    rows: list[dict[str, object]] = [
        {"queue": name, **{str(state): counts[name][state] for state in LIVE},
         "oldest_seconds": oldest.get(name), "paused": paused.get(name)}
        for name in sorted({*counts, *paused})
    ]  # fmt: skip
    return rows, None if sample is None else sample.age_seconds


@queues.command()
@click.argument("name")
@click.option("--reason", help="Shown with the queue.")
@json_option
@with_context
def pause(context: CliContext, *, name: str, reason: str | None, as_json: bool) -> None:
    """Pause a queue: workers stop claiming from it. Running jobs finish."""
    context.client.pause(name, reason=reason)
    used, near = _is_used(context.client, name)
    if as_json:
        write_json({"queue": name, "paused": True, "reason": reason, "used": used})
        return
    echo(f"queue {name} is paused")
    if not used:
        hint = f"; did you mean {near}? Then run `tenure queues resume {name}`" if near else ""
        echo(f"queue {name} has no jobs, and no worker serves it{hint}", err=True)


def _is_used(client: "Client", name: str) -> tuple[bool, str | None]:
    """Has the queue live jobs, or a worker with tasks? Else a queue of a similar name."""
    served = {queue for worker in client.workers() for queue in worker.queues}
    if name in served or client.list_jobs(states=LIVE, queue=name, limit=1).jobs:
        return True, None
    known = served | {row.queue for row in client.oldest_ready()}
    near = get_close_matches(name, known, n=1)
    return False, near[0] if near else None


@queues.command()
@click.argument("name")
@json_option
@with_context
def resume(context: CliContext, *, name: str, as_json: bool) -> None:
    """Resume a paused queue."""
    was = context.client.resume(name)
    if as_json:
        write_json({"queue": name, "paused": False, "changed": was})
    else:
        echo(f"queue {name} is resumed" if was else f"queue {name} was not paused")


@click.command()
@click.option(
    "--all", "everyone", is_flag=True, help="Include workers that have not been seen lately."
)
@json_option
@with_context
def workers(context: CliContext, *, everyone: bool, as_json: bool) -> None:
    """Show the workers that are alive.

    `running` counts the jobs that a worker has now. `stuck` is from its last heartbeat: slots whose
    handlers do not stop.
    """
    seen = [worker for worker in context.client.workers() if everyone or worker.alive]
    if as_json:
        for worker in seen:
            write_json(worker)
        return
    head = ["worker", "host", "pid", "queues", "running", "stuck", "started", "seen"]
    head += ["status"] if everyone else []
    rows = (
        [w.name, w.host, w.pid, ",".join(w.queues), w.running,
         w.counts.get("stuck", 0), ago(w.started_at), ago(w.seen_at),
         *(["alive" if w.alive else "dead"] if everyone else [])]
        for w in seen
    )  # fmt: skip
    write_table(head, rows, empty="no worker is alive; start one with `tenure worker MODULE:APP`")
