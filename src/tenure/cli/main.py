"""`tenure`: the list of commands. The module of a command is imported when it is called."""

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from tenure import __version__
from tenure.cli.config import check_names, defaults_of, read_project
from tenure.cli.words import did_you_mean, in_order
from tenure.errors import ConfigError

COMMANDS = {
    "worker": ("tenure.cli.worker:worker", "Run jobs until a signal stops the worker."),
    "dev": ("tenure.cli.dev:dev", "Run jobs during development; restart when code changes."),
    "enqueue": ("tenure.cli.jobs:enqueue", "Enqueue one job."),
    "ls": ("tenure.cli.jobs:ls", "List jobs, newest first."),
    "get": ("tenure.cli.jobs:get", "Show everything about one job."),
    "why": ("tenure.cli.jobs:why", "Explain where a job is and why it does not run."),
    "timeline": ("tenure.cli.jobs:timeline", "Show the history of one job."),
    "attempts": ("tenure.cli.jobs:attempts", "Show every attempt of one job."),
    "steps": ("tenure.cli.jobs:steps", "Show the recorded steps of one job."),
    "errors": ("tenure.cli.jobs:errors", "Show failed jobs, grouped by task and error."),
    "replay": ("tenure.cli.operate:replay", "Run finished jobs again."),
    "cancel": ("tenure.cli.operate:cancel", "Cancel jobs; ask running jobs to stop."),
    "hold": ("tenure.cli.operate:hold", "Keep jobs from being claimed."),
    "unhold": ("tenure.cli.operate:unhold", "Let workers claim held jobs again."),
    "move": ("tenure.cli.operate:move", "Change the queue, priority or due time of jobs."),
    "rm": ("tenure.cli.operate:rm", "Remove finished jobs permanently."),
    "feed": (
        "tenure.cli.feed:feed",
        "Follow finished jobs with readers that keep their own position.",
    ),
    "key": ("tenure.cli.key:key", "Show which job has a unique key; free a key."),
    "queues": ("tenure.cli.queues:queues", "Show queues; pause and resume them."),
    "gate": ("tenure.cli.gate:gate", "Show gates; change their limits."),
    "schedule": ("tenure.cli.schedule:schedule", "Show and change schedules; run one now."),
    "workflow": ("tenure.cli.workflow:workflow", "Show workflows; cancel, pause, replay them."),
    "workers": ("tenure.cli.queues:workers", "Show the workers that are alive."),
    "stats": ("tenure.cli.stats:stats", "Show rates, failures, waits and run times."),
    "top": ("tenure.cli.top:top", "Watch jobs, rates and workers live."),
    "db": ("tenure.cli.database:db", "Create, migrate and show the schema."),
    "copy": ("tenure.cli.database:copy", "Copy all jobs from one database to another."),
    "prune": ("tenure.cli.operate:prune", "Remove old finished jobs."),
    "health": ("tenure.cli.health:health", "Exit with 0 when jobs make progress, else with 1."),
    "bench": ("tenure.cli.bench:bench", "Measure the speed of jobs on this database."),
    "doctor": ("tenure.cli.health:doctor", "Check engine, connection, schema and clock."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, in_order(args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{did_you_mean(args[0], list(COMMANDS))}")
        name, command, rest = super().resolve_command(ctx, args)
        settings = ctx.obj if isinstance(ctx.obj, dict) else {}
        if name is not None and command is not None and name in settings:
            table = defaults_of(command, settings[name], f"tool.tenure.{name}")
            ctx.default_map = {name: table}
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url", envvar="TENURE_URL", help="The database: sqlite:///jobs.db or postgresql://..."
)
@click.option("--tenant", envvar="TENURE_TENANT", help="Act for this tenant only.")
@click.option("--give-up-seconds", default=5.0, show_default=True, type=click.FloatRange(0, 3600),
              help="Give up after trying this long to reach the database.")  # fmt: skip
@click.version_option(__version__, prog_name="tenure")
@click.pass_context
def cli(ctx: click.Context, url: str | None, tenant: str | None, give_up_seconds: float) -> None:
    """Durable jobs on SQLite and PostgreSQL.

    The database is --url, else the address in the code of an application that the command imports,
    else TENURE_URL, else `url` under [tool.tenure] in pyproject.toml. Every
    option can also be set by an environment variable, such as TENURE_LS_LIMIT, and in
    pyproject.toml, such as `processes = 2` under [tool.tenure.worker].

    Options --url, --tenant, --give-up-seconds and --json may stand before or after the command.

    An error is one line on stderr; with --json, an object with error, kind and exit_code. Exit
    codes: 0 success, 1 a job failed or a check failed, 2 wrong usage, 3 not found, 4 the database
    cannot be used, 5 the schema does not fit this version, 130 interrupted.
    """
    from tenure.cli.context import CliContext

    settings = ctx.obj or {}
    ctx.obj = CliContext(
        url or settings.get("url"), tenant or settings.get("tenant"), settings,
        give_up_seconds=give_up_seconds,
        url_is_given=ctx.get_parameter_source("url") is click.core.ParameterSource.COMMANDLINE,
    )  # fmt: skip


def main() -> None:
    """The entry point. Errors become one line and an exit code."""
    from tenure.cli.exit import ending

    with ending():
        _write_anything()
        folder = Path.cwd()
        sys.path.insert(0, str(folder))
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        if os.environ.get("_TENURE_COMPLETE"):
            cli.main(prog_name="tenure")
        # Not cli.main, which handles interrupts and closed pipes in its own way.
        with cli.make_context(
            "tenure", sys.argv[1:], obj=_settings(folder), auto_envvar_prefix="TENURE",
            color=False if plain else None,
        ) as context:  # fmt: skip
            cli.invoke(context)


def _write_anything() -> None:
    """Replace characters that the terminal cannot show, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _settings(folder: Path) -> dict[str, Any]:
    try:
        settings = read_project(folder)
        check_names(settings, list(COMMANDS))
        return settings
    except ConfigError:
        if {"--help", "-h", "--version"} & set(sys.argv[1:]):
            return {}
        raise
