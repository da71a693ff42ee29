"""Commands that change jobs: one job, or all jobs that a filter chooses."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import click

from tenure.cli.context import CliContext, Number, confirm, json_option, with_context, yes_option
from tenure.cli.exit import FAILED, one_line
from tenure.cli.filters import parse
from tenure.cli.show import is_terminal, write_json
from tenure.errors import InvalidInput, JobNotFound, KeyTaken
from tenure.rules.job import FINAL_STATES, LIVE_STATES, Job, State
from tenure.rules.limits import LONG_AGO, check_time

if TYPE_CHECKING:
    from tenure.client import Client

ASK_FROM = 2
"""A change of this many jobs or more needs a confirmation."""

MAX_DAYS = 36_500

filter_argument = click.argument("filter", nargs=-1)


class Verb(NamedTuple):
    """The name of a change, for messages."""

    now: str
    past: str
    unless: str
    """Why a job may stay unchanged."""


@click.command()
@filter_argument
@click.option("--afresh", is_flag=True, help="Delete their steps and checkpoints first.")
@yes_option
@json_option
@with_context
def replay(context: CliContext, *, filter: tuple[str, ...], afresh: bool, yes: bool,
           as_json: bool) -> None:  # fmt: skip
    """Run finished jobs again, such as `tenure replay state=failed task=app.send`.

    A job that succeeded starts from the beginning. Any other job keeps its recorded steps and its
    checkpoint, unless --afresh is given.
    """

    def one(client: "Client", job: Job) -> bool:
        return client.replay(job.id, afresh=afresh)

    verb = Verb("replay", "replayed", "already live")
    _each(context, filter, verb, one, FINAL_STATES, yes=yes, as_json=as_json)


@click.command()
@filter_argument
@click.option("--reason", default="cancelled by an operator", show_default=True)
@yes_option
@json_option
@with_context
def cancel(
    context: CliContext, *, filter: tuple[str, ...], reason: str, yes: bool, as_json: bool
) -> None:
    """Cancel jobs. Running jobs are asked to stop."""

    def one(client: "Client", job: Job) -> bool:
        client.cancel(job.id, reason=reason)
        return not job.state.final

    verb = Verb("cancel", "cancelled", "already finished")
    _each(context, filter, verb, one, LIVE_STATES, yes=yes, as_json=as_json)


@click.command()
@filter_argument
@click.option("--reason", default="held", show_default=True)
@yes_option
@json_option
@with_context
def hold(
    context: CliContext, *, filter: tuple[str, ...], reason: str, yes: bool, as_json: bool
) -> None:
    """Keep jobs from being claimed until `unhold`."""

    def one(client: "Client", job: Job) -> bool:
        return client.hold(job.id, reason=reason)

    _each(
        context,
        filter,
        Verb("hold", "held", "already held"),
        one,
        LIVE_STATES,
        yes=yes,
        as_json=as_json,
    )


@click.command()
@filter_argument
@yes_option
@json_option
@with_context
def unhold(context: CliContext, *, filter: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Let workers claim held jobs again."""
    verb = Verb("unhold", "unheld", "not held")
    _each(context, filter, verb, lambda client, job: client.unhold(job.id), LIVE_STATES, yes=yes,
          as_json=as_json)  # fmt: skip


@click.command()
@filter_argument
@click.option("--queue", help="Put them into this queue.")
@click.option("--priority", type=int, help="Give them this priority.")
@click.option("--due-at", help="Run them at this time, such as 2030-01-31T08:00+01:00.")
@yes_option
@json_option
@with_context
def move(context: CliContext, *, filter: tuple[str, ...], queue: str | None, priority: int | None,
         due_at: str | None, yes: bool, as_json: bool) -> None:  # fmt: skip
    """Change the queue, priority or due time of jobs that are not running."""
    due = None if due_at is None else _time(due_at)
    if queue is None and priority is None and due is None:
        raise InvalidInput("nothing to change: give --queue, --priority or --due-at")

    def one(client: "Client", job: Job) -> bool:
        return client.move(job.id, queue=queue, priority=priority, due_at=due)

    movable = LIVE_STATES - {State.RUNNING}
    _each(context, filter, Verb("move", "moved", "running"), one, movable, yes=yes, as_json=as_json)


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"--due-at is not a time: {error}; write it as in 2030-01-31T08:00+01:00"
        ) from error
    if at.tzinfo is None:
        raise InvalidInput("--due-at needs an offset from UTC, as in 2030-01-31T08:00+01:00")
    check_time("--due-at", at)
    return at


