"""`tenure worker`: run jobs."""

from contextlib import suppress

import click

from tenure.cli.apps import load_app
from tenure.cli.context import CliContext, with_context
from tenure.cli.exit import write_errors_as_json
from tenure.client import Client
from tenure.errors import ConfigError, StoreUnavailable
from tenure.passwords import remember
from tenure.store import open_store
from tenure.worker.settings import Settings
from tenure.worker.supervisor.logs import configure_logging
from tenure.worker.worker import Worker


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
@click.option("--health-file", help="Touch this file while claims succeed.")
@click.option(
    "--log-level",
    default="INFO",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
)
@click.option("--log-format", default="text", show_default=True,
              type=click.Choice(["text", "json"]))  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Same as --log-format json.")
@with_context
def worker(context: CliContext, /, *, app: str | None, queues: tuple[str, ...], processes: int,
           log_level: str, log_format: str, as_json: bool, **given: object) -> None:  # fmt: skip
    """Run the jobs of APP, written MODULE:NAME, until SIGTERM or Ctrl-C.

    MODULE alone is enough when it holds one application. The working directory is on the import
    path. A missing SQLite file is created. The log goes to stderr.

    The first signal drains the worker: running jobs may finish within --drain-seconds, then the
    worker exits with 0. A second signal ends it at once, with 130 after Ctrl-C and 143 after
    SIGTERM.
    """
    as_json = as_json or log_format == "json"
    if as_json:
        write_errors_as_json()
    configure_logging(log_level.upper(), "json" if as_json else "text")
    application = load_app(app or context.settings.get("app"))
    if context.url:
        application.use_url(context.url)
    remember(application.url)
    _refuse_wrong_schema(application.url, context.give_up_seconds)
    settings: Settings = {k: v for k, v in given.items() if v is not None}  # type: ignore[assignment]
    Worker(application, _queues(queues, application), processes=processes, **settings).run()


def _refuse_wrong_schema(url: str, give_up_seconds: float) -> None:
    """Report a wrong schema now, in one line. If the database cannot be reached, go on: the worker
    waits for it."""
    with suppress(StoreUnavailable), open_store(url, give_up_seconds=give_up_seconds) as store:
        store.about()


def _queues(words: tuple[str, ...], app: Client) -> dict[str, int]:
    if not words:
        return dict.fromkeys(sorted({task.options_of_task.queue for task in app} | {"default"}), 0)
    queues = {}
    for word in ",".join(words).split(","):
        name, equals, slots = word.partition("=")
        if equals and not (slots.isascii() and slots.isdigit()):
            raise ConfigError(f"{word!r}: slots must be a whole number, as in gpu=1")
        queues[name] = int(slots) if equals else 0
    return queues
