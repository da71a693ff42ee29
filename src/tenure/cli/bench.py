"""`tenure bench`: the speed of jobs on this database, and what limits it."""

from typing import TYPE_CHECKING

import click

from tenure.cli.context import CliContext, confirm, json_option, with_context, yes_option
from tenure.cli.output import echo
from tenure.cli.show import is_terminal, write_json, write_table
from tenure.passwords import shown_url

if TYPE_CHECKING:
    from tenure.benchmark.figures import Figure

MAX_JOBS, MAX_ROUNDS, MAX_PROCESSES = 1_000_000, 100, 100


@click.command()
@click.option("--jobs", type=click.IntRange(1, MAX_JOBS),
              help="Jobs per drain.  [default: about one second of work]")  # fmt: skip
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, MAX_ROUNDS),
              help="How often to repeat the measurement.")  # fmt: skip
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1, MAX_PROCESSES),
              help="Worker processes.")  # fmt: skip
@click.option("--process-handlers", is_flag=True,
              help="Also measure handlers in child processes.")  # fmt: skip
@yes_option
@json_option
@with_context
def bench(context: CliContext, *, jobs: int | None, rounds: int, processes: int,
          process_handlers: bool, yes: bool, as_json: bool) -> None:  # fmt: skip
    """Measure enqueueing, draining and pick-up on this database; takes about 20 s.

    Your own jobs are not touched. On PostgreSQL the measurement uses its own schema, which the role
    must be allowed to create; on SQLite, its own folder next to the file. Both are removed at the
    end, also after Ctrl-C. The measurement puts load on the server and its disk.

    Handlers do nothing, so the figures show the cost of the queue alone. Each figure is the median
    of all rounds, with the lowest and the highest value. The exit code is 1 unless every job ran
    exactly once.
    """
    url = context.checked_url()
    confirm(f"put load on {shown_url(url)} to measure it?", yes=yes)
    from tenure.benchmark.figures import verdict
    from tenure.benchmark.measure import Plan, measure

    plan = Plan(
        jobs=jobs, rounds=rounds, processes=processes,
        kinds=("async", "thread", "process") if process_handlers else ("async", "thread"),
    )  # fmt: skip
    hidden = as_json or not is_terminal()
    with click.progressbar(length=plan.steps, label="measure", hidden=hidden) as progress:
        figures = measure(
            url, plan, give_up_seconds=context.give_up_seconds, step=lambda: progress.update(1)
        )
    if as_json:
        for figure in figures:
            write_json(figure)
        return
    _write(figures)
    if sentence := verdict(figures):
        echo(sentence)


def _write(figures: "list[Figure]") -> None:
    from tenure.benchmark.figures import LABELS

    head = ("what", "median", "unit", "lowest", "highest")
    write_table(head, [
        (LABELS[each.name], _number(each.value), each.unit, _number(each.low), _number(each.high))
        for each in figures
    ])  # fmt: skip


def _number(value: float) -> str:
    """From 100 on a whole number with commas, below it three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
