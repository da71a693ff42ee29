"""Commands that change jobs: one job, or all jobs that a filter chooses."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import click

from tenure.cli.context import CliContext, Number, confirm, json_option, with_context, yes_option
from tenure.cli.exit import FAILED, Interrupted, one_line
from tenure.cli.filters import SEE_FILTERS, parse
from tenure.cli.output import echo
from tenure.cli.show import is_terminal, write_json
from tenure.errors import InvalidInput
from tenure.rules.job import FINAL_STATES, LIVE_STATES, Job, State
from tenure.rules.limits import LONG_AGO, check_time

if TYPE_CHECKING:
    from tenure.client import Client
    from tenure.store import Changes, Store

ASK_FROM = 2
"""A change of this many jobs or more needs a confirmation."""

MAX_DAYS = 36_500
BATCH = 1000
"""How many jobs one transaction changes."""
SHOWN = 20
"""How many refused jobs are shown; --json shows all."""

filter_argument = click.argument("filter", nargs=-1)


class Verb(NamedTuple):
    """A change: its name in messages, and the operations that make it."""

    now: str
    past: str
    unless: str
    """Why a job may stay unchanged."""
    one: Callable[["Client", Job], "bool | Changes"]
    many: Callable[["Store", list[int]], "Changes"]
    states: frozenset[State]
    """The states from which a filter chooses."""
    newest_first: bool = False


@click.command(epilog=SEE_FILTERS)
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
    verb = Verb(
        "replay", "replayed", "already live",
        lambda client, job: client.replay(job.id, afresh=afresh),
        lambda store, ids: store.replay_many(ids, afresh=afresh), FINAL_STATES,
    )  # fmt: skip
    _each(context, filter, verb, yes=yes, as_json=as_json)


@click.command(epilog=SEE_FILTERS)
@filter_argument
@click.option("--reason", default="cancelled by an operator", show_default=True)
@yes_option
@json_option
@with_context
def cancel(
    context: CliContext, *, filter: tuple[str, ...], reason: str, yes: bool, as_json: bool
) -> None:
    """Cancel jobs. Running jobs are asked to stop."""

    def one(client: "Client", job: Job) -> "bool | Changes":
        from tenure.store import Changes

        state = client.cancel(job.id, reason=reason)
        if state is not State.RUNNING:
            return not job.state.final
        if job.cancel_requested:
            return Changes(unchanged={job.id: "already asked to stop"})
        return Changes(changed=(job.id,), asked=(job.id,))

    verb = Verb(
        "cancel", "cancelled", "already finished", one,
        lambda store, ids: store.cancel_many(ids, reason=reason), LIVE_STATES, newest_first=True,
    )  # fmt: skip
    _each(context, filter, verb, yes=yes, as_json=as_json)


@click.command(epilog=SEE_FILTERS)
@filter_argument
@click.option("--reason", default="held", show_default=True)
@yes_option
@json_option
@with_context
def hold(
    context: CliContext, *, filter: tuple[str, ...], reason: str, yes: bool, as_json: bool
) -> None:
    """Keep jobs from being claimed until `unhold`."""
    verb = Verb(
        "hold", "held", "already held", lambda client, job: client.hold(job.id, reason=reason),
        lambda store, ids: store.hold_many(ids, reason=reason), LIVE_STATES,
    )  # fmt: skip
    _each(context, filter, verb, yes=yes, as_json=as_json)


@click.command(epilog=SEE_FILTERS)
@filter_argument
@yes_option
@json_option
@with_context
def unhold(context: CliContext, *, filter: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Let workers claim held jobs again."""
    verb = Verb(
        "unhold", "unheld", "not held", lambda client, job: client.unhold(job.id),
        lambda store, ids: store.unhold_many(ids), LIVE_STATES,
    )  # fmt: skip
    _each(context, filter, verb, yes=yes, as_json=as_json)


@click.command(epilog=SEE_FILTERS)
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
    verb = Verb(
        "move", "moved", "running",
        lambda client, job: client.move(job.id, queue=queue, priority=priority, due_at=due),
        lambda store, ids: store.move_many(ids, queue=queue, priority=priority, due_at=due),
        LIVE_STATES - {State.RUNNING},
    )  # fmt: skip
    _each(context, filter, verb, yes=yes, as_json=as_json)


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


