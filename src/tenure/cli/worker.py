"""`tenure worker`: run jobs."""

import json
import logging
import sys
from importlib import import_module

import click

from tenure.cli.desk import Desk, with_desk
from tenure.client import Client
from tenure.errors import ConfigError
from tenure.worker.settings import Settings
from tenure.worker.worker import Worker


@click.command()
@click.argument("app", required=False, envvar="TENURE_APP")
@click.option("-q", "--queue", "queues", multiple=True,
              help="A queue to serve, with slots as in gpu=1; may be repeated. Default: all queues "
                   "that tasks name.")  # fmt: skip
@click.option("--processes", default=1, show_default=True)
@click.option("--async-slots", type=int, help="Coroutines at once.  [default: 100]")
@click.option("--thread-slots", type=int, help="Threads at once.  [default: 8]")
@click.option("--process-slots", type=int, help="Child processes at once.  [default: CPUs]")
@click.option("--lease-seconds", type=float, help="[default: 30]")
@click.option("--heartbeat-seconds", type=float, help="[default: 10]")
@click.option("--drain-seconds", type=float, help="[default: 25]")
@click.option("--health-file", help="Touch this file while claims make progress.")
@click.option(
    "--log-level",
    default="INFO",
    show_default=True,
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
)
@click.option("--log-format", default="text", show_default=True,
              type=click.Choice(["text", "json"]))  # fmt: skip
@with_desk
def worker(desk: Desk, /, *, app: str | None, queues: tuple[str, ...], processes: int,
           log_level: str, log_format: str, **given: object) -> None:  # fmt: skip
    """Run the jobs of APP, written MODULE:NAME, until SIGTERM or Ctrl-C.

    The working directory is on the import path.
    """
    configure_logging(log_level.upper(), as_json=log_format == "json")
    application = load_app(app or desk.settings.get("app"))
    if desk.url:
        application.use_url(desk.url)
    settings: Settings = {k: v for k, v in given.items() if v is not None}  # type: ignore[assignment]
    Worker(application, _queues(queues, application), processes=processes, **settings).run()


def load_app(path: str | None) -> Client:
    """Import MODULE:NAME. Mistakes become errors that name the fix."""
    module_name, _, name = (path or "").partition(":")
    if not module_name or not name:
        raise ConfigError(
            "which application? Write MODULE:NAME, such as `tenure worker shop.jobs:app`, set "
            "TENURE_APP, or write app = ... under [tool.tenure] in pyproject.toml"
        )
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise ConfigError(
            f"there is no module {module_name}; run this in the folder that holds it"
        ) from error
    app = getattr(module, name, None)
    if not isinstance(app, Client):
        apps = [key for key, value in vars(module).items() if isinstance(value, Client)]
        hint = f"; it has {', '.join(apps)}" if apps else ""
        raise ConfigError(f"{module_name} has no application called {name}{hint}")
    return app


def _queues(words: tuple[str, ...], app: Client) -> dict[str, int]:
    if not words:
        return dict.fromkeys(sorted({task.options_of_task.queue for task in app} | {"default"}), 0)
    queues = {}
    for word in ",".join(words).split(","):
        name, equals, slots = word.partition("=")
        if equals and not slots.isdigit():
            raise ConfigError(f"{word!r}: slots are a whole number, as in gpu=1")
        queues[name] = int(slots) if equals else 0
    return queues


class JsonLines(logging.Formatter):
    """One JSON object per line; facts about a job are fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname,
            "logger": record.name, "message": record.getMessage(),
            **getattr(record, "tenure", {}),
        }  # fmt: skip
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(level: str, *, as_json: bool) -> None:
    """Log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-8s %(message)s")
    handler.setFormatter(JsonLines() if as_json else text)
    logging.basicConfig(level=level, handlers=[handler], force=True)
