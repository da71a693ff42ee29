"""The pages of the documentation, taken apart: snippets, headings, tables, links, names of files.

How a snippet is marked, in the line that opens its fence:

    ```python                  runs as printed, as a script of its own, in a folder of its own
    ```python postgres         the same, with DATABASE_URL naming a migrated, empty database
    ```python worker           works until it is interrupted, and then ends with status 0
    ```python beside shop.py   runs while the worker in shop.py of the same page works
    ```text output             what the snippet above prints, to the letter

A snippet that begins with a comment such as `# shop.py` is a file of that name, which the snippets
below it on the page find in their folder. There is no mark for Python that does not run.

A page with commands that run is a *story*: its snippets run one after the other, in one folder.

    ```sh run                  runs as printed; what it exports counts for the rest of the page
    ```sh run postgres         the same; from here on DATABASE_URL names an empty database
    ```sh worker               works beside the rest of the page, or until the next such worker
    ```sh                      is for another machine: only its `tenure` commands are checked

In the output of a story runs of blanks count as one, `…` stands for anything within a line, and a
line of `…` alone for any lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^ *```(.*)$")
_HEADING = re.compile(r"^(#+) (.+)$")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True)
class Block:
    """One fenced block: its marks, the line it begins on, its text."""

    marks: tuple[str, ...]
    line: int
    text: str


@dataclass(frozen=True)
class Snippet:
    """One snippet that runs, and what it prints if the page says so."""

    page: str
    line: int
    marks: tuple[str, ...]
    code: str
    output: str | None

    @property
    def name(self) -> str:
        """Where it stands."""
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        """The name of its file."""
        named = _FILE.match(self.code)
        return named[1] if named else "snippet.py"

    @property
    def beside(self) -> str | None:
        """The file of the worker that it needs."""
        return self.marks[2] if self.marks[1:2] == ("beside",) else None

    def prints(self, printed: str) -> bool:
        """Is this what the page of a story shows?"""
        if self.output is None:
            return True
        shown = "".join(
            r"(?:.*\n)*" if line.strip() == "…" else f"{_pattern(line)}\n"
            for line in self.output.splitlines()
        )
        told = "".join(f"{' '.join(line.split())}\n" for line in printed.splitlines())
        return re.fullmatch(shown, told) is not None


@dataclass(frozen=True)
class Section:
    """What stands under one heading, without the sections below it."""

    level: int
    title: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def rows(self) -> list[list[str]]:
        """The rows of its tables, without their headers."""
        found = [_cells(line) for line in self.lines if line.startswith("|")]
        rules = [number for number, row in enumerate(found) if set("".join(row)) <= set("-:")]
        headers = {number - 1 for number in rules}
        return [row for number, row in enumerate(found) if number not in {*rules, *headers}]

    @property
    def names(self) -> list[str]:
        """The first cell of each row, which is a name in code."""
        return [row[0].removeprefix("`").removesuffix("`") for row in self.rows]


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def lines(self) -> list[str]:
        return self.path.read_text("utf-8").splitlines()

    @cached_property
    def blocks(self) -> list[Block]:
        """Its fenced blocks."""
        return [item for item in self._items() if isinstance(item, Block)]

    @cached_property
    def prose(self) -> list[str]:
        """Its lines outside of fenced blocks."""
        return [item for item in self._items() if isinstance(item, str)]

    @cached_property
    def snippets(self) -> list[Snippet]:
        """Its Python snippets, each with the output that follows it."""
        return [each for each in self.steps if each.marks[:1] == ("python",)]

    @property
    def is_story(self) -> bool:
        """Does it show commands that run?"""
        return len(self.steps) > len(self.snippets)

    @cached_property
    def steps(self) -> list[Snippet]:
        """All that runs: Python snippets and commands, each with the output that follows it."""
        found = []
        for block, after in zip_longest(self.blocks, self.blocks[1:]):
            is_command = block.marks[:1] == ("sh",) and block.marks != ("sh",)
            if block.marks[:1] == ("python",) or is_command:
                is_output = after is not None and after.marks == ("text", "output")
                output = after.text if after is not None and is_output else None
                found.append(Snippet(self.name, block.line, block.marks, block.text, output))
        return found

    @cached_property
    def sections(self) -> list[Section]:
        """Its sections in order."""
        found: list[Section] = []
        for line in self.prose:
            if heading := _HEADING.match(line):
                found.append(Section(len(heading[1]), heading[2], ()))
            elif found:
                last = found[-1]
                found[-1] = Section(last.level, last.title, (*last.lines, line))
        return found

    def section(self, title: str) -> Section:
        """The section under this heading."""
        [found] = [section for section in self.sections if section.title == title]
        return found

    def under(self, title: str) -> list[Section]:
        """The sections one level below this heading."""
        start = self.sections.index(self.section(title))
        found = []
        for section in self.sections[start + 1 :]:
            if section.level <= self.sections[start].level:
                break
            found.append(section)
        return found

    @property
    def anchors(self) -> set[str]:
        """What a link to this page may name after its `#`."""
        return {_anchor(section.title) for section in self.sections}

    @property
    def links(self) -> list[str]:
        """Where its links lead, those to other sites aside."""
        return [target for _, target in self._links if "://" not in target]

    @property
    def link_texts(self) -> dict[str, str]:
        """Target -> the text that leads there."""
        return {target: text for text, target in self._links}

    @property
    def _links(self) -> list[tuple[str, str]]:
        return _LINK.findall("\n".join(self.prose))

    @property
    def codes(self) -> list[str]:
        """What stands in backticks in its prose."""
        return _CODE.findall("\n".join(self.prose))

    @property
    def quote(self) -> list[str]:
        """Its quoted lines."""
        return [line for line in self.prose if line.startswith(">")]

    def _items(self) -> Iterator[Block | str]:
        """Prose line by line, and fenced blocks as a whole."""
        marks: tuple[str, ...] | None = None
        inside: list[str] = []
        for number, line in enumerate(self.lines, 1):
            fence = _FENCE.match(line)
            if marks is None and fence:
                marks, inside = tuple(fence[1].split()), []
            elif marks is not None and fence:
                yield Block(marks, number - len(inside), "".join(f"{each}\n" for each in inside))
                marks = None
            elif marks is not None:
                inside.append(line)
            else:
                yield line
        assert marks is None, f"{self.name}: a fence is not closed"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _pattern(line: str) -> str:
    """A line of output, in which … stands for anything."""
    return re.escape(" ".join(line.split())).replace("…", ".*")


def _anchor(title: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    kept = "".join(each for each in title.lower() if each.isalnum() or each in " -_")
    return kept.replace(" ", "-")


def page(name: str) -> Page:
    """The page of this name, from the root of the project."""
    return Page(ROOT / name)


PAGES = tuple(
    Page(path) for path in (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")))
)
