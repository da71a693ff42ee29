"""Commands for the database itself: its schema, and a copy of all jobs."""

import click

from tenure.cli.context import (
    CliContext,
    confirm,
    json_option,
    refuse_missing_file,
    require_schema,
    with_context,
    yes_option,
)
from tenure.cli.exit import Interrupted
from tenure.cli.output import echo
from tenure.cli.show import is_terminal, write_json
from tenure.cli.words import GuessingGroup
from tenure.passwords import remember, shown_url


@click.group(cls=GuessingGroup)
def db() -> None:
    """Create, migrate and show the schema."""


@db.command("init")
@json_option
@with_context
def init(context: CliContext, as_json: bool) -> None:
    """Create the schema and, on SQLite, the file."""
    _migrate(context, as_json=as_json)


@db.command("migrate")
@json_option
@with_context
def migrate(context: CliContext, as_json: bool) -> None:
    """Migrate the schema to this version. Safe to run in many processes at the same time."""
    refuse_missing_file(context.checked_url())
    _migrate(context, as_json=as_json)


def _migrate(context: CliContext, *, as_json: bool) -> None:
    from tenure.store import open_store

    url = context.checked_url()
    with open_store(url, give_up_seconds=context.give_up_seconds) as store:
        version = store.migrate()
    if as_json:
        write_json({"database": shown_url(url), "schema_version": version})
    else:
        echo(f"{shown_url(url)}: the schema is at version {version}")


@db.command("status")
@json_option
@with_context
def status(context: CliContext, as_json: bool) -> None:
    """Show the database and the version of its schema."""
    from tenure.store.migrate import VERSION

    about, database = context.client.about(), shown_url(context.checked_url())
    if as_json:
        write_json({
            "database": database, "engine": about.engine, "engine_version": about.engine_version,
            "schema_version": about.schema_version, "min_code": about.min_code,
            "code_version": VERSION, "now": about.now,
        })  # fmt: skip
        return
    echo(f"database  {database}")
    echo(f"engine    {about.engine} {about.engine_version}")
    echo(f"schema    version {about.schema_version}; this code writes {VERSION}")


@db.command("sql")
@click.option("--engine", type=click.Choice(["postgres", "sqlite"]), default="postgres",
              show_default=True)  # fmt: skip
@click.option("--schema", default="tenure", show_default=True, help="On PostgreSQL.")
@json_option
def sql(engine: str, schema: str, as_json: bool) -> None:
    """Print the statements of all migrations, to run them by hand."""
    from tenure.store.migrate import VERSION
    from tenure.store.statements import migration_script

    for version in range(1, VERSION + 1):
        script = migration_script("postgres" if engine == "postgres" else "sqlite", version, schema)
        if as_json:
            write_json({"version": version, "sql": script})
            continue
        for line in script.splitlines():
            echo(line)


@click.command()
@click.option("--from", "source", required=True, help="The URL of the database with the jobs.")
@click.option("--to", "target", required=True, help="The URL of a new database.")
@yes_option
@json_option
@with_context
def copy(context: CliContext, *, source: str, target: str, yes: bool, as_json: bool) -> None:
    """Copy all live and finished jobs to another database.

    Stop workers and clients first. To finish an interrupted copy, run the command again. Nothing is
    overwritten. At the end the command compares both databases.
    """
    from tenure.store import open_store
    from tenure.store.copy import run as transfer

    remember(source)
    remember(target)
    refuse_missing_file(source, "check --from")
    require_schema(source)
    limit = context.give_up_seconds
    with (
        open_store(source, give_up_seconds=limit) as old,
        open_store(target, give_up_seconds=limit) as new,
    ):
        total = transfer.count(old)
        confirm(f"copy {total} jobs?", yes=yes)
        try:
            hidden = as_json or not is_terminal()
            with click.progressbar(length=total, label="copy", hidden=hidden) as progress:
                new.migrate()
                before = transfer.count(new)
                copied = transfer.copy(old, new, progress.update)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; run the command again to finish the copy") from None
    if as_json:
        write_json(copied)
    elif before == copied.live + copied.finished > 0:
        echo("nothing new to copy; both databases agree")
    else:
        jobs = f"{copied.live} live and {copied.finished} finished jobs"
        echo(f"copied {jobs}; both databases agree")
