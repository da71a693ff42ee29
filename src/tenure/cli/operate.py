"""Commands that change jobs: one, or all that a filter chooses."""

from collections.abc import Callable
from datetime import datetime

import click

from tenure.cli.desk import Desk, json_option, with_desk, yes_option
from tenure.cli.filters import Filter, parse
from tenure.cli.show import is_terminal, write_json
from tenure.client import Client
from tenure.errors import InvalidInput, JobNotFound, KeyTaken
from tenure.job import FINAL_STATES, LIVE_STATES, State

ASK_FROM = 2
"""A change of so many jobs or more is confirmed first."""

filter_argument = click.argument("filter", nargs=-1)


@click.command()
@filter_argument
@yes_option
@json_option
@with_desk
def replay(desk: Desk, *, filter: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Run finished jobs again, such as `tenure replay state=failed task=app.send`."""
    _each(desk, filter, "replay", Client.replay, FINAL_STATES, yes=yes, as_json=as_json)


@click.command()
@filter_argument
@click.option("--reason", default="cancelled by an operator", show_default=True)
@yes_option
@json_option
@with_desk
def cancel(desk: Desk, *, filter: tuple[str, ...], reason: str, yes: bool, as_json: bool) -> None:
    """Cancel jobs. Running ones are asked to stop."""

    def one(client: Client, id: int) -> bool:
        client.cancel(id, reason=reason)
        return True

    _each(desk, filter, "cancel", one, LIVE_STATES, yes=yes, as_json=as_json)


@click.command()
@filter_argument
@click.option("--reason", default="held", show_default=True)
@yes_option
@json_option
@with_desk
def hold(desk: Desk, *, filter: tuple[str, ...], reason: str, yes: bool, as_json: bool) -> None:
    """Keep jobs from being claimed until `unhold`."""

    def one(client: Client, id: int) -> bool:
        return client.hold(id, reason=reason)

    _each(desk, filter, "hold", one, LIVE_STATES, yes=yes, as_json=as_json)


@click.command()
@filter_argument
@yes_option
@json_option
@with_desk
def unhold(desk: Desk, *, filter: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Let held jobs go on."""
    _each(desk, filter, "unhold", Client.unhold, LIVE_STATES, yes=yes, as_json=as_json)


@click.command()
@filter_argument
@click.option("--queue", help="Put them into this queue.")
@click.option("--priority", type=int, help="Give them this priority.")
@click.option("--due-at", help="Let them run at this time, such as 2030-01-31T08:00+01:00.")
@yes_option
@json_option
@with_desk
def move(desk: Desk, *, filter: tuple[str, ...], queue: str | None, priority: int | None,
         due_at: str | None, yes: bool, as_json: bool) -> None:  # fmt: skip
    """Change the queue, priority or due time of jobs that do not run."""
    due = None if due_at is None else _time(due_at)

    def one(client: Client, id: int) -> bool:
        return client.move(id, queue=queue, priority=priority, due_at=due)

    movable = LIVE_STATES - {State.RUNNING}
    _each(desk, filter, "move", one, movable, yes=yes, as_json=as_json)


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(f"--due-at is not a time: {error}") from error


@click.command()
@filter_argument
@yes_option
@json_option
@with_desk
def rm(desk: Desk, *, filter: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove finished jobs and their stories for good."""

    def one(client: Client, id: int) -> bool:
        client.delete(id)
        return True

    _each(desk, filter, "remove", one, FINAL_STATES, yes=yes, as_json=as_json, destroys=True)


@click.command()
@click.option(
    "--succeeded-days", default=7.0, show_default=True, help="Keep succeeded jobs so long."
)
@click.option("--other-days", default=30.0, show_default=True, help="Keep the others so long.")
@yes_option
@json_option
@with_desk
def prune(
    desk: Desk, *, succeeded_days: float, other_days: float, yes: bool, as_json: bool
) -> None:
    """Remove finished jobs that are older than the retention."""
    _confirm(
        f"Remove succeeded jobs older than {succeeded_days:g} days and others older than "
        f"{other_days:g} days?", yes,
    )  # fmt: skip
    removed = desk.client.prune(
        succeeded_seconds=succeeded_days * 86_400, other_seconds=other_days * 86_400
    )
    write_json({"removed": removed}) if as_json else click.echo(f"removed {removed} jobs")


def _each(
    desk: Desk, words: tuple[str, ...], verb: str, change: Callable[[Client, int], bool],
    states: frozenset[State], *, yes: bool, as_json: bool, destroys: bool = False,
) -> None:  # fmt: skip
    """Change every job that is meant; says what became of each, or how many."""
    client, chosen = desk.client, parse(words, need=True)
    ids = [job.id for job in chosen.find(client, states)]
    if len(ids) >= (1 if destroys else ASK_FROM):
        _confirm(f"{verb.capitalize()} {len(ids)} jobs?", yes)
    changed, problems = 0, {}
    with click.progressbar(ids, label=verb, hidden=as_json or not is_terminal()) as progress:
        for id in progress:
            try:
                done = change(client, id)
            except (InvalidInput, JobNotFound, KeyTaken) as error:
                if _is_single(chosen):
                    raise
                problems[id] = str(error)
                continue
            changed += done
            if as_json:
                write_json({"id": id, "changed": done})
    for id, problem in problems.items():
        write_json({"id": id, "error": problem}) if as_json else click.echo(f"{id}: {problem}")
    if not as_json:
        click.echo(f"{verb}: {changed} of {len(ids)} jobs")


def _is_single(chosen: Filter) -> bool:
    return len(chosen.ids) == 1


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not is_terminal():
        raise InvalidInput(f"{question} Say --yes to do it without being asked")
    click.confirm(question, abort=True)
