"""Commands that show gates and change their limits."""

from typing import Any

import click

from tenure.cli.context import CliContext, Number, json_option, with_context
from tenure.cli.output import echo
from tenure.cli.show import write_json, write_table
from tenure.errors import GateNotFound
from tenure.rules.gates import MAX_BURST, MAX_RATE, MAX_RUNNING_LIMIT, GateSeen, Limits, shown


@click.group()
def gate() -> None:
    """Show gates, and change their limits while jobs run."""


@gate.command("list")
@json_option
@with_context
def list_gates(context: CliContext, *, as_json: bool) -> None:
    """Show all gates: their limits, and how many jobs run and wait."""
    seen = context.client.gates()
    if as_json:
        for each in seen:
            write_json(each)
        return
    head = ("gate", "allows", "running", "waiting", "lines", "set")
    rows = (
        [each.name, in_words(each.limits), each.running, each.waiting, each.lines,
         "by hand" if each.by_hand else "by code"]
        for each in seen
    )  # fmt: skip
    write_table(head, rows, empty="no gates; @app.task(gate=Gate(...)) declares one")


@gate.command()
@click.argument("name")
@json_option
@with_context
def show(context: CliContext, *, name: str, as_json: bool) -> None:
    """Show one gate and its longest lines."""
    each = _find(context, name)
    lines = context.client.gate_lines(name)
    if as_json:
        write_json({**each.as_dict(), "longest": [line.as_dict() for line in lines]})
        return
    echo(f"gate {name} allows {in_words(each.limits)}")
    if each.by_hand and each.declared is not None:
        echo(f"set by hand; the code declares {in_words(each.declared)}")
    echo(f"{each.running} running, {each.waiting} waiting")
    if lines:
        rows = ([shown(line.key) or "-", line.queue, line.running, line.waiting] for line in lines)
        write_table(("key", "queue", "running", "waiting"), rows)


@gate.command("set")
@click.argument("name")
@click.option("--max-running", type=click.IntRange(0, MAX_RUNNING_LIMIT),
              help="Running jobs at most; 0 removes the limit.")  # fmt: skip
@click.option("--rate", type=Number(0, MAX_RATE),
              help="Starts per --per-seconds; 0 removes the limit.")  # fmt: skip
@click.option("--per-seconds", type=Number(0.001, 1e9), help="The period of --rate.")
@click.option("--burst", type=click.IntRange(1, MAX_BURST),
              help="Starts at once after a quiet period.")  # fmt: skip
@json_option
@with_context
def set_limits(context: CliContext, /, *, name: str, as_json: bool, **given: Any) -> None:
    """Change the given limits of a gate, for all workers, until `gate reset`."""
    changes = {what: value for what, value in given.items() if value is not None}
    for what in ("max_running", "rate"):
        if changes.get(what) == 0:
            changes[what] = None
    if not changes:
        raise click.UsageError("give --max-running, --rate, --per-seconds or --burst")
    context.client.set_gate(name, **changes)
    _tell(_find(context, name), as_json=as_json)


@gate.command()
@click.argument("name")
@json_option
@with_context
def reset(context: CliContext, *, name: str, as_json: bool) -> None:
    """Revert a gate to the limits that code declares."""
    context.client.reset_gate(name)
    found = context.client.gates(name=name)
    if found:
        _tell(found[0], as_json=as_json)
    elif as_json:
        write_json({"name": name, "forgotten": True})
    else:
        echo(f"gate {name} is removed: no code declares it and no job waits there")


def _find(context: CliContext, name: str) -> GateSeen:
    found = context.client.gates(name=name)
    if not found:
        raise GateNotFound(f"there is no gate {name}; `tenure gate list` shows them")
    return found[0]


def _tell(each: GateSeen, *, as_json: bool) -> None:
    if as_json:
        write_json(each)
    else:
        echo(f"gate {each.name} allows {in_words(each.limits)}")


def in_words(limits: Limits) -> str:
    """The limits in words: `1 at once, 10 per 1 s (burst 20) for each key`."""
    said = []
    if limits.max_running is not None:
        said.append(f"{limits.max_running} at once")
    if limits.rate is not None:
        said.append(f"{limits.rate:g} per {limits.per_seconds:g} s")
        if limits.burst is not None:
            said[-1] += f" (burst {limits.burst})"
    if not said:
        return "everything"
    return ", ".join(said) + (" for each key" if limits.keyed else "")
