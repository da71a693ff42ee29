"""`tenure bench`: how fast jobs are on this database, and what limits them."""

from typing import TYPE_CHECKING

import click

from tenure.cli.context import Desk, confirm, json_option, with_desk, yes_option
from tenure.cli.show import is_terminal, write_json, write_table
from tenure.passwords import where

if TYPE_CHECKING:
    from tenure.benchmark.figures import Figure

MAX_JOBS, MAX_ROUNDS, MAX_PROCESSES = 1_000_000, 100, 100


@click.command()
@click.option("--jobs", type=click.IntRange(1, MAX_JOBS),
              help="Jobs of each drain.  [default: what takes about a second]")  # fmt: skip
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, MAX_ROUNDS))
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1, MAX_PROCESSES),
              help="Worker processes.")  # fmt: skip
@click.option("--process-handlers", is_flag=True,
              help="Measure handlers in child processes, too.")  # fmt: skip
@yes_option
@json_option
@with_desk
def bench(desk: Desk, *, jobs: int | None, rounds: int, processes: int, process_handlers: bool,
          yes: bool, as_json: bool) -> None:  # fmt: skip
    """Measure enqueueing, draining and pick-up on this database; takes about 20 s.

    Your own jobs are not touched: on PostgreSQL all happens in a schema of its own, which the role
    must be allowed to create, on SQLite in a folder of its own beside the file. Both are removed at
    the end, also after Ctrl-C. But it puts load on the server and its disk.

    Handlers do nothing, so that the figures are the queue's alone. Each is the median of all
    rounds, with the lowest and the highest. Exit code 1 when not every job ran exactly once.
    """
    url = desk.checked_url()
    confirm(f"put load on {where(url)} to measure it?", yes=yes)
    from tenure.benchmark.figures import verdict
    from tenure.benchmark.measure import Plan, measure

    plan = Plan(
        jobs=jobs, rounds=rounds, processes=processes,
        kinds=("async", "thread", "process") if process_handlers else ("async", "thread"),
    )  # fmt: skip
    hidden = as_json or not is_terminal()
    with click.progressbar(length=plan.steps, label="measure", hidden=hidden) as progress:
        figures = measure(
            url, plan, give_up_seconds=desk.give_up_seconds, step=lambda: progress.update(1)
        )
    if as_json:
        for figure in figures:
            write_json(figure)
        return
    _write(figures)
    if sentence := verdict(figures):
        click.echo(sentence)


def _write(figures: "list[Figure]") -> None:
    from tenure.benchmark.figures import LABELS

    head = ("what", "median", "unit", "lowest", "highest")
    write_table(head, [
        (LABELS[each.name], _number(each.value), each.unit, _number(each.low), _number(each.high))
        for each in figures
    ])  # fmt: skip


def _number(value: float) -> str:
    """Whole and with commas, or three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
