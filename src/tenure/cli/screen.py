"""A view that repaints itself in a terminal, with the alternate screen where there is one."""

import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from tenure.cli.show import cut

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
BARS = "▁▂▃▄▅▆▇█"


class Screen:
    """Paints frames over each other."""

    def paint(self, lines: Sequence[str]) -> None:
        """Show these lines, as many as fit, each as far as it fits."""
        size = shutil.get_terminal_size()
        shown = [f"{_fit(line, size.columns)}{_CLEAR_LINE}" for line in lines[: size.lines - 1]]
        _write(_HOME + "\n".join(shown) + _CLEAR_REST)


def _fit(line: str, columns: int) -> str:
    """The line as it is, if it fits; a longer one loses its end, and its colours."""
    bare = click.unstyle(line)
    context = click.get_current_context(silent=True)
    if context is not None and context.color is False:
        line = bare
    short = cut(bare, columns)
    return line if short == bare else short


def _write(text: str) -> None:
    """Not through click, which takes control sequences out when there are to be no colours."""
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def full_screen() -> Iterator[Screen]:
    """The whole terminal, given back as it was, whatever happens; also on SIGTERM."""
    with _terminated_in_order():
        _write(_ENTER)
        try:
            yield Screen()
        finally:
            _write(_LEAVE)


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """While this lasts, SIGTERM unwinds the stack, so that the terminal is given back."""

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        sys.exit(128 + number)

    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as a row of bars."""
    last = list(values)[-width:]
    top = max([*last, 1e-9])
    return "".join(BARS[min(7, int(8 * value / top))] if value > 0 else " " for value in last)


def bar(done: float, width: int) -> str:
    """How far something has come, from 0 to 1."""
    full = max(0, min(width, round(done * width)))
    return "█" * full + "░" * (width - full)
