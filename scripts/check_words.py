"""Find phrases that CONTRIBUTING.md asks to avoid, in source, examples and documentation.

    python scripts/check_words.py [FOLDER OR FILE ...]

Checks comments, docstrings and strings of Python, comments of SQL, and the prose of Markdown. Skips
code in Markdown, and the pages and parts that are made from other files. Prints each hit as
`file:line: phrase -> better`, then the number of hits per folder. Exits with 1 if there is a hit. A
line is exempt when it contains a text of `ALLOWED`.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("src", "examples", "docs", "tests/tour", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")

PHRASES = {
    r"answers|answered": "returns, returned; replies",
    r"(?:some|no|any|every)body|whoever": "name the actor: a worker, another process, the user",
    r"(?:for|by|to) whom|who (?:waits?|runs|has|comes)": "name the actor: the worker that has ...",
    r"what (?:waits?|runs|has not started|was missed)": "use a noun: the waiting jobs",
    r"those that do|that is none": "use a noun",
    r"all the same": "anyway; nevertheless",
    r"side by side": "at the same time",
    r"so (?:many|much)": "a number; each; up to `count`",
    r"in a time": "per period",
    r"in line|in hand": "queued; claimed",
    r"dead tickets?": "void ticket",
    r"crew|lent|lends?": "supervisor; borrowed",
    r"anew": "again; from the beginning",
    r"lets? count again": "revert to",
    r"of late": "lately; last seen",
    r"(?:is|are) as always|whichever way": "behaves like any other; however it ends",
    r"(?:all|what) (?:there is|it) to know": "say it",
    r"puts? right": "repair",
}
"""Pattern -> what to write instead. Whole words, any case."""

ALLOWED = ('"in hand"', '"answered"', "`answers`")
"""Exact texts that exempt their line: names in the code, such as the key of a worker's count."""

_ANY = re.compile(rf"\b(?:{'|'.join(f'({each})' for each in PHRASES)})\b", re.IGNORECASE)
_BETTER = list(PHRASES.values())
_FENCE = re.compile(r"^ *(```|~~~)")
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+")
_TEXT = {tokenize.COMMENT, tokenize.STRING} | {
    getattr(tokenize, name) for name in ("FSTRING_MIDDLE",) if hasattr(tokenize, name)
}


def main(words: list[str]) -> int:
    """Check the given paths, or everything."""
    counts: Counter[str] = Counter()
    places = [Path(word).resolve() for word in words] or [ROOT / place for place in PLACES]
    for path in files(places):
        name = path.relative_to(ROOT)
        for line, phrase, better in hits(path):
            print(f"{name}:{line}: {phrase} -> {better}")
            counts[str(name.parent)] += 1
    for folder, count in sorted(counts.items()):
        print(f"{count:5}  {folder}")
    return 1 if counts else 0


def files(places: Iterable[Path]) -> Iterator[Path]:
    """The files to check, in order."""
    for place in places:
        if place.is_file():
            yield place
        else:
            found = (p for p in place.rglob("*") if p.suffix in (".py", ".sql", ".md"))
            yield from sorted(found)


def hits(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and the better words."""
    text = path.read_text("utf-8")
    if not _ANY.search(text):  # nearly all files: reading them token by token is slow
        return
    lines = {".py": python, ".sql": sql, ".md": markdown}[path.suffix](text)
    for number, line in lines:
        if any(phrase in line for phrase in ALLOWED):
            continue
        for match in _ANY.finditer(line):
            assert match.lastindex is not None
            yield number, match[0], _BETTER[match.lastindex - 1]


def python(text: str) -> Iterator[tuple[int, str]]:
    """Comments, docstrings and strings, line by line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _TEXT:
            yield from enumerate(token.string.split("\n"), token.start[0])


def sql(text: str) -> Iterator[tuple[int, str]]:
    """Comments."""
    for number, line in enumerate(text.split("\n"), 1):
        yield number, line.partition("--")[2]


def markdown(text: str) -> Iterator[tuple[int, str]]:
    """Prose: no code, no addresses, and nothing that is made from docstrings."""
    if "do not edit" in text[:300]:  # the source of the page is checked
        return
    is_code = is_made = False
    for number, line in enumerate(text.split("\n"), 1):
        if _FENCE.match(line):
            is_code = not is_code
        is_made = is_made or line.startswith("<!-- made:")
        if not is_code and not is_made:
            yield number, _CODE.sub("", line)
        if line.startswith("<!-- end -->"):
            is_made = False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
