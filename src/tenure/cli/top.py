"""`tenure top`: jobs, rates and workers, live."""

import os
from collections import Counter, deque
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click
import msgspec

from tenure.cli.context import CliContext, Number, json_option, with_context
from tenure.cli.jobs import progress_by_id
from tenure.cli.output import clean, echo
from tenure.cli.queues import age, counted, queue_rows
from tenure.cli.screen import full_screen, keys, sparkline
from tenure.cli.show import (
    ago,
    as_builtins,
    is_terminal,
    progress_of,
    short_error,
    table,
    write_json,
)
from tenure.passwords import shown_url
from tenure.rules.job import Job, Progress, State, WorkerSeen

if TYPE_CHECKING:
    from tenure.client import Client

RATE_POINTS = 60
RATE_SECONDS = 10.0
FAILURES = 5
RUNNING = 8
RUNNING_LOOKED_AT = 200


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the database at one moment."""

    at: datetime
    per_second: float
    finished: dict[str, int]
    """By state, in the last ten seconds."""
    queues: list[dict[str, object]]
    counted_seconds: float | None
    """How old the counts of queues are; None: they are of now."""
    workers: list[WorkerSeen]
    running: list[Job]
    """The longest running ones among the newest."""
    progress: dict[int, Progress]
    failures: list[Job]


@click.command()
@click.option("--interval", default=1.0, show_default=True, type=Number(0.1, 3600),
              help="Seconds between two updates.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print once and exit. This is the default with --json "
                                           "and when the output is not a terminal.")  # fmt: skip
@json_option
@with_context
def top(context: CliContext, *, interval: float, once: bool, as_json: bool) -> None:
    """Watch queues, rates, workers and the latest failures. `q` or Ctrl-C exits with 0."""
    view = View(context.client, context.checked_url())
    if as_json:
        seen = view.look()
        jobs = {name: [as_builtins(job) for job in getattr(seen, name)]
                for name in ("running", "failures")}  # fmt: skip
        write_json({**msgspec.structs.asdict(seen), **jobs})
        return
    if once or not is_terminal() or os.environ.get("TERM") == "dumb":
        for line in view.lines():
            echo(line)
        return
    with suppress(KeyboardInterrupt), keys() as wait_for_key, full_screen() as screen:
        key = ""
        while key not in ("q", "Q"):
            screen.paint(view.lines())
            key = wait_for_key(interval)


class View:
    """What is shown, with the rates of the last minute."""

    def __init__(self, client: "Client", url: str) -> None:
        self._client = client
        self._where = clean(shown_url(url))
        self._rates: deque[float] = deque(maxlen=RATE_POINTS)

    def look(self) -> Seen:
        """Read everything once."""
        client, now = self._client, datetime.now(UTC)
        finished: Counter[str] = Counter()
        for count in client.count_finished(now - timedelta(seconds=RATE_SECONDS), now):
            finished[count.state] += count.jobs
        newest = client.list_jobs(states={State.RUNNING}, limit=RUNNING_LOOKED_AT).jobs
        running = sorted(newest, key=lambda job: job.claimed_at or now)[:RUNNING]
        queues, counted_seconds = queue_rows(client)
        return Seen(
            at=now,
            per_second=round(finished.total() / RATE_SECONDS, 1),
            finished=dict(finished),
            queues=queues,
            counted_seconds=counted_seconds,
            workers=[] if client.tenant else [w for w in client.workers() if w.alive],
            running=running,
            progress=progress_by_id(client, running),
            failures=list(client.list_jobs(states={State.FAILED}, limit=FAILURES).jobs),
        )

    def lines(self) -> list[str]:
        """What is shown now, as lines of text."""
        seen = self.look()
        self._rates.append(seen.per_second)
        rate = f"{seen.per_second} jobs/s finished  {sparkline(self._rates, RATE_POINTS)}"
        out = [f"tenure  {self._where}", rate.rstrip(), "", *_queues(seen), ""]
        count = len(seen.workers)
        out.append(f"{count or 'no'} worker{'' if count == 1 else 's'} alive")
        if seen.workers:
            out += table(("worker", "queues", "running", "stuck", "seen"), (
                [w.name, ",".join(w.queues), w.running, w.counts.get("stuck", 0),
                 ago(w.seen_at)] for w in seen.workers))  # fmt: skip
        if seen.running:
            out += ["", "longest running jobs"]
            rows = (
                [job.id, job.task, ago(job.claimed_at),
                 progress_of(job, seen.progress.get(job.id))]
                for job in seen.running
            )  # fmt: skip
            out += table(("id", "task", "age", "progress"), rows)
        if seen.failures:
            out += ["", "latest failures"]
            rows = ([job.id, job.task, ago(job.finished_at), short_error(job)]
                    for job in seen.failures)  # fmt: skip
            out += table(("id", "task", "age", "error"), rows)
        return out


def _queues(seen: Seen) -> list[str]:
    if not seen.queues:
        return ["no live jobs"]
    head = ("queue", "waiting", "scheduled", "queued", "running", "age", "paused")
    age_of_counts = [] if seen.counted_seconds is None else [counted(seen.counted_seconds)]
    return age_of_counts + table(head, (
        [row["queue"], row["waiting"], row["scheduled"], row["queued"], row["running"],
         age(row["oldest_seconds"]), row["paused"]] for row in seen.queues))  # fmt: skip
