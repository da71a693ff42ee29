"""Commands about queues, workers and numbers."""

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from tenure.cli.context import Desk, Number, json_option, with_desk
from tenure.cli.show import ago, span, write_json, write_table
from tenure.rules.job import State
from tenure.rules.limits import LONG_AGO

if TYPE_CHECKING:
    from tenure.client import Client

LIVE = (State.WAITING, State.SCHEDULED, State.QUEUED, State.RUNNING)


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def queues(ctx: click.Context, as_json: bool) -> None:
    """Show queues; `queues pause NAME` and `queues resume NAME`."""
    if ctx.invoked_subcommand is None:
        _list_queues(as_json=as_json)


@with_desk
def _list_queues(desk: Desk, *, as_json: bool) -> None:
    rows = queue_rows(desk.client)
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


def age(seconds: object) -> str:
    """How long a head of line has waited, in short."""
    return span(seconds) if isinstance(seconds, float) else "-"


def queue_rows(client: "Client") -> list[dict[str, object]]:
    """What is in each queue, how old its head is, and whether it is paused."""
    counts: defaultdict[str, Counter[State]] = defaultdict(Counter)
    for count in client.count_live():
        counts[count.queue][count.state] += count.jobs
    oldest = {} if client.tenant else {o.queue: o.age_seconds for o in client.oldest_ready()}
    paused = {queue.name: queue.reason or "paused" for queue in client.paused_queues()}
    return [
        {"queue": name, **{str(state): counts[name][state] for state in LIVE},
         "oldest_seconds": oldest.get(name), "paused": paused.get(name)}
        for name in sorted({*counts, *paused})
    ]  # fmt: skip


@queues.command()
@click.argument("name")
@click.option("--reason", help="Why; shown to whoever asks.")
@json_option
@with_desk
def pause(desk: Desk, *, name: str, reason: str | None, as_json: bool) -> None:
    """Stop claims from a queue. Running jobs finish."""
    desk.client.pause(name, reason=reason)
    if as_json:
        write_json({"queue": name, "paused": True, "reason": reason})
    else:
        click.echo(f"queue {name} is paused")


@queues.command()
@click.argument("name")
@json_option
@with_desk
def resume(desk: Desk, *, name: str, as_json: bool) -> None:
    """Let a paused queue be claimed from again."""
    was = desk.client.resume(name)
    if as_json:
        write_json({"queue": name, "paused": False, "changed": was})
    else:
        click.echo(f"queue {name} goes on" if was else f"queue {name} was not paused")


@click.command()
@click.option("--all", "everyone", is_flag=True, help="Also those that have not been seen lately.")
@json_option
@with_desk
def workers(desk: Desk, *, everyone: bool, as_json: bool) -> None:
    """Show the workers that are alive."""
    seen = [worker for worker in desk.client.workers() if everyone or worker.alive]
    if as_json:
        for worker in seen:
            write_json(worker)
        return
    head = ("worker", "host", "pid", "queues", "in hand", "stuck", "started", "seen")
    rows = (
        [w.name, w.host, w.pid, ",".join(w.queues), w.counts.get("in hand", 0),
         w.counts.get("stuck", 0), ago(w.started_at), ago(w.seen_at)]
        for w in seen
    )  # fmt: skip
    write_table(head, rows, empty="no worker is alive; start one with `tenure worker MODULE:APP`")


@click.command()
@click.option("--hours", default=24.0, show_default=True, type=Number(0, 876_000),
              help="Finished jobs of the last hours.")  # fmt: skip
@json_option
@with_desk
def stats(desk: Desk, *, hours: float, as_json: bool) -> None:
    """Count jobs by queue, task and state: the live ones, and those finished lately."""
    now = datetime.now(UTC)
    since = max(LONG_AGO, now - timedelta(hours=hours))
    client = desk.client
    counts = [*client.count_live(), *client.count_finished(since, now + timedelta(minutes=1))]
    if as_json:
        for count in counts:
            write_json(count)
        return
    counts.sort(key=lambda c: (c.tenant, c.queue, c.task, c.state))
    tenants = ("tenant",) if any(count.tenant for count in counts) else ()
    head = (*tenants, "queue", "task", "state", "jobs")
    rows = ([getattr(count, name) for name in head] for count in counts)
    write_table(head, rows, empty="no jobs")
