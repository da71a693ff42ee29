"""The picture of the README is a picture of this demo, and needs nothing from outside."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from scripts.make_picture import CELL_WIDTH, TO, draw
from tests.support.terminal import Cell

MOST_BYTES = 60_000
SVG = "{http://www.w3.org/2000/svg}"


def cells(text: str, *style: int) -> list[Cell]:
    return [(char, style) for char in text]


def test_the_picture_is_small_well_formed_and_whole() -> None:
    text = TO.read_text("utf-8")
    assert len(text.encode()) < MOST_BYTES
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    names = {each.tag.removeprefix(SVG) for each in root.iter()}
    assert names == {"svg", "title", "desc", "rect", "circle", "g", "text"}
    assert re.findall(r"(?:href|url|src|style|script)\b", text) == []


@pytest.mark.parametrize(
    "words",
    [
        r"^jobs +█+░+  [\d,]+ of 3,009$",
        r"^rate .* jobs per second$",
        r"^book 1 +█+",
        r"^worker  \d+ +killed; other workers run its jobs$",
        r"SIGKILL to worker \d+, which has \d+ jobs?$",
        r"the lease of \d+ has expired; \d+ jobs? queued again$",
    ],
)
def test_the_picture_shows_what_the_demo_shows(words: str) -> None:
    """The same words as the view that is painted; see `PAINTED` in test_demo.py."""
    described = ElementTree.parse(TO).findtext(f"{SVG}desc")
    assert described is not None
    assert re.search(words, described, re.MULTILINE), described


def test_text_is_text_and_bars_are_rectangles() -> None:
    row = [*cells("a<b  ", 1), *cells("██", 36), *cells("░", 36), *cells("▄")]
    root = ElementTree.fromstring(draw([row], title="x & y"))
    assert [each.text for each in root.iter(f"{SVG}text")] == ["x & y", "a<b"]
    full, faint, half = list(root.iter(f"{SVG}rect"))[1:]
    assert float(full.attrib["width"]) == pytest.approx(2 * CELL_WIDTH, abs=0.1)
    assert full.attrib["fill"] == faint.attrib["fill"] != half.attrib["fill"]
    assert "fill-opacity" in faint.attrib
    assert float(half.attrib["height"]) == pytest.approx(float(full.attrib["height"]) / 2)
