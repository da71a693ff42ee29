"""`tenure dev`: a worker for development."""

from typing import Any

import click

from tenure.cli.context import CliContext, with_context
from tenure.cli.output import echo, style
from tenure.cli.worker import work
from tenure.client import Client
from tenure.passwords import absolute_url
from tenure.rules.ticks import words


@click.command()
@click.argument("app", required=False, envvar="TENURE_APP")
@click.option("-q", "--queue", "queues", multiple=True,
              help="A queue to serve, with its slots as in gpu=1; may be repeated. Default: all "
                   "queues that tasks name.")  # fmt: skip
@click.option("--reload/--no-reload", default=True, show_default=True,
              help="Restart when a loaded source file changes.")  # fmt: skip
@click.option(
    "--log-level",
    default="INFO",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
)
@click.option("--json", "as_json", is_flag=True, help="Log JSON, one object per line.")
@with_context
def dev(context: CliContext, /, *, as_json: bool, **given: Any) -> None:
    """Run the jobs and schedules of APP, written MODULE:NAME, while you edit its code.

    One process runs everything. A missing SQLite file is created with its tables. The log has a
    line for each job, and the traceback of each job that fails for good. When a loaded source file
    changes, the process restarts: running jobs have 1 s to finish and then run again, without
    a charged attempt. Ctrl-C ends it.

    The same as `tenure worker APP --reload --log-format terminal --log-errors traceback
    --log-successes`, after a list of the tasks and the schedules.
    """
    work(
        context, log_format="json" if as_json else "terminal",
        before=None if as_json else _introduce, log_errors="traceback", log_successes=True, **given,
    )  # fmt: skip


def _introduce(app: Client) -> None:
    """Show what this application has."""
    echo(style(f"tenure dev on {absolute_url(app.url)}", bold=True), err=True)
    tasks = [f"{task.name} ({task.kind})" for task in sorted(app, key=lambda each: each.name)]
    echo(f"  tasks: {', '.join(tasks) or 'none yet; add one with @app.task()'}", err=True)
    for schedule in app.declared_schedules():
        echo(f"  schedule {schedule.name}: {words(schedule.timing)}", err=True)
    echo("  Ctrl-C ends it. In another terminal: `tenure top`, `tenure ls`", err=True)
