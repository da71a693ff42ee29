"""Output: tables for people, JSON for programs, local times with their offset.

A table fits its terminal: less important columns are left out first, then long texts are cut.
Without a terminal a table is as wide as its texts.
"""

import json
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from tenure.cli import output
from tenure.cli.output import clean, echo, style
from tenure.rules.job import ErrorInfo, Job, Progress, State
from tenure.rules.record import Record

COLOURS = {
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.RUNNING: "cyan",
    State.CANCELLED: "yellow",
    State.SKIPPED: "yellow",
}
RIGHT = {"id", "attempt", "jobs", "slots", "pid", "age", "waiting", "scheduled", "queued",
         "running", "stuck", "seen", "started", "latest", "token", "median", "lowest",
         "highest", "number", "ran", "succeeded", "failed", "other", "again", "per second",
         "failures", "wait p50", "wait p95", "run p50", "run p95"}  # fmt: skip
"""Columns of numbers. They are aligned to the right and never cut."""
SPARE = ("again", "other", "wait p50", "run p50", "per second", "wait p95", "failures", "succeeded",
         "host", "started", "pid", "charged", "notes", "token", "attempt", "waiting", "scheduled",
         "queues", "tenant",
         "queue", "worker", "stuck", "function")  # fmt: skip
"""Columns that a narrow terminal leaves out, first to last."""
NARROWEST = 9
OLD_SECONDS = 15.0
"""A report of progress that is older than this, and than the time that was left, tells no pace."""
GAP = "  "
LEASE_LOST = "lease lost"
"""The reason that a sweep gives."""

Row = Sequence[object]


def write_json(record: object) -> None:
    """One object on one line, times in UTC. Stored JSON is written as JSON, not as text."""
    output.write_json(as_builtins(record) if isinstance(record, Record) else record)


def as_builtins(record: Record) -> dict[str, Any]:
    """A record as plain values; as raw JSON if Python cannot read one of its integers."""
    shown = record.as_dict()
    for name, value in shown.items():
        text: str | None = getattr(record, f"{name}_json", None)
        if text is not None and value is text:
            shown[name] = msgspec.Raw(text.encode())
    return shown


def write_table(head: Sequence[str], rows: Iterable[Row], *, empty: str = "nothing") -> None:
    """Aligned columns; a sentence when there are no rows."""
    lines = table(head, rows)
    if len(lines) == 1:
        echo(empty)
        return
    for line in lines:
        echo(line)


def columns() -> int | None:
    """How many columns the terminal has; None without a terminal."""
    return shutil.get_terminal_size().columns if is_terminal() else None


def table(head: Sequence[str], rows: Iterable[Row]) -> list[str]:
    """The lines of a table, without control characters."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([wide(name), *(wide(row[n]) for row in cells)]) for n, name in enumerate(head)]
    most = columns()
    kept = list(range(len(head))) if most is None else _kept(head, widths, most)
    if most is not None:
        _narrow(head, widths, kept, most)
    lines = [style(_line(head, head, widths, kept), bold=True)]
    return lines + [_line(row, head, widths, kept) for row in cells]


def _kept(head: Sequence[str], widths: Sequence[int], most: int) -> list[int]:
    """The columns that fit on the terminal when long texts are cut to `NARROWEST`."""
    kept = list(range(len(head)))
    for name in SPARE:
        least = sum(widths[n] if head[n] in RIGHT else min(widths[n], NARROWEST) for n in kept)
        if least + len(GAP) * (len(kept) - 1) <= most or len(kept) == 1:
            break
        kept = [n for n in kept if head[n] != name or n == 0]
    return kept


def _narrow(head: Sequence[str], widths: list[int], kept: Sequence[int], most: int) -> None:
    """Narrow the widest text until the line fits, or until all texts are at `NARROWEST`."""
    room = most - len(GAP) * (len(kept) - 1)
    while sum(widths[n] for n in kept) > room:
        texts = [n for n in kept if head[n] not in RIGHT and widths[n] > NARROWEST]
        if not texts:
            return
        widths[max(texts, key=lambda n: widths[n])] -= 1


def _line(
    cells: Sequence[str], head: Sequence[str], widths: Sequence[int], kept: Sequence[int]
) -> str:
    parts = []
    for n in kept:
        cell = cut(cells[n], widths[n])
        space = " " * (widths[n] - wide(cell))
        padded = space + cell if head[n] in RIGHT else cell + space
        parts.append(_coloured(cell, padded) if head[n] == "state" else padded)
    return GAP.join(parts).rstrip()


def _coloured(cell: str, padded: str) -> str:
    colour = COLOURS.get(State(cell)) if cell in set(State) else None
    return style(padded, fg=colour) if colour else padded


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return clean(when(value) if isinstance(value, datetime) else str(value))


def wide(text: str) -> int:
    """How many columns a text takes: East Asian letters take two, combining accents none."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def _columns_of(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, width: int) -> str:
    """The text, or its beginning and an ellipsis, in at most `width` columns."""
    if wide(text) <= width:
        return text
    taken, room = "", width - 1
    for letter in text:
        room -= _columns_of(letter)
        if room < 0:
            break
        taken += letter
    return taken + "…"


