"""Commands that look up and free unique keys."""

import click

from tenure.cli.context import CliContext, json_option, with_context
from tenure.cli.output import echo
from tenure.cli.show import write_json
from tenure.errors import JobNotFound


@click.group()
def key() -> None:
    """Show which job has a unique key; free a key."""


@key.command()
@click.argument("scope")
@click.argument("key")
@json_option
@with_context
def get(context: CliContext, *, scope: str, key: str, as_json: bool) -> None:
    """Show the job that has the unique key KEY of SCOPE.

    SCOPE is the name of a task, or the scope that `Unique(scope=...)` names.
    """
    job = context.client.get_by_key(scope, key)
    if as_json:
        write_json(job)
    else:
        echo(f"job {job.id} of {job.task} has the key; it is {job.state}")


@key.command()
@click.argument("scope")
@click.argument("key")
@json_option
@with_context
def free(context: CliContext, *, scope: str, key: str, as_json: bool) -> None:
    """Free the unique key KEY of SCOPE, whose job has finished. The next enqueue takes it.

    SCOPE is the name of a task, or the scope that `Unique(scope=...)` names. A live job keeps its
    key: cancel it first.
    """
    if not context.client.free_key(scope, key):
        raise JobNotFound(f"no job holds the unique key {key!r} of {scope}")
    write_json({"scope": scope, "key": key, "freed": True}) if as_json else echo("the key is free")
