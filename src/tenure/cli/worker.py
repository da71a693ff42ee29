"""`tenure worker`: run jobs."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tenure.cli.apps import load_app
from tenure.cli.context import CliContext, refuse_other_program, with_context
from tenure.cli.exit import write_errors_as_json
from tenure.cli.reload import Reloader, is_child
from tenure.client import Client
from tenure.errors import ConfigError, StoreUnavailable
from tenure.store import open_store
from tenure.store.url import sqlite_path
from tenure.worker.logs import Format, configure_logging
from tenure.worker.settings import Settings
from tenure.worker.worker import Worker

log = logging.getLogger("tenure.worker")

IN_DEVELOPMENT: Settings = {"drain_seconds": 1.0, "kill_seconds": 1.0}
"""With --reload, a restart and Ctrl-C wait briefly for running jobs."""
ENDING_SECONDS = 5.0
"""The time to write settlements and to close connections, beside the limits for jobs."""


@click.command()
@click.argument("app", required=False, envvar="TENURE_APP")
@click.option("-q", "--queue", "queues", multiple=True,
              help="A queue to serve, with its slots as in gpu=1; may be repeated. Default: all "
                   "queues that tasks name.")  # fmt: skip
@click.option("--processes", default=1, show_default=True, help="Worker processes.")
@click.option("--async-slots", type=int, help="Running coroutines at most.  [default: 100]")
@click.option("--thread-slots", type=int, help="Running threads at most.  [default: 8]")
@click.option("--process-slots", type=int, help="Child processes at most.  [default: CPUs]")
@click.option("--lease-seconds", type=float, help="Length of a lease.  [default: 30]")
@click.option("--heartbeat-seconds", type=float, help="Time between heartbeats.  [default: 10]")
@click.option("--drain-seconds", type=float, help="Time for running jobs at a stop.  [default: 25]")
@click.option("--keep-succeeded-seconds", "keep_succeeded", multiple=True,
              help="Keep jobs that succeed for this time: 0 not at all, inf for ever. For a queue: "
                   "gpu=inf; may be repeated.  [default: 7 days]")  # fmt: skip
@click.option("--keep-other-seconds", "keep_other", multiple=True,
              help="The same for other finished jobs.  [default: 30 days]")  # fmt: skip
@click.option("--prune-seconds", type=float,
              help="Time between two prunes of the database.  [default: 3600]")  # fmt: skip
@click.option("--unknown-task-seconds", type=float,
              help="Fail a job after no worker has had its task for this time.  [default: 7 days]"
              )  # fmt: skip
@click.option("--until-idle", is_flag=True, default=None,
              help="End when no job of the queues is ready, running or due soon.")  # fmt: skip
@click.option("--idle-seconds", type=float,
              help="With --until-idle: how soon is soon.  [default: 1]")  # fmt: skip
@click.option("--max-jobs", type=int,
              help="End after this many jobs. With --processes, each process is replaced "
                   "then.")  # fmt: skip
@click.option("--max-jobs-per-child", type=int,
              help="Replace the child process of isolated tasks after this many jobs.")  # fmt: skip
@click.option("--health-file", help="Touch this file while claims succeed.")
@click.option(
    "--log-level",
    default="INFO",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
)
@click.option("--log-format", default="text", show_default=True,
              type=click.Choice(["text", "terminal", "json"]),
              help="terminal: short lines in colour.")  # fmt: skip
@click.option("--log-errors", type=click.Choice(["type", "message", "traceback"]),
              help="How much of a handler's error is logged.  [default: traceback in a terminal, "
                   "else type]")  # fmt: skip
@click.option("--log-successes/--no-log-successes", default=None,
              help="Log a line for each job that succeeds.  [default: in a terminal]")  # fmt: skip
@click.option("--reload", is_flag=True,
              help="For development: restart when a loaded source file changes. Running jobs have "
                   "1 s to finish, unless --drain-seconds is given.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Same as --log-format json.")
@with_context
def worker(context: CliContext, /, *, as_json: bool, log_format: Format, **given: Any) -> None:
    """Run the jobs of APP, written MODULE:NAME, until SIGTERM or Ctrl-C.

    MODULE alone is enough when it holds one application. The working directory is on the import
    path. A missing SQLite file is created. The log goes to stderr.

    The first signal drains the worker: running jobs may finish within --drain-seconds, then the
    worker exits with 0. A second signal ends it at once, with 130 after Ctrl-C and 143 after
    SIGTERM.

    With --reload, a restart puts back jobs that do not finish in time, without charging an attempt.
    If the changed code cannot be imported, the command shows the error and waits for the next
    change.

    With --until-idle or --max-jobs the worker ends by itself, with 0. It waits for its own jobs,
    however long they take.
    """
    work(context, log_format="json" if as_json else log_format, **given)


def work(
    context: CliContext, *, app: str | None, queues: tuple[str, ...], processes: int = 1,
    log_level: str, log_format: Format, reload: bool,
    before: Callable[[Client], None] | None = None, keep_succeeded: tuple[str, ...] = (),
    keep_other: tuple[str, ...] = (), **given: Any,
) -> None:  # fmt: skip
    """Run a worker, as the commands `worker` and `dev` do."""
    if log_format == "json":
        write_errors_as_json()
    configure_logging(log_level.upper(), log_format)
    given |= _kept("keep_succeeded_seconds", keep_succeeded)
    given |= _kept("keep_other_seconds", keep_other)
    settings: Settings = {k: v for k, v in given.items() if v is not None}  # type: ignore[assignment]
    if reload:
        settings = {**IN_DEVELOPMENT, **settings}
        if not is_child():
            seconds = settings["drain_seconds"] + settings["kill_seconds"] + ENDING_SECONDS
            raise click.exceptions.Exit(Reloader(sys.argv[1:], stop_seconds=seconds).run())
    application = load_app(app or context.settings.get("app"))
    context.agree_on_url(application)
    _refuse_wrong_schema(application.url, context.give_up_seconds)
    if before is not None:
        before(application)
    worker = Worker(application, _queues(queues), processes=processes, **settings)
    worker.told_by_people = not reload
    worker.run()


def _refuse_wrong_schema(url: str, give_up_seconds: float) -> None:
    """Report a wrong schema now, in one line. If the database cannot be reached, say so and go on:
    the worker waits for it."""
    refuse_other_program(url)
    file = Path(sqlite_path(url)).absolute() if url.startswith("sqlite:") else None
    is_new = file is not None and not file.exists()
    try:
        with open_store(url, give_up_seconds=give_up_seconds) as store:
            store.about()
            if is_new:
                log.warning("created %s, because there was no such file", file)
    except StoreUnavailable as error:
        log.warning("the worker starts without its database and waits for it: %s", error)


def _queues(words: tuple[str, ...]) -> dict[str, int] | None:
    """The queues that the command names; None: the worker serves those of its tasks."""
    if not words:
        return None
    queues = {}
    for word in ",".join(words).split(","):
        name, equals, slots = word.strip().partition("=")
        if equals and not (slots.isascii() and slots.isdigit()):
            raise ConfigError(f"{word!r}: slots must be a whole number, as in gpu=1")
        queues[name] = int(slots) if equals else 0
    return queues


def _kept(name: str, words: tuple[str, ...]) -> dict[str, object]:
    """The settings that `SECONDS` and `QUEUE=SECONDS` stand for."""
    found: dict[str, object] = {}
    queues: dict[str, float] = {}
    for word in words:
        queue, equals, seconds = word.rpartition("=")
        try:
            value = float(seconds)
        except ValueError as error:
            raise ConfigError(
                f"{word!r}: write a number of seconds, as in 3600, inf or gpu=86400"
            ) from error
        if equals:
            queues[queue] = value
        else:
            found[name] = value
    return found | ({f"queue_{name}": queues} if queues else {})
