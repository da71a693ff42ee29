"""`tenure stats`: rates, failures, waits and run times, and how many live jobs there are."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from tenure.cli.context import CliContext, json_option, with_context
from tenure.cli.output import echo
from tenure.cli.show import span, write_json, write_table
from tenure.errors import InvalidInput
from tenure.rules.filters.terms import Moment
from tenure.rules.filters.times import compared
from tenure.rules.statistics import By, Depth, Statistics

if TYPE_CHECKING:
    from tenure.client import Client

GROUPS: dict[str, tuple[By, ...]] = {
    "both": ("queue", "task"), "queue": ("queue",), "task": ("task",), "all": (),
}  # fmt: skip


@click.command()
@click.option("--since", default="1h", show_default=True,
              help="Begin here: 2h (ago), today, 2026-01-31 or a time with its zone.")  # fmt: skip
@click.option("--until", default="now", show_default=True, help="End here.")
@click.option("--by", default="both", show_default=True, type=click.Choice(list(GROUPS)),
              help="One line for each queue, each task, both, or one line for all.")  # fmt: skip
@click.option(
    "--exact", is_flag=True, help="Count stored jobs by state in place of it; reads each live job."
)
@json_option
@with_context
def stats(
    context: CliContext, *, since: str, until: str, by: str, exact: bool, as_json: bool
) -> None:
    """Show what has ended: rates, failures, waits and run times.

    Workers write these statistics every ten seconds. `p50` and `p95` are estimates: half of the
    jobs, and 95 % of them, took no longer. Below that: how many live jobs there were when a worker
    last counted them. A tenant uses --exact.
    """
    now = datetime.now(UTC)
    begin, end = _moment(since, now), None if until == "now" else _moment(until, now)
    if exact:
        _count(context.client, begin, end or now + timedelta(minutes=1), as_json=as_json)
        return
    found = context.client.statistics(begin, end, by=GROUPS[by])
    if as_json:
        for each in found:
            write_json(_facts(each))
        return
    _write(found, GROUPS[by])
    _write_depth(context.client.depth())


def _moment(text: str, now: datetime) -> datetime:
    at = compared(">=", text, "UTC").low
    if isinstance(at, Moment):
        return at.at(now)
    if not isinstance(at, datetime):
        raise InvalidInput(f"{text!r:.60} is not a time")
    return at


def _facts(each: Statistics) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "queue": each.queue, "task": each.task, "since": each.since, "seconds": each.seconds,
        "counts": each.counts, "finished": each.finished, "per_second": each.per_second,
        "failure_ratio": each.failure_ratio,
    }  # fmt: skip
    for name, times in (("wait", each.wait), ("run", each.run)):
        facts[name] = {
            "count": times.count, "mean": times.mean, "p50": times.p50, "p95": times.p95,
        }  # fmt: skip
    return facts


def _write(found: Sequence[Statistics], by: Sequence[By]) -> None:
    head = [*by, "succeeded", "failed", "other", "again", "per second", "failures", "wait p50",
            "wait p95", "run p50", "run p95"]  # fmt: skip
    write_table(head, (_row(each, by) for each in found), empty="nothing has ended in this time")


def _row(each: Statistics, by: Sequence[By]) -> list[object]:
    count = each.counts.get
    ratio = each.failure_ratio
    return [
        *(getattr(each, name) for name in by), count("succeeded", 0), count("failed", 0),
        count("cancelled", 0) + count("skipped", 0),
        count("retried", 0) + count("snoozed", 0) + count("crashed", 0),
        f"{each.per_second:.3g}", "-" if ratio is None else f"{ratio:.1%}",
        *(_seconds(value) for value in (each.wait.p50, each.wait.p95, each.run.p50, each.run.p95)),
    ]  # fmt: skip


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g} s" if value < 90 else span(value)


def _write_depth(depth: Depth | None) -> None:
    if depth is None:
        return
    echo("")
    echo(f"live jobs, as counted {span(depth.age_seconds)} ago")
    rows = ([each.queue, each.state, each.jobs] for each in depth.queues)
    write_table(("queue", "state", "jobs"), rows, empty="no live jobs")


def _count(client: "Client", since: datetime, until: datetime, *, as_json: bool) -> None:
    """Count rows. With many live jobs this takes seconds."""
    counts = [*client.count_live(), *client.count_finished(since, until)]
    if as_json:
        for count in counts:
            write_json(count)
        return
    counts.sort(key=lambda c: (c.tenant, c.queue, c.task, c.state))
    tenants = ("tenant",) if any(count.tenant for count in counts) else ()
    head = (*tenants, "queue", "task", "state", "jobs")
    rows = ([getattr(count, name) for name in head] for count in counts)
    write_table(head, rows, empty="no jobs")
