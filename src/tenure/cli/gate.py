"""Commands about gates: what they allow, who runs, who waits."""

from typing import Any

import click
import msgspec

from tenure.cli.context import Desk, Number, json_option, with_desk
from tenure.cli.show import write_json, write_table
from tenure.errors import GateNotFound
from tenure.rules.gates import MAX_BURST, MAX_RATE, MAX_RUNNING_LIMIT, GateSeen, Limits, shown


@click.group()
def gate() -> None:
    """Show gates, and change what they allow while jobs run."""


@gate.command("list")
@json_option
@with_desk
def list_gates(desk: Desk, *, as_json: bool) -> None:
    """Show all gates: what each allows, how many jobs run and how many wait."""
    seen = desk.client.gates()
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
    write_table(head, rows, empty="no gates; @app.task(gate=Gate(...)) makes one")


@gate.command()
@click.argument("name")
@json_option
@with_desk
def show(desk: Desk, *, name: str, as_json: bool) -> None:
    """Show one gate and its longest lines."""
    each = _find(desk, name)
    lines = desk.client.gate_lines(name)
    if as_json:
        write_json({**msgspec.to_builtins(each), "longest": msgspec.to_builtins(lines)})
        return
    click.echo(f"gate {name} allows {in_words(each.limits)}")
    if each.by_hand and each.declared is not None:
        click.echo(f"set by hand; the code says {in_words(each.declared)}")
    click.echo(f"{each.running} running, {each.waiting} waiting")
    if lines:
        rows = ([shown(line.key) or "-", line.queue, line.running, line.waiting] for line in lines)
        write_table(("key", "queue", "running", "waiting"), rows)


@gate.command("set")
@click.argument("name")
@click.option("--max-running", type=click.IntRange(0, MAX_RUNNING_LIMIT),
              help="So many jobs at once; 0 takes the limit away.")  # fmt: skip
@click.option("--rate", type=Number(0, MAX_RATE), help="So many may start; 0 takes the rate away.")
@click.option("--per-seconds", type=Number(0.001, 1e9), help="In so many seconds.")
@click.option("--burst", type=click.IntRange(1, MAX_BURST), help="So many after a quiet time.")
@json_option
@with_desk
def set_limits(desk: Desk, /, *, name: str, as_json: bool, **given: Any) -> None:
    """Change what a gate allows, for all workers, until `gate reset`. The rest stays as it is."""
    changes = {what: value for what, value in given.items() if value is not None}
    for what in ("max_running", "rate"):
        if changes.get(what) == 0:
            changes[what] = None
    if not changes:
        raise click.UsageError("give --max-running, --rate, --per-seconds or --burst")
    desk.client.set_gate(name, **changes)
    _tell(_find(desk, name), as_json=as_json)


@gate.command()
@click.argument("name")
@json_option
@with_desk
def reset(desk: Desk, *, name: str, as_json: bool) -> None:
    """Let count again what the code says of a gate."""
    desk.client.reset_gate(name)
    found = desk.client.gates(name=name)
    if found:
        _tell(found[0], as_json=as_json)
    elif as_json:
        write_json({"name": name, "forgotten": True})
    else:
        click.echo(f"gate {name} is forgotten: no code has declared it, and nobody waits there")


def _find(desk: Desk, name: str) -> GateSeen:
    found = desk.client.gates(name=name)
    if not found:
        raise GateNotFound(f"there is no gate {name}; `tenure gate list` shows them")
    return found[0]


def _tell(each: GateSeen, *, as_json: bool) -> None:
    if as_json:
        write_json(each)
    else:
        click.echo(f"gate {each.name} allows {in_words(each.limits)}")


def in_words(limits: Limits) -> str:
    """What is allowed: `1 at once for each key, 10 in 1 s (20 after a quiet time)`."""
    said = []
    if limits.max_running is not None:
        said.append(f"{limits.max_running} at once")
    if limits.rate is not None:
        said.append(f"{limits.rate:g} in {limits.per_seconds:g} s")
        if limits.burst is not None:
            said[-1] += f" ({limits.burst} after a quiet time)"
    if not said:
        return "everything"
    return ", ".join(said) + (" for each key" if limits.keyed else "")