@click.command(epilog=SEE_FILTERS)
@filter_argument
@yes_option
@json_option
@with_context
def rm(context: CliContext, *, filter: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove finished jobs and their history permanently."""

    def one(client: "Client", job: Job) -> bool:
        client.delete(job.id)
        return True

    verb = Verb("remove", "removed", "live", one, lambda store, ids: store.delete_many(ids),
                FINAL_STATES)  # fmt: skip
    _each(context, filter, verb, yes=yes, as_json=as_json, ask_from=1)


days = Number(0, MAX_DAYS)


@click.command()
@click.option("--succeeded-days", default=7.0, show_default=True, type=days,
              help="Keep succeeded jobs for this time.")  # fmt: skip
@click.option("--other-days", default=30.0, show_default=True, type=days,
              help="Keep other finished jobs for this time.")  # fmt: skip
@click.option("--force", is_flag=True,
              help="Trust the clock, even if it is far ahead of the last prune.")  # fmt: skip
@yes_option
@json_option
@with_context
def prune(context: CliContext, *, succeeded_days: float, other_days: float, force: bool, yes: bool,
          as_json: bool) -> None:  # fmt: skip
    """Remove finished jobs that are past the retention.

    A job whose task or worker says how long it is kept is removed by that alone: the options are
    for all others. If the clock is far ahead of the last prune, the command removes nothing and
    exits with 1.
    """
    client = context.client
    now = client.about().now
    cuts = (now - timedelta(days=succeeded_days), now - timedelta(days=other_days))
    due = _finished_before(client, *cuts)
    if due:
        confirm(
            f"remove {_jobs(due)} that succeeded more than {succeeded_days:g} days ago or finished "
            f"in another state more than {other_days:g} days ago, except those that are to be kept "
            "for longer?", yes=yes,
        )  # fmt: skip
    before = _finished_before(client, now, now)
    client.prune(
        succeeded_seconds=succeeded_days * 86_400, other_seconds=other_days * 86_400, force=force
    )
    removed = before - _finished_before(client, now, now)
    write_json({"removed": removed}) if as_json else echo(f"removed {_jobs(removed)}")


def _finished_before(client: "Client", succeeded: datetime, other: datetime) -> int:
    """How many jobs a prune would remove. PostgreSQL drops whole days and does not count them."""
    return sum(
        count.jobs
        for cut, wanted in ((succeeded, True), (other, False))
        for count in client.count_finished(LONG_AGO, max(cut, LONG_AGO))
        if (count.state is State.SUCCEEDED) is wanted
    )


def _each(
    context: CliContext, words: tuple[str, ...], verb: Verb, *, yes: bool, as_json: bool,
    ask_from: int = ASK_FROM,
) -> None:  # fmt: skip
    """Change every chosen job and print the result: per job as JSON, or as a count."""
    client, chosen = context.client, parse(words, need=True)
    if len(chosen.ids) == 1:
        _only_one(client, client.get(chosen.ids[0]), verb, yes or ask_from > 1, as_json=as_json)
        return
    found = {job.id: job.state for job in chosen.find(client, verb.states)}
    if len(found) >= ask_from:
        confirm(f"{verb.now} {_jobs(len(found))} ({_by_state(found.values())})?", yes=yes)
    ids = sorted(found, reverse=verb.newest_first)
    total = Total(verb)
    hidden = as_json or not is_terminal()
    try:
        with click.progressbar(length=len(ids), label=verb.now, hidden=hidden) as progress:
            for part in batched(ids):
                changes = verb.many(client.store, part)
                total.add(changes)
                progress.update(len(part))
                if as_json:
                    write_changes(changes)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; of {_jobs(len(ids))}: {total.text}") from None
    if not as_json:
        for id, problem in islice(total.refused.items(), SHOWN):
            echo(f"{id}: {one_line(problem)}")
        echo(total.text)
    if total.refused:
        raise click.exceptions.Exit(FAILED)


def _only_one(client: "Client", job: Job, verb: Verb, yes: bool, *, as_json: bool) -> None:
    """Change the one job that the user named. An error is the command's error."""
    confirm(f"{verb.now} 1 job (1 {job.state})?", yes=yes)
    from tenure.store import Changes

    done = verb.one(client, job)
    if isinstance(done, bool):
        done = Changes(changed=(job.id,)) if done else Changes(unchanged={job.id: verb.unless})
    if as_json:
        write_changes(done)
    else:
        total = Total(verb)
        total.add(done)
        echo(total.text)


def batched(ids: list[int]) -> Iterator[list[int]]:
    """The ids in parts that one transaction takes."""
    for start in range(0, len(ids), BATCH):
        yield ids[start : start + BATCH]


def write_changes(changes: "Changes") -> None:
    """One object per job."""
    for id in changes.changed:
        write_json({"id": id, "changed": True})
    for id, reason in changes.unchanged.items():
        write_json({"id": id, "changed": False, "reason": reason})
    for id, problem in changes.refused.items():
        write_json({"id": id, "changed": False, "error": one_line(problem)})


class Total:
    """What was done so far, over all batches."""

    def __init__(self, verb: Verb) -> None:
        self._verb = verb
        self._changed = self._asked = 0
        self._unchanged: Counter[str] = Counter()
        self.refused: dict[int, str] = {}

    def add(self, changes: "Changes") -> None:
        """One more batch."""
        self._changed += len(changes.changed)
        self._asked += len(changes.asked)
        self._unchanged.update(changes.unchanged.values())
        self.refused |= changes.refused

    @property
    def text(self) -> str:
        """How many were changed, and how many were skipped and why."""
        if not self._changed and not self._unchanged and not self.refused:
            return f"no jobs to {self._verb.now}"
        parts = []
        if self._asked:
            parts.append(f"asked {self._asked} running job{_s(self._asked)} to stop")
        if self._changed > self._asked or not self._asked:
            parts.insert(0, f"{self._verb.past} {_jobs(self._changed - self._asked)}")
        for reason, count in self._unchanged.most_common():
            parts.append(f"{count} {'was' if count == 1 else 'were'} {reason}")
        if self.refused:
            parts.append(f"{len(self.refused)} refused")
        return "; ".join(parts)


def _jobs(count: int) -> str:
    return f"{count} job{_s(count)}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _by_state(states: Iterable[State]) -> str:
    counts = Counter(states)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())