def when(at: datetime, *, short: bool = False) -> str:
    """A local time with its offset, or `UTC`; with `short`, the time of the day only."""
    if short:
        return f"{at.astimezone():%H:%M:%S}"
    return at.astimezone().isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")


def ago(at: datetime | None) -> str:
    """How long ago, such as 5m."""
    if at is None:
        return "-"
    return span((datetime.now(UTC) - at).total_seconds())


def span(seconds: float) -> str:
    """A duration in short form: 3s, 5m, 2h, 4d."""
    sign, seconds = ("-" if seconds <= -0.5 else ""), abs(seconds)
    for limit, unit, size in ((90, "s", 1), (5400, "m", 60), (129_600, "h", 3600)):
        if seconds < limit:
            return f"{sign}{seconds / size:.0f}{unit}"
    return f"{sign}{seconds / 86_400:.0f}d"


def duration(seconds: float) -> str:
    """How long an attempt ran."""
    return f"{seconds:.3g} s" if seconds >= 0.001 else "less than 1 ms"


def progress_of(job: Job, progress: Progress | None) -> str | None:
    """How far a job is, how fast, and how long it may take: 40 %, 8 %/min, 7m left."""
    if progress is None or (progress.fraction is None and not progress.message):
        return None
    words: list[str] = []
    done, at, since = progress.fraction, progress.reported_at, job.claimed_at
    if done is not None:
        words.append(f"{done:.0%}".replace("%", " %"))
        seconds = (at - since).total_seconds() if at is not None and since is not None else 0.0
        if job.state is State.RUNNING and at is not None and 0 < done < 1 and seconds > 0:
            words += _pace(done / seconds, 1 - done, (datetime.now(UTC) - at).total_seconds())
    words += [progress.message] if progress.message else []
    return ", ".join(words)


def _pace(per_second: float, rest: float, age_seconds: float) -> list[str]:
    """How fast, and how long it may take; after a long silence, only how old the report is."""
    seconds = rest / per_second
    if age_seconds > max(OLD_SECONDS, seconds):
        return [f"reported {span(age_seconds)} ago"]
    return [_rate(100 * per_second), f"{span(max(0.0, seconds - age_seconds))} left"]


def _rate(per_second: float) -> str:
    """Per cent per second, minute or hour, whichever is easy to read."""
    for factor, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if per_second * factor >= 1 or unit == "h":
            return f"{per_second * factor:.2g} %/{unit}"
    raise AssertionError


def short_error(job: Job) -> str:
    """The error of a job on one line: its type and the first line of its message."""
    if job.error is None:
        return job.reason or "?"
    return error_line(job.error)


def error_line(error: ErrorInfo) -> str:
    """An error on one line: its type and the first line of its message."""
    message = error.message.splitlines()
    return f"{error.short_type}: {message[0] if message else ''}".rstrip(": ")


def _facts(detail: str | None) -> dict[str, Any] | None:
    try:
        facts = json.loads(detail or "null")
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


_OF_ATTEMPTS = frozenset({"reason", "claimed_at", "duration_seconds", "attempts", "notes"})
"""What `tenure attempts` shows of an event."""


def in_words(detail: str | None) -> str | None:
    """The detail of an event, for people; --json has all of it."""
    facts = _facts(detail)
    if facts is None:  # a reason, or a message from the job
        return detail
    error, delay = facts.pop("error", None), facts.pop("delay_seconds", None)
    try:
        told = msgspec.convert(error, ErrorInfo | None)
        delay = msgspec.convert(delay, float | None)
    except msgspec.ValidationError:  # a reason that happens to be JSON
        return detail
    if told is not None:
        facts["reason"] = error_line(told)
    words = []
    if (charged := facts.pop("charged", None)) is not None:  # a sweep has taken it back
        words.append(f"its worker died; the attempt is {'' if charged else 'not '}charged")
        facts["reason"] = None if facts.get("reason") == LEASE_LOST else facts.get("reason")
    words += [str(facts.pop("reason"))] if facts.get("reason") else []
    words += [f"again in {delay:.1f} s"] if delay else []
    for name, value in facts.items():
        if value is not None and name not in _OF_ATTEMPTS:
            words.append(f"{name} {json.dumps(value, ensure_ascii=False)}")
    return ", ".join(words) or None


def is_terminal() -> bool:
    """Is the output a terminal?"""
    return sys.stdout.isatty()
