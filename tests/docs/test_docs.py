"""What the pages show runs, and what they name exists. How a snippet is marked: see pages.py."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.rules.lifecycle import TRANSITIONS
from tests.docs.pages import PAGES, ROOT, Page, Snippet, page

STORIES = [each for each in PAGES if each.is_story]
ALL = [snippet for each in PAGES if not each.is_story for snippet in each.snippets]
SNIPPETS = [snippet for snippet in ALL if snippet.marks != ("python", "worker")]
SNIPPET_SECONDS = 60.0
RECORDS = [each for each in PAGES if re.match(r"docs/adr/\d{4}-", each.name)]

# Where a file may be named from, besides the root and the page's own folder.
HOMES = (
    "src/tenure", "src/tenure/store", "src/tenure/worker", "src/tenure/store/sqlite/sql", "docs",
)  # fmt: skip
FILE = re.compile(r"[\w./-]+\.(py|sql|md|toml|txt|sh)\Z")
FOLDER = re.compile(r"[\w.-]+/([\w.-]+/)*\Z")
VERB = re.compile(r"\bmake ([a-z]+)\b")


@pytest.mark.slow
@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.name)
def test_a_snippet_runs_as_printed_and_prints_what_the_page_says(
    snippet: Snippet, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "TENURE_URL")}
    if snippet.marks == ("python", "postgres"):
        environment["DATABASE_URL"] = request.getfixturevalue("pg_migrated_url")
    for each in page(snippet.page).snippets:
        if each.line <= snippet.line:
            (tmp_path / each.file).write_text(each.code, "utf-8")

    def start(file: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", file], cwd=tmp_path, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    if snippet.beside is None:
        printed = finish(start(snippet.file))
    else:
        worker = start(snippet.beside)
        try:
            printed = finish(start(snippet.file))
        finally:
            worker.send_signal(signal.SIGINT)
            finish(worker)
    assert snippet.output in (None, printed)


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a snippet to end well. Answers what it has printed."""
    try:
        printed, told = process.communicate(timeout=SNIPPET_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, told
    assert "Exception ignored" not in told, told
    return printed


def test_every_mark_of_a_snippet_is_known_and_every_worker_has_work() -> None:
    marks = {each.marks[:2] for each in ALL}
    assert marks <= {
        ("python",), ("python", "postgres"), ("python", "worker"), ("python", "beside")
    }  # fmt: skip
    workers = {(each.page, each.file) for each in ALL if each.marks == ("python", "worker")}
    assert workers == {(each.page, each.beside) for each in ALL if each.beside}


def test_every_mark_of_a_story_is_known_and_every_worker_has_work() -> None:
    known = {("python",), ("sh", "run"), ("sh", "run", "postgres"), ("sh", "worker")}
    for each in STORIES:
        steps = [step.marks for step in each.steps]
        assert set(steps) <= known, each.name
        assert steps[-1] != ("sh", "worker"), each.name


def test_the_readme_begins_with_a_snippet_on_sqlite_and_has_one_on_postgres() -> None:
    first, *others = page("README.md").steps
    assert first.marks == ("python",)
    assert "sqlite:///" in first.code
    assert any("postgres" in each.marks for each in others)


@pytest.mark.parametrize("each", PAGES, ids=lambda each: each.name)
def test_every_output_follows_a_snippet(each: Page) -> None:
    shown = [block for block in each.blocks if block.marks == ("text", "output")]
    assert len(shown) == sum(snippet.output is not None for snippet in each.steps)


@pytest.mark.parametrize("each", PAGES, ids=lambda each: each.name)
def test_every_relative_link_leads_somewhere(each: Page) -> None:
    for link in each.links:
        target, _, anchor = link.partition("#")
        path = (each.path.parent / target).resolve() if target else each.path
        assert path.exists(), f"{each.name} links to {link}"
        if anchor:
            assert anchor in Page(path).anchors, f"{each.name} links to {link}"


@pytest.mark.parametrize("each", PAGES, ids=lambda each: each.name)
def test_every_file_that_is_named_exists(each: Page) -> None:
    homes = [each.path.parent, ROOT, *(ROOT / home for home in HOMES)]
    for name in each.codes:
        if name.startswith("/") or not (FILE.match(name) or FOLDER.match(name)):
            continue
        assert any((home / name).exists() for home in homes), f"{each.name} names {name}"


@pytest.mark.parametrize("each", PAGES, ids=lambda each: each.name)
def test_every_verb_that_is_named_is_in_the_makefile(each: Page) -> None:
    verbs = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shell = [block.text for block in each.blocks if block.marks == ("sh",)]
    assert set(VERB.findall("\n".join([*each.codes, *shell]))) <= verbs


def test_readme_and_guarantees_make_the_same_promise_to_the_letter() -> None:
    promise = page("README.md").quote
    assert promise[0].startswith(
        "> At-least-once execution, fenced. Exactly-once for effects that "
    )
    assert promise == page("docs/explanation/guarantees.md").quote


def test_every_page_can_be_found_from_the_readme() -> None:
    found: set[Path] = set()
    to_read = [page("README.md").path]
    while to_read:
        path = to_read.pop()
        if path not in found and path.suffix == ".md" and path.exists():
            found.add(path)
            links = Page(path).links
            to_read += [(path.parent / link.partition("#")[0]).resolve() for link in links]
    assert found >= {each.path for each in PAGES}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.path.stem)
