"""`tenure`: the list of commands. A command's module is imported when it is called, not before."""

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from tenure import __version__
from tenure.cli.config import check_names, defaults_of, read_project
from tenure.errors import ConfigError

COMMANDS = {
    "worker": ("tenure.cli.worker:worker", "Run jobs until told to stop."),
    "enqueue": ("tenure.cli.jobs:enqueue", "Put one job in line."),
    "ls": ("tenure.cli.jobs:ls", "List jobs, newest first."),
    "get": ("tenure.cli.jobs:get", "Show everything about one job."),
    "why": ("tenure.cli.jobs:why", "Say where a job is, and why it does not run."),
    "timeline": ("tenure.cli.jobs:timeline", "Tell the story of one job."),
    "steps": ("tenure.cli.jobs:steps", "Show what the steps of a job have answered."),
    "errors": ("tenure.cli.jobs:errors", "Failed jobs, grouped by what went wrong."),
    "replay": ("tenure.cli.operate:replay", "Run finished jobs again."),
    "cancel": ("tenure.cli.operate:cancel", "Cancel jobs; running ones are asked to stop."),
    "hold": ("tenure.cli.operate:hold", "Keep jobs from being claimed."),
    "unhold": ("tenure.cli.operate:unhold", "Let held jobs go on."),
    "move": ("tenure.cli.operate:move", "Change the queue, priority or due time of jobs."),
    "rm": ("tenure.cli.operate:rm", "Remove finished jobs for good."),
    "queues": ("tenure.cli.queues:queues", "Show queues; pause and resume them."),
    "gate": ("tenure.cli.gate:gate", "Show gates; change what they allow."),
    "schedule": ("tenure.cli.schedule:schedule", "Show and change schedules; run one now."),
    "workflow": ("tenure.cli.workflow:workflow", "Show workflows; cancel, pause, replay them."),
    "workers": ("tenure.cli.queues:workers", "Show the workers that are alive."),
    "stats": ("tenure.cli.queues:stats", "Count jobs by queue and state."),
    "top": ("tenure.cli.top:top", "Watch jobs, rates and workers live."),
    "db": ("tenure.cli.database:db", "Create, migrate and look at the schema."),
    "copy": ("tenure.cli.database:copy", "Copy all jobs from one database to another."),
    "prune": ("tenure.cli.operate:prune", "Remove old finished jobs."),
    "health": ("tenure.cli.health:health", "Exit 0 when jobs make progress, else 1."),
    "bench": ("tenure.cli.bench:bench", "Measure how fast jobs are on this database."),
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{_did_you_mean(args[0])}")
        name, command, rest = super().resolve_command(ctx, args)
        settings = ctx.obj if isinstance(ctx.obj, dict) else {}
        if name is not None and command is not None and name in settings:
            table = defaults_of(command, settings[name], f"tool.tenure.{name}")
            ctx.default_map = {name: table}
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _did_you_mean(word: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, n=1, cutoff=0.5)
    return f". Did you mean {near[0]!r}?" if near else ""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url", envvar="TENURE_URL", help="The database: sqlite:///jobs.db or postgresql://..."
)
@click.option("--tenant", envvar="TENURE_TENANT", help="Act for this tenant only.")
@click.option("--give-up-seconds", default=5.0, show_default=True, type=click.FloatRange(0, 3600),
              help="How long to try to reach the database.")  # fmt: skip
@click.version_option(__version__, prog_name="tenure")
@click.pass_context
def cli(ctx: click.Context, url: str | None, tenant: str | None, give_up_seconds: float) -> None:
    """Durable jobs on SQLite and PostgreSQL.

    The database is --url, else TENURE_URL, else `url` under [tool.tenure] in pyproject.toml.
    Options have variables, too, such as TENURE_LS_LIMIT, and defaults in the same file, such as
    `processes = 2` under [tool.tenure.worker].

    Errors are one line on stderr, with --json an object with error, kind and exit_code. Exit
    codes: 0 done, 1 a job failed or something is wrong, 2 usage, 3 not found, 4 the database
    cannot be used, 5 its schema does not fit, 130 interrupted.
    """
    from tenure.cli.context import Desk

    settings = ctx.obj or {}
    ctx.obj = Desk(
        url or settings.get("url"), tenant or settings.get("tenant"), settings,
        give_up_seconds=give_up_seconds,
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
        # Not by cli.main, which has its own idea of how interrupts and closed pipes end.
        with cli.make_context(
            "tenure", sys.argv[1:], obj=_settings(folder), auto_envvar_prefix="TENURE",
            color=False if plain else None,
        ) as context:  # fmt: skip
            cli.invoke(context)


def _write_anything() -> None:
    """A terminal that cannot show a character shows another one; that is no error."""
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
