"""A view that repaints itself in a terminal, with the alternate screen where there is one."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
BARS = "▁▂▃▄▅▆▇█"


class Screen:
    """Paints frames over each other."""

    def paint(self, lines: Sequence[str]) -> None:
        """Show these lines, as many as fit."""
        height = shutil.get_terminal_size().lines
        shown = [f"{line}{_CLEAR_LINE}" for line in list(lines)[: height - 1]]
        click.echo(_HOME + "\n".join(shown) + _CLEAR_REST, nl=False)
        sys.stdout.flush()


@contextmanager
def full_screen() -> Iterator[Screen]:
    """The whole terminal, given back as it was, whatever happens."""
    click.echo(_ENTER, nl=False)
    try:
        yield Screen()
    finally:
        click.echo(_LEAVE, nl=False)
        sys.stdout.flush()


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as a row of bars."""
    last = list(values)[-width:]
    top = max([*last, 1e-9])
    return "".join(BARS[min(7, int(8 * value / top))] if value > 0 else " " for value in last)


def bar(done: float, width: int) -> str:
    """How far something has come, from 0 to 1."""
    full = max(0, min(width, round(done * width)))
    return "█" * full + "░" * (width - full)
