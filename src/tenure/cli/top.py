"""`tenure top`: jobs, rates and workers, live."""

import time
from collections import deque
from datetime import UTC, datetime, timedelta

import click

from tenure.cli.desk import Desk, json_option, with_desk
from tenure.cli.queues import age, queue_rows
from tenure.cli.screen import full_screen, sparkline
from tenure.cli.show import ago, clean, is_terminal, table, write_json
from tenure.client import Client
from tenure.job import State

RATE_POINTS = 60
RATE_SECONDS = 10.0


@click.command()
@click.option("--interval", default=1.0, show_default=True, help="Seconds between two looks.")
@click.option("--once", is_flag=True, help="Look once and end; the default without a terminal.")
@json_option
@with_desk
def top(desk: Desk, *, interval: float, once: bool, as_json: bool) -> None:
    """Watch queues, rates, workers and the latest failures. Ctrl-C ends it."""
    view = View(desk.client)
    if as_json:
        write_json(view.look())
        return
    if once or not is_terminal():
        click.echo("\n".join(view.lines()))
        return
    with full_screen() as screen:
        try:
            while True:
                screen.paint(view.lines())
                time.sleep(max(0.1, interval))
        except KeyboardInterrupt:
            return


class View:
    """What there is to see, with the rates of the last minute."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._rates: deque[float] = deque(maxlen=RATE_POINTS)

    def look(self) -> dict[str, object]:
        """One look at everything."""
        now = datetime.now(UTC)
        finished = self._client.count_finished(now - timedelta(seconds=RATE_SECONDS), now)
        done: dict[str, int] = {}
        for count in finished:
            done[count.state] = done.get(count.state, 0) + count.jobs
        return {
            "at": now,
            "per_second": round(sum(done.values()) / RATE_SECONDS, 1),
            "finished": done,
            "queues": queue_rows(self._client),
            "workers": [worker for worker in self._client.workers() if worker.alive],
        }

    def lines(self) -> list[str]:
        """The look as lines of text."""
        seen = self.look()
        self._rates.append(float(str(seen["per_second"])))
        queues: list[dict[str, object]] = seen["queues"]  # type: ignore[assignment]
        workers = [w for w in self._client.workers() if w.alive]
        failed = self._client.list_jobs(states={State.FAILED}, limit=5).jobs
        where = clean(self._client.url.split("@")[-1])
        rate = f"{seen['per_second']} jobs/s finished  {sparkline(self._rates, RATE_POINTS)}"
        out = [f"tenure  {where}   {rate}", ""]
        head = ("queue", "waiting", "scheduled", "queued", "running", "age", "paused")
        out += table(head, ([row["queue"], row["waiting"], row["scheduled"], row["queued"],
                             row["running"], age(row["oldest_seconds"]), row["paused"]]
                            for row in queues))  # fmt: skip
        out += ["", f"{len(workers)} workers alive"]
        if workers:
            out += table(("worker", "queues", "in hand", "stuck", "seen"), (
                [w.name, ",".join(w.queues), w.counts.get("in hand", 0), w.counts.get("stuck", 0),
                 ago(w.seen_at)] for w in workers))  # fmt: skip
        if failed:
            out += ["", "latest failures"]
            out += table(("id", "task", "age", "reason"), (
                [job.id, job.task, ago(job.finished_at), job.reason] for job in failed)
            )  # fmt: skip
        return out