@click.command()
@filter_argument
@yes_option
@json_option
@with_context
def rm(context: CliContext, *, filter: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove finished jobs and their history permanently."""

    def one(client: "Client", job: Job) -> bool:
        client.delete(job.id)
        return True

    verb = Verb("remove", "removed", "live")
    _each(context, filter, verb, one, FINAL_STATES, yes=yes, as_json=as_json, ask_from=1)


days = Number(0, MAX_DAYS)


@click.command()
@click.option("--succeeded-days", default=7.0, show_default=True, type=days,
              help="Keep succeeded jobs for this time.")  # fmt: skip
@click.option("--other-days", default=30.0, show_default=True, type=days,
              help="Keep other finished jobs for this time.")  # fmt: skip
@yes_option
@json_option
@with_context
def prune(
    context: CliContext, *, succeeded_days: float, other_days: float, yes: bool, as_json: bool
) -> None:
    """Remove finished jobs that are past the retention."""
    client = context.client
    now = client.about().now
    cuts = (now - timedelta(days=succeeded_days), now - timedelta(days=other_days))
    due = _finished_before(client, *cuts)
    if due:
        confirm(
            f"remove {_jobs(due)} that succeeded more than {succeeded_days:g} days ago or finished "
            f"in another state more than {other_days:g} days ago?", yes=yes,
        )  # fmt: skip
    client.prune(succeeded_seconds=succeeded_days * 86_400, other_seconds=other_days * 86_400)
    removed = due - _finished_before(client, *cuts)
    write_json({"removed": removed}) if as_json else click.echo(f"removed {_jobs(removed)}")


def _finished_before(client: "Client", succeeded: datetime, other: datetime) -> int:
    """How many jobs a prune would remove. PostgreSQL drops whole days and does not count them."""
    return sum(
        count.jobs
        for cut, wanted in ((succeeded, True), (other, False))
        for count in client.count_finished(LONG_AGO, max(cut, LONG_AGO))
        if (count.state is State.SUCCEEDED) is wanted
    )


def _each(
    context: CliContext, words: tuple[str, ...], verb: Verb,
    change: Callable[["Client", Job], bool], states: frozenset[State], *,
    yes: bool, as_json: bool, ask_from: int = ASK_FROM,
) -> None:  # fmt: skip
    """Change every chosen job and print the result: per job as JSON, or as a count."""
    client, chosen = context.client, parse(words, need=True)
    jobs = list(chosen.find(client, states))
    if len(jobs) >= ask_from:
        confirm(f"{verb.now} {_jobs(len(jobs))} ({_by_state(jobs)})?", yes=yes)
    is_single = len(chosen.ids) == 1
    changed, problems = 0, {}
    hidden = as_json or not is_terminal() or is_single
    with click.progressbar(jobs, label=verb.now, hidden=hidden) as progress:
        for job in progress:
            try:
                done = change(client, job)
            except (InvalidInput, JobNotFound, KeyTaken) as error:
                if is_single:
                    raise
                problems[job.id] = one_line(error)
                continue
            changed += done
            if as_json:
                write_json({"id": job.id, "changed": done})
    for id, problem in problems.items():
        write_json({"id": id, "changed": False, "error": problem}) if as_json else click.echo(
            f"{id}: {problem}"
        )
    if not as_json:
        click.echo(_summary(verb, changed, len(jobs) - changed - len(problems), len(problems)))
    if problems:
        raise click.exceptions.Exit(FAILED)


def _summary(verb: Verb, changed: int, same: int, failed: int) -> str:
    if not changed + same + failed:
        return f"no jobs to {verb.now}"
    parts = [f"{verb.past} {_jobs(changed)}"]
    parts += [f"{same} {'was' if same == 1 else 'were'} {verb.unless}"] if same else []
    parts += [f"{failed} refused"] if failed else []
    return "; ".join(parts)


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"


def _by_state(jobs: list[Job]) -> str:
    counts = Counter(job.state for job in jobs)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())
