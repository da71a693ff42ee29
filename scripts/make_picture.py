"""Take the picture of the demo that the README shows: docs/img/demo.svg.

    python -m scripts.make_picture

Runs the demo in a terminal and draws the screen a moment after the jobs of the killed worker are
queued again. Text is drawn as text; bars are drawn as rectangles, which look the same in every
font. The window has its own background, so it is readable on light and on dark pages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

from tests.support.terminal import Cell, Screen, Terminal

ROOT = Path(__file__).resolve().parent.parent
TO = ROOT / "docs" / "img" / "demo.svg"
COLUMNS, LINES = 80, 22
MOMENT, FRAMES_LATER = "queued again", 20

CELL_WIDTH, LINE_HEIGHT, FONT_SIZE = 8.4, 19.0, 14
MARGIN, TITLE_HEIGHT = 18.0, 34.0
GROUND, FRAME, PLAIN = "#1c2128", "#57606a", "#d5dbe3"
COLOURS = {1: "#ffffff", 2: "#9aa5b1", 31: "#ff8a80", 32: "#7ee29b", 36: "#6fd3e8"}
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
EIGHTHS = "▁▂▃▄▅▆▇█"
SHADE = "░"


def main() -> int:
    """Run the demo, take the picture, write it."""
    command = [sys.executable, "-m", "examples.demo"]
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with Terminal(command, cwd=ROOT, env=env, columns=COLUMNS, lines=LINES) as terminal:
        terminal.wait_for(lambda screen: MOMENT in screen.text, seconds=120)
        later = len(terminal.screen.frames) + FRAMES_LATER
        terminal.wait_for(lambda screen: len(screen.frames) >= later)
        picture = draw(trimmed(terminal.screen), title="make demo")
        assert terminal.finish(seconds=300) == 0, terminal.screen.transcript
    TO.parent.mkdir(parents=True, exist_ok=True)
    TO.write_text(picture, "utf-8")
    print(f"{TO.relative_to(ROOT)}: {len(picture.encode()):,} bytes")
    return 0


def trimmed(screen: Screen) -> list[list[Cell]]:
    """The last whole frame, without the empty rows at its end."""
    rows = list(screen.painted)
    while rows and all(char == " " for char, _ in rows[-1]):
        rows.pop()
    return rows


def draw(rows: Sequence[Sequence[Cell]], *, title: str) -> str:
    """The rows of a screen in a window, as one SVG without anything from outside."""
    columns = max((len(row) for row in rows), default=0)
    width = 2 * MARGIN + columns * CELL_WIDTH
    height = TITLE_HEIGHT + 2 * MARGIN + len(rows) * LINE_HEIGHT - 6
    words = "\n".join("".join(char for char, _ in row).rstrip() for row in rows)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img" aria-labelledby="t">'
        ),
        f'<title id="t">{escape(title)}, in a terminal</title>',
        f"<desc>{escape(words)}</desc>",
        (
            f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="9" '
            f'fill="{GROUND}" stroke="{FRAME}"/>'
        ),
        *(f'<circle cx="{20 + 18 * n}" cy="18" r="5.5" fill="{FRAME}"/>' for n in range(3)),
        f'<g font-family="{FONT}" font-size="{FONT_SIZE}" fill="{PLAIN}" xml:space="preserve">',
        (
            f'<text x="{width / 2:g}" y="23" text-anchor="middle" fill="{COLOURS[2]}">'
            f"{escape(title)}</text>"
        ),
    ]
    for number, row in enumerate(rows):
        parts += draw_row(row, TITLE_HEIGHT + MARGIN + number * LINE_HEIGHT)
    return "\n".join([*parts, "</g>", "</svg>", ""])


def draw_row(row: Sequence[Cell], top: float) -> Iterator[str]:
    """Runs of cells that look alike, each as one element."""
    column = 0
    for (style, kind), cells in groupby(row, key=lambda cell: (cell[1], kind_of(cell[0]))):
        text = "".join(char for char, _ in cells)
        left = MARGIN + column * CELL_WIDTH
        column += len(text)
        if kind:
            yield draw_bar(kind, style, left, top, len(text))
        elif text.strip():
            yield draw_text(text, style, left, top)


def kind_of(char: str) -> str:
    """A bar's own character; nothing for text."""
    return char if char in EIGHTHS or char == SHADE else ""


def draw_text(text: str, style: tuple[int, ...], left: float, top: float) -> str:
    """Text that takes up its columns in whatever font there is."""
    start = len(text) - len(text.lstrip())
    shown = text.strip()
    bold = ' font-weight="600"' if 1 in style else ""
    return (
        f'<text x="{left + start * CELL_WIDTH:.1f}" y="{top:.1f}" fill="{colour_of(style)}"{bold} '
        f'textLength="{len(shown) * CELL_WIDTH:.1f}" lengthAdjust="spacingAndGlyphs">'
        f"{escape(shown)}</text>"
    )


def draw_bar(kind: str, style: tuple[int, ...], left: float, top: float, columns: int) -> str:
    """A run of one block character."""
    eighths = 8 if kind == SHADE else EIGHTHS.index(kind) + 1
    height = (LINE_HEIGHT - 5) * eighths / 8
    faint = ' fill-opacity=".22"' if kind == SHADE else ""
    return (
        f'<rect x="{left:.1f}" y="{top + 4 - height:.1f}" width="{columns * CELL_WIDTH:.1f}" '
        f'height="{height:.1f}" fill="{colour_of(style)}"{faint}/>'
    )


def colour_of(style: tuple[int, ...]) -> str:
    """The colour of the last number that has one."""
    return next((COLOURS[number] for number in reversed(style) if number in COLOURS), PLAIN)


if __name__ == "__main__":
    sys.exit(main())
