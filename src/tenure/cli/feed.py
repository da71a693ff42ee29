"""Commands that show finished jobs as they end, and the readers that follow them."""

from typing import TYPE_CHECKING

import click

from tenure.cli.context import CliContext, json_option, with_context
from tenure.cli.output import echo
from tenure.cli.show import write_json, write_table
from tenure.errors import ReaderNotFound

if TYPE_CHECKING:
    from tenure.rules.ends import Ended


@click.group()
def feed() -> None:
    """Follow finished jobs with readers that keep their own position."""


@feed.command("list")
@json_option
@with_context
def list_readers(context: CliContext, *, as_json: bool) -> None:
    """Show all readers, and how many ends each has not read."""
    readers = context.client.readers()
    if as_json:
        for reader in readers:
            write_json(reader)
        return
    rows = (
        [each.name, each.tenant or "-", each.unread, each.seen_at,
         "follows" if each.lost_at is None else "lost: it was away for too long"]
        for each in readers
    )  # fmt: skip
    head = ("reader", "tenant", "unread", "seen", "state")
    write_table(head, rows, empty="no readers; `tenure feed add NAME` adds one")


@feed.command()
@click.argument("name")
@json_option
@with_context
def add(context: CliContext, *, name: str, as_json: bool) -> None:
    """Add the reader NAME. It gets every job that ends from now on."""
    added = context.client.add_reader(name)
    if as_json:
        write_json({"reader": name, "added": added})
    else:
        echo(f"reader {name} is added" if added else f"reader {name} is there already")


@feed.command()
@click.argument("name")
@click.option("--follow", is_flag=True, help="Wait for more, until Ctrl-C. Adds the reader.")
@json_option
@with_context
def read(context: CliContext, *, name: str, follow: bool, as_json: bool) -> None:
    """Show the jobs that have ended since the reader NAME last read, and move it on.

    After an interruption, the last ends may come again.
    """
    if not follow:
        context.client.read_feed(name, limit=1)  # a reader that is not there is a mistake here
    for end in context.client.feed(name, follow=follow):
        write_json(end) if as_json else echo(_line(end))


@feed.command()
@click.argument("name")
@json_option
@with_context
def remove(context: CliContext, *, name: str, as_json: bool) -> None:
    """Remove the reader NAME. The ends that only it has not read are removed."""
    if not context.client.remove_reader(name):
        raise ReaderNotFound(f"the feed has no reader {name!r}; `tenure feed list` shows all")
    write_json({"reader": name, "removed": True}) if as_json else echo(f"reader {name} is removed")


def _line(end: "Ended") -> str:
    error = f": {end.error_type}: {end.error_message}" if end.error_type else ""
    why = error or (f": {end.reason}" if end.reason else "")
    at = end.finished_at.isoformat(sep=" ", timespec="seconds")
    return f"{at}  job {end.id} of {end.task} {end.state}{why}"
