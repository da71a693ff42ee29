"""The output of the demo: a live view in a terminal, plain lines elsewhere."""

import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tenure.cli import output
from tenure.cli.screen import Screen, bar, full_screen, sparkline

PLAIN_SECONDS = 5.0
"""Without a terminal, the time between two lines of progress."""
RATE_SECONDS = 0.5
WIDEST, NARROWEST = 36, 8
"""The width of the bars, in columns."""
STYLES: dict[str, dict[str, Any]] = {
    "": {},
    "title": {"bold": True},
    "quiet": {"dim": True},
    "good": {"fg": "green"},
    "busy": {"fg": "cyan"},
    "bad": {"fg": "red"},
}

Line = Sequence[tuple[str, str]]
"""Pieces of text, each with its style."""


@dataclass(frozen=True, slots=True)
class Look:
    """The state of the work at a moment. `books` have a name, a fraction and words; `workers` have
    a process id, words and a style."""

    done: int
    total: int
    queued: int = 0
    claimed: int = 0
    to_retry: int = 0
    dead: int = 0
    books: Sequence[tuple[str, float, str]] = ()
    workers: Sequence[tuple[int, str, str]] = field(default=())


class Stage:
    """Paints the work on a terminal, or prints it line by line."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._is_coloured = not os.environ.get("NO_COLOR")
        self._screen: Screen | None = None
        self._stack = ExitStack()
        self._started = time.monotonic()
        self._told: list[str] = []
        self._untold = 0
        self._rates: deque[float] = deque(maxlen=WIDEST)
        self._last = (self._started, 0)
        self._last_line = self._started

    @property
    def seconds(self) -> float:
        """How long the demo has run."""
        return time.monotonic() - self._started

    def __enter__(self) -> Self:
        if self._is_terminal:
            self._screen = self._stack.enter_context(full_screen())
            self._untold = len(self._told)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._screen is not None:
            self._screen = None
            self._stack.close()
            print("\n".join(self._told[self._untold :]), flush=True)

    def say(self, line: str) -> None:
        """Print one event with its time."""
        stamped = f"{self.seconds:5.1f} s  {line}"
        self._told.append(stamped)
        if self._screen is None:
            print(stamped, flush=True)

    def paint(self, look: Look) -> None:
        """Show the progress of the work."""
        now = time.monotonic()
        before, done_before = self._last
        if now - before >= RATE_SECONDS:
            self._rates.append(max(0, look.done - done_before) / (now - before))
            self._last = (now, look.done)
        if self._screen is not None:
            size = shutil.get_terminal_size()
            lines = self._lines(look, size.columns, size.lines)
            self._screen.paint([fit(line, size.columns, self._is_coloured) for line in lines])
        elif now - self._last_line >= PLAIN_SECONDS:
            self._last_line = now
            rate = f"{self._rates[-1]:.0f} per second" if self._rates else ""
            print(
                f"{self.seconds:5.1f} s  {look.done:,} of {look.total:,} jobs, {rate}", flush=True
            )

    def _lines(self, look: Look, columns: int, height: int) -> list[Line]:
        """The whole view. The latest events get the remaining rows."""
        width = max(NARROWEST, min(WIDEST, columns - 44))
        rate = self._rates[-1] if self._rates else 0.0
        counts = f"        {look.queued:,} queued, {look.claimed} claimed, "
        counts += f"{look.to_retry} to retry, "
        title = "Tenure: a corpus backfill on an embedded SQLite file"
        lines: list[Line] = [
            [(title, "title"), (f"{self.seconds:.0f} s".rjust(10), "quiet")],
            [],
            row("jobs", look.done / max(look.total, 1), width, f"{look.done:,} of {look.total:,}"),
            [("rate    ", "quiet"), (sparkline(self._rates, width).ljust(width), "busy"),
             (f"  {rate:.0f} jobs per second", "")],
            [(counts, ""), (f"{look.dead} dead letters", "bad" if look.dead else "")],
            [],
            *(row(name, part, width, words) for name, part, words in look.books),
            [],
            *([("worker  ", "quiet"), (f"{pid:<8}", ""), (words, style)]
              for pid, words, style in look.workers),
            [("        kill -9 a worker if you like: another one replaces it", "quiet")],
            [],
        ]  # fmt: skip
        room = max(1, height - len(lines) - 1)
        return [*lines, *([(told, styled(told))] for told in self._told[-room:])]


def row(name: str, part: float, width: int, words: str) -> Line:
    """A name, a bar, and a text."""
    style = "good" if part >= 1 else "busy"
    return [(f"{name:<8}", "quiet"), (bar(part, width), style), (f"  {words}", "")]


def styled(told: str) -> str:
    """The style of an event's line."""
    return "bad" if "SIGKILL" in told else ""


def fit(line: Line, columns: int, is_coloured: bool) -> str:
    """The line cut to the columns of the terminal: a longer line would wrap."""
    shown = []
    for text, style in line:
        kept = text[:columns]
        columns -= len(kept)
        shown.append(output.style(kept, **STYLES[style]) if is_coloured and kept else kept)
    return "".join(shown)
