"""Build the documentation as a static site, with navigation and search: `make docs`.

python scripts/make_site.py [--docs docs] [--to site]

Broken links, links to missing headings, and pages that are not in the navigation fail the build.
The pages are written for readers of the repository; the site is built from a copy in the dialect of
its generator. See `for_the_site`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIG = "zensical.toml"
FENCE = re.compile(r"^( *```\w+) [^\n`]*$", re.MULTILINE)
STEP = re.compile(r"^ {3}(?=\S)")
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
ARROW = re.compile(r"^ *(\S+) --> (\S+): (.+)$", re.MULTILINE)


def pages_of(nav: object) -> Iterator[str]:
    """The pages that a navigation leads to."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list):
        for each in nav:
            yield from pages_of(each)
    elif isinstance(nav, dict):
        yield from pages_of(list(nav.values()))


def problems_of(docs: Path) -> list[str]:
    """What the navigation forgets, or names twice or in vain."""
    config = tomllib.loads((ROOT / CONFIG).read_text("utf-8"))
    listed = list(pages_of(config["project"]["nav"]))
    there = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    twice = {name for name in listed if listed.count(name) > 1}
    return [
        *(f"{name} is not in the navigation of {CONFIG}" for name in sorted(there - set(listed))),
        *(f"{CONFIG} names {name}, which is not there" for name in sorted(set(listed) - there)),
        *(f"{CONFIG} names {name} twice" for name in sorted(twice)),
    ]


def for_the_site(page: str) -> str:
    """A page in the dialect of the site generator.

    It takes the marks of the tests, such as `python worker`, for options of its own; steps of a
    list are indented by four; and diagrams, which would need a remote script, become tables.
    """
    return "".join(_indented(FENCE.sub(r"\1", DIAGRAM.sub(_as_table, page))))


def _indented(page: str) -> Iterator[str]:
    is_code = False
    for line in page.splitlines(keepends=True):
        is_code ^= line.startswith("```")
        yield line if is_code else STEP.sub("    ", line)


def _as_table(diagram: re.Match[str]) -> str:
    rows = [f"| {start} | {end} | {label} |" for start, end, label in ARROW.findall(diagram[1])]
    return "\n".join(["| from | to | by |", "|---|---|---|", *rows, ""]).replace("[*]", "")


def build(docs: Path, site: Path) -> int:
    """Build the site. Answers the exit status."""
    if problems := problems_of(docs):
        print("\n".join(problems), file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="tenure-docs-") as folder:
        work = Path(folder)
        shutil.copy(ROOT / CONFIG, work)
        shutil.copytree(docs, work / "docs")
        for path in (work / "docs").rglob("*.md"):
            path.write_text(for_the_site(path.read_text("utf-8")), "utf-8")
        status = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict", "-f", CONFIG], cwd=work
        ).returncode
        if status == 0:
            shutil.rmtree(site, ignore_errors=True)
            shutil.move(work / "site", site)
            print(f"{site}/index.html; with search: python -m http.server -d {site}")
        return status


def main() -> int:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="Build the documentation as a static site.")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    parser.add_argument("--to", type=Path, default=ROOT / "site")
    given = parser.parse_args()
    return build(given.docs, given.to)


if __name__ == "__main__":
    sys.exit(main())