def test_a_decision_says_why_and_what_it_costs(record: Page) -> None:
    title, *parts = record.sections
    assert title.title.startswith(f"{int(record.path.stem[:4])}. ")
    assert [part.title for part in parts] == [
        "Context",
        "Decision",
        "Consequences",
        "What it costs",
    ]
    assert all(part.text.strip() for part in parts)
    listed = page("docs/adr/README.md").link_texts
    assert listed[record.path.name] == title.title.partition(". ")[2]


def test_every_package_is_on_the_map() -> None:
    """Its docstring lists the modules: see tests/unit/test_packages.py."""
    package = ROOT / "src/tenure"
    named = " ".join(page("docs/explanation/architecture.md").codes)
    folders = [path.parent.relative_to(package).as_posix() for path in package.rglob("__init__.py")]
    missing = [
        folder for folder in folders
        if folder != "." and f"{folder.removeprefix('worker/')}/" not in named
    ]  # fmt: skip
    assert not missing


def test_the_map_takes_ten_minutes_to_read() -> None:
    text = (ROOT / "docs/explanation/architecture.md").read_text("utf-8")
    assert len(text.split()) <= 2500


def test_every_folder_of_tests_is_on_the_map() -> None:
    named = set(page("docs/explanation/architecture.md").section("Where the tests are").names)
    for path in (ROOT / "tests").iterdir():
        if path.is_dir() and list(path.glob("test_*.py")):
            assert any(f"tests/{path.name}/" in row for row in named), path.name


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(record.path.stem[:4]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))


def test_the_diagram_draws_only_transitions_that_exist() -> None:
    [diagram] = [
        block
        for block in page("docs/explanation/architecture.md").blocks
        if block.marks == ("mermaid",)
    ]
    arrows = re.findall(r"^ +(\S+) --> (\S+): (.+)$", diagram.text, re.MULTILINE)
    assert len(arrows) == diagram.text.count("-->")
    for start, end, label in arrows:
        first_words = [part.split()[0] for part in label.split(",")]
        named = [TRANSITIONS[word] for word in first_words if word in TRANSITIONS]
        assert named, label
        for transition in named:
            assert end in transition.targets, (start, end, label)
            assert start in transition.sources or start == "[*]", (start, end, label)
    assert {end for _, end, _ in arrows} == {
        target for transition in TRANSITIONS.values() for target in transition.targets
    }
