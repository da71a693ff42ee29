"""Small SVG plots, written by hand: bars on a logarithmic scale, and lines. No dependency."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

import msgspec

WIDTH = 760
LEFT, RIGHT, TOP, ROW = 150, 110, 40, 44
OURS, THEIRS, INK, GRID = "#1f6f8b", "#b8b8b8", "#222222", "#e4e4e4"
COLOURS = ("#1f6f8b", "#d1495b", "#edae49", "#66a182", "#8d6a9f", "#6b4f3a", "#2e4057", "#999999")
HEIGHT_OF_LINES = 320


class Bar(msgspec.Struct, frozen=True):
    """Two values side by side."""

    label: str
    ours: float
    theirs: float


class Line(msgspec.Struct, frozen=True):
    """A curve."""

    label: str
    values: Sequence[float]


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars, ours above theirs, on a logarithmic scale from a power of ten."""
    values = [value for row in rows for value in (row.ours, row.theirs) if value > 0]
    low = math.floor(math.log10(min(values)) - 0.3)
    high = max(math.log10(max(values)), low + 1)
    space = WIDTH - LEFT - RIGHT

    def width(value: float) -> float:
        return max(1.0, space * (math.log10(max(value, 10**low)) - low) / (high - low))

    parts: list[str] = []
    for number, row in enumerate(rows):
        y = TOP + number * ROW
        parts.append(_text(LEFT - 8, y + 22, row.label, anchor="end"))
        for value, colour, offset in ((row.ours, OURS, 4), (row.theirs, THEIRS, 20)):
            parts.append(
                f'<rect x="{LEFT}" y="{y + offset}" width="{width(value):.1f}" height="14" '
                f'fill="{colour}"/>'
            )
            parts.append(_text(LEFT + width(value) + 5, y + offset + 11, _short(value), size=11))
    legend = f"{title} (dark: Tenure; log scale)"
    return _svg(legend, TOP + len(rows) * ROW + 10, parts)


def lines(title: str, curves: Sequence[Line]) -> str:
    """Curves over their rounds, from zero."""
    top = max(value for curve in curves for value in curve.values) * 1.05
    longest = max(len(curve.values) for curve in curves)
    space, height = WIDTH - LEFT / 2 - RIGHT - 30, HEIGHT_OF_LINES - TOP - 30

    def x(number: int) -> float:
        return LEFT / 2 + space * number / max(1, longest - 1)

    def y(value: float) -> float:
        return TOP + height * (1 - value / top)

    parts = list(_grid(top, x(0), x(longest - 1), y))
    for curve, colour in zip(curves, COLOURS * (1 + len(curves) // len(COLOURS)), strict=False):
        points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(curve.values))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        end = len(curve.values) - 1
        parts.append(_text(x(end) + 6, y(curve.values[-1]) + 4, curve.label, colour=colour))
    return _svg(title, HEIGHT_OF_LINES, parts)


def _grid(top: float, left: float, right: float, y: Callable[[float], float]) -> Iterator[str]:
    for step in range(5):
        value = top * step / 4
        yield (
            f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            f'stroke="{GRID}"/>'
        )
        yield _text(left - 6, y(value) + 4, _short(value), anchor="end", size=11)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif">'
    )
    back = f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>'
    return "\n".join([head, back, _text(12, 22, title, size=14), *parts, "</svg>\n"])


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, colour: str = INK
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{colour}">{escape(words)}</text>'
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
