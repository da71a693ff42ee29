"""A terminal view that repaints itself, on the alternate screen."""

import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from tenure.cli.output import clean, rendered, unstyled
from tenure.cli.show import cut

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
BARS = "▁▂▃▄▅▆▇█"


class Screen:
    """Paints frames over each other."""

    def paint(self, lines: Sequence[str]) -> None:
        """Show the lines that fit on the screen, each cut to its width."""
        size = shutil.get_terminal_size()
        shown = [f"{_fit(line, size.columns)}{_CLEAR_LINE}" for line in lines[: size.lines - 1]]
        _write(_HOME + "\n".join(shown) + _CLEAR_REST)


def _fit(line: str, columns: int) -> str:
    """The line, if it fits. A longer line is cut and loses its colours."""
    bare = clean(unstyled(line))
    context = click.get_current_context(silent=True)
    if context is not None and context.color is False:
        line = bare
    short = cut(bare, columns)
    return rendered(line) if short == bare else short


def _write(text: str) -> None:
    """Write without click, which removes control sequences when colours are off."""
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Read single keys: a function that waits for one, at most for these seconds; "" is none.

    Ctrl-C interrupts as usual. Without a terminal to read from it only waits.
    """
    if not sys.stdin.isatty() or os.name != "posix":
        yield _slept
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)

    def wait(seconds: float) -> str:
        readable, _, _ = select.select([fd], [], [], seconds)
        if not readable:
            return ""
        return os.read(fd, 1).decode(errors="replace") or "q"  # the terminal is gone

    try:
        yield wait
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _slept(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextmanager
def full_screen() -> Iterator[Screen]:
    """Use the whole terminal. It is restored in any case, also on SIGTERM."""
    with _terminated_in_order():
        _write(_ENTER)
        try:
            yield Screen()
        finally:
            _write(_LEAVE)


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """Inside this block SIGTERM unwinds the stack, so that the terminal is restored."""

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
    """A progress bar; `done` is from 0 to 1."""
    full = max(0, min(width, round(done * width)))
    return "█" * full + "░" * (width - full)
