"""What the demo shows: a live view in a terminal, plain lines elsewhere."""

import sys
import time
from collections import Counter, deque
from types import TracebackType
from typing import Self

from tenure import State, Tenure
from tenure.cli.screen import Screen, bar, full_screen, sparkline

PLAIN_SECONDS = 5.0
"""Without a terminal, one line of progress in so many seconds."""
WIDTH = 40


class Stage:
    """Paints the work on a terminal, or tells it line by line."""

    def __init__(self, app: Tenure) -> None:
        self._app = app
        self._terminal = sys.stdout.isatty()
        self._screen: Screen | None = None
        self._started = time.monotonic()
        self._told: list[str] = []
        self._rates: deque[float] = deque(maxlen=WIDTH)
        self._last = (self._started, 0)
        self._last_line = 0.0

    @property
    def seconds(self) -> float:
        """How long the demo has run."""
        return time.monotonic() - self._started

    def __enter__(self) -> Self:
        if self._terminal:
            self._context = full_screen()
            self._screen = self._context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._screen is not None:
            self._screen = None
            self._context.__exit__(None, None, None)
            print("\n".join(self._told), flush=True)

    def say(self, line: str) -> None:
        """Something has happened."""
        stamped = f"{self.seconds:5.1f} s  {line}"
        self._told.append(stamped)
        if self._screen is None:
            print(stamped, flush=True)

    def paint(self, done: int, total: int) -> None:
        """Show how far the work has come."""
        now = time.monotonic()
        before, done_before = self._last
        if now - before >= 0.5 or done < done_before:
            self._rates.append(max(0, done - done_before) / max(now - before, 1e-3))
            self._last = (now, done)
        if self._screen is not None:
            self._screen.paint(self._lines(done, total))
        elif now - self._last_line >= PLAIN_SECONDS:
            self._last_line = now
            print(f"{self.seconds:5.1f} s  {done} of {total} jobs finished", flush=True)

    def _lines(self, done: int, total: int) -> list[str]:
        rate = self._rates[-1] if self._rates else 0.0
        live = Counter[str]()
        for count in self._app.count_live():
            live[count.state] += count.jobs
        states = "  ".join(
            f"{state} {live[state]}" for state in (State.QUEUED, State.RUNNING, State.SCHEDULED)
        )
        lines = [
            f"tenure: a backfill on {self._app.url.rsplit('/', 1)[-1]}, {self.seconds:.0f} s",
            "",
            f"jobs   {bar(done / max(total, 1), WIDTH)}  {done} of {total}",
            f"rate   {sparkline(self._rates, WIDTH).ljust(WIDTH)}  {rate:.0f}/s",
            f"       {states}",
            "",
        ]
        lines += self._books()
        return [*lines, "", *self._told[-8:]]

    def _books(self) -> list[str]:
        page = self._app.list_jobs(states={State.RUNNING}, queue="books", limit=10)
        shown = []
        for job in page.jobs:
            progress = self._app.progress(job.id)
            told = f"{progress.message or ''}, attempt {job.attempts + 1}, worker {job.worker}"
            shown.append(f"book   {bar(progress.fraction or 0.0, WIDTH)}  {told}")
        return shown
