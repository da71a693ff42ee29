"""Commands about the database itself."""

import click

from tenure.cli.desk import Desk, json_option, refuse_missing_file, with_desk, yes_option
from tenure.cli.show import is_terminal, write_json
from tenure.errors import InvalidInput
from tenure.store import open_store, transfer
from tenure.store.migrate import VERSION
from tenure.store.statements import migration_script


@click.group()
def db() -> None:
    """Create, migrate and look at the schema."""


@db.command("init")
@with_desk
def init(desk: Desk) -> None:
    """Create the schema; for SQLite, the file, too."""
    _migrate(desk)


@db.command("migrate")
@with_desk
def migrate(desk: Desk) -> None:
    """Bring the schema up to date. Safe to run from many processes at once."""
    _migrate(desk)


def _migrate(desk: Desk) -> None:
    with open_store(desk.checked_url()) as store:
        click.echo(f"the schema is at version {store.migrate()}")


@db.command("status")
@json_option
@with_desk
def status(desk: Desk, as_json: bool) -> None:
    """Show the database and the version of its schema."""
    about = desk.client.store.about()
    if as_json:
        write_json(about)
        return
    click.echo(f"{about.engine} {about.engine_version}")
    click.echo(f"schema version {about.schema_version}; this code writes {VERSION}")


@db.command("sql")
@click.option("--engine", type=click.Choice(["postgres", "sqlite"]), default="postgres",
              show_default=True)  # fmt: skip
@click.option("--schema", default="tenure", show_default=True)
def sql(engine: str, schema: str) -> None:
    """Print the statements of all migrations, for those who run them by hand."""
    for step in range(1, VERSION + 1):
        click.echo(migration_script("postgres" if engine == "postgres" else "sqlite", step, schema))


@click.command()
@click.option("--from", "source", required=True, help="Where the jobs are.")
@click.option("--to", "target", required=True, help="Where they go: a new database.")
@yes_option
@json_option
def copy(source: str, target: str, yes: bool, as_json: bool) -> None:
    """Copy all live and finished jobs to another database, while nothing runs.

    Stop workers and clients first. An interrupted copy is finished by running it again. Nothing is
    overwritten, and at the end both databases are compared.
    """
    refuse_missing_file(source)
    with open_store(source) as old, open_store(target) as new:
        new.migrate()
        total = transfer.count(old)
        if not yes:
            if not is_terminal():
                raise InvalidInput(f"copy {total} jobs? Say --yes to do it without being asked")
            click.confirm(f"Copy {total} jobs?", abort=True)
        hidden = as_json or not is_terminal()
        with click.progressbar(length=total, label="copy", hidden=hidden) as progress:
            copied = transfer.copy(old, new, progress.update)
    write_json(copied) if as_json else click.echo(
        f"copied {copied.live} live and {copied.finished} finished jobs; counts agree"
    )
