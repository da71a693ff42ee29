"""How things are written: tables for people, JSON for programs, local times with their offset."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import click
import msgspec

from tenure.job import Job, State

COLOURS = {
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.RUNNING: "cyan",
    State.CANCELLED: "yellow",
    State.SKIPPED: "yellow",
}
WIDEST = 60

Row = Sequence[object]


def write_json(record: object) -> None:
    """One object on one line, times in UTC. Stored JSON is written as JSON, not as text."""
    click.echo(json.dumps(as_builtins(record), ensure_ascii=False))


def as_builtins(record: object) -> object:
    """A record as plain values."""
    plain = msgspec.to_builtins(record)
    if isinstance(record, Job) and isinstance(plain, dict):
        for field in ("args", "result", "error", "metadata", "retry"):
            if isinstance(plain[field], str):
                plain[field] = json.loads(plain[field])
    return plain


def write_table(head: Sequence[str], rows: Iterable[Row], *, empty: str = "nothing") -> None:
    """Aligned columns; a sentence when there are no rows."""
    lines = table(head, rows)
    for line in lines:
        click.echo(line)
    if len(lines) == 1:
        click.echo(empty)


def table(head: Sequence[str], rows: Iterable[Row]) -> list[str]:
    """The lines of a table. Only text without control characters reaches a terminal."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[n]) for row in cells)]) for n, name in enumerate(head)]
    lines = [click.style(_line(head, widths, head), bold=True)]
    return lines + [_line(row, widths, head) for row in cells]


def _line(cells: Sequence[str], widths: Sequence[int], head: Sequence[str]) -> str:
    parts = []
    for cell, width, name in zip(cells, widths, head, strict=True):
        padded = cell.rjust(width) if name in RIGHT else cell.ljust(width)
        parts.append(_coloured(cell, padded) if name == "state" else padded)
    return "  ".join(parts).rstrip()


RIGHT = {"id", "attempt", "jobs", "slots", "pid", "age", "waiting", "scheduled", "queued",
         "running", "in hand", "stuck", "rate/s", "failed", "succeeded"}  # fmt: skip


def _coloured(cell: str, padded: str) -> str:
    colour = COLOURS.get(State(cell)) if cell in set(State) else None
    return click.style(padded, fg=colour) if colour else padded


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = when(value) if isinstance(value, datetime) else str(value)
    text = clean(text)
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def clean(text: str) -> str:
    """One line without control characters: what a job holds cannot move the cursor."""
    return "".join(c if c.isprintable() else " " for c in text)


def when(at: datetime) -> str:
    """A time as people here read it: local, with its offset."""
    return at.astimezone().isoformat(sep=" ", timespec="seconds")


def ago(at: datetime | None) -> str:
    """How long ago, in short."""
    if at is None:
        return "-"
    return span((datetime.now(UTC) - at).total_seconds())


def span(seconds: float) -> str:
    """A length of time, in short: 3s, 5m, 2h, 4d."""
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    for limit, unit, size in ((90, "s", 1), (5400, "m", 60), (129_600, "h", 3600)):
        if seconds < limit:
            return f"{sign}{seconds / size:.0f}{unit}"
    return f"{sign}{seconds / 86_400:.0f}d"


def is_terminal() -> bool:
    """Is somebody watching?"""
    return sys.stdout.isatty()
