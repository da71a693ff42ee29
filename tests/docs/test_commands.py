"""What the pages show for a terminal, a supervisor or a cluster is right, and runs where it can."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path

import click
import msgspec
import pytest

from tenure.cli.main import cli
from tenure.worker.settings import WorkerSettings
from tests.docs.pages import PAGES, Page, Snippet, page
from tests.docs.story import Story

STORIES = [each for each in PAGES if each.is_story]
PLACEHOLDER = re.compile(r"\.\.\.|\b[A-Z]{4,}\b(?!_)")
ENDS_A_COMMAND = {"|", "||", "&&", ";", "2>"}
STOP_SECONDS = WorkerSettings().drain_seconds + WorkerSettings().kill_seconds + 5


@pytest.mark.slow
@pytest.mark.parametrize("each", STORIES, ids=lambda each: each.name)
def test_a_page_with_commands_runs_from_top_to_bottom(
    each: Page, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    story = Story(tmp_path)
    try:
        for step in each.steps:
            if step.marks == ("sh", "run", "postgres"):
                story.environment["DATABASE_URL"] = request.getfixturevalue("pg_url")
            printed = story.play(step)
            assert step.prints(printed), f"{step.name} prints:\n{printed}"
    finally:
        story.stop()


@pytest.mark.parametrize("each", PAGES, ids=lambda each: each.name)
def test_every_tenure_command_is_one(each: Page) -> None:
    """Also where a page cannot run it. What stands in a sentence may leave arguments out."""
    blocks = [line for block in each.blocks if block.marks[:1] == ("sh",)
              for line in block.text.splitlines()]  # fmt: skip
    inline = [
        code for code in each.codes if code.startswith("tenure ") and not PLACEHOLDER.search(code)
    ]
    for line in blocks:
        for words in commands_in(line):
            check(words)
    for line in inline:
        check(*commands_in(line), whole=False)


def commands_in(line: str) -> Iterator[list[str]]:
    """The `tenure` commands of a line of shell, each as its arguments."""
    words: list[str] = []
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    for word in [*lexer, ";"]:
        if word not in ENDS_A_COMMAND:
            words.append(word)
            continue
        while words and re.match(r"\w+=", words[0]):
            del words[0]
        if words[:1] == ["tenure"]:
            yield words[1:]
        words = []


def check(words: list[str], *, whole: bool = True) -> None:
    """Raises what click would say about these arguments; runs nothing.

    In contexts as the command line has them: a command keeps the -h of its first one.
    """
    command: click.Command = cli
    context = click.Context(cli, **cli.context_settings)
    rest = words
    while isinstance(command, click.Group):
        _, after, _ = command.make_parser(context).parse_args(list(rest))
        if not after:
            return
        sub = command.get_command(context, after[0])
        assert sub is not None, f"no command {after[0]}: {words}"
        command, rest = sub, after[1:]
        context = click.Context(command, parent=context)
    if whole:
        command.make_context(" ".join(words), list(rest), parent=context)
    else:
        command.make_parser(context).parse_args(list(rest))


@pytest.mark.parametrize("line", [
    "tenure lss", "tenure ls --jsn", "tenure get", "X=1 tenure get seventeen",
    "true && tenure queues paus default",
])  # fmt: skip
def test_a_command_that_is_none_is_found(line: str) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        check(*commands_in(line))


def test_the_systemd_unit_is_sound_and_waits_for_the_worker(tmp_path: Path) -> None:
    [text] = [block.text for block in page("docs/how-to/deploy.md").blocks
              if block.marks == ("ini",)]  # fmt: skip
    unit = ConfigParser(interpolation=None, delimiters="=")
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    service = unit["Service"]
    executable, *words = shlex.split(service["ExecStart"])
    assert Path(executable).name == "tenure"
    check(words)
    assert float(service["TimeoutStopSec"]) > STOP_SECONDS
    health = words[words.index("--health-file") + 1]
    assert health.startswith(f"%t/{service['RuntimeDirectory']}/")
    if verifier := shutil.which("systemd-analyze"):
        file = tmp_path / "shop.service"
        file.write_text(text.replace(executable, shutil.which("true") or "/bin/true"), "utf-8")
        told = subprocess.run(
            [verifier, "verify", "--man=no", "--recursive-errors=no", file],
            capture_output=True, text=True,
        )  # fmt: skip
        assert "shop.service" not in told.stderr, told.stderr


def test_the_container_gets_the_signals_itself() -> None:
    [text] = [block.text for block in page("docs/how-to/deploy.md").blocks
              if block.marks == ("dockerfile",)]  # fmt: skip
    [command] = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    words = json.loads(command)
    assert words[0] == "tenure"
    check(words[1:])


def test_the_pod_is_sound_and_its_probes_look_at_the_file_of_its_image() -> None:
    blocks = {block.marks: block.text for block in page("docs/how-to/deploy.md").blocks}
    pod = msgspec.yaml.decode(blocks["yaml",])["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > STOP_SECONDS
    [worker] = pod["containers"]
    probes = [each["exec"]["command"] for name, each in worker.items() if name.endswith("Probe")]
    assert len(probes) == 2
    for words in probes:
        assert words[0] == "tenure"
        check(words[1:])
        assert words[words.index("--file") + 1] in blocks["dockerfile",]


@pytest.mark.parametrize("each", PAGES, ids=lambda each: each.name)
def test_every_other_block_of_data_can_be_read(each: Page) -> None:
    readers: dict[str, Callable[[str], object]] = {
        "yaml": msgspec.yaml.decode, "toml": msgspec.toml.decode, "json": json.loads,
    }  # fmt: skip
    for block in each.blocks:
        if block.marks and block.marks[0] in readers:
            assert readers[block.marks[0]](block.text)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a b\n", "a   b\n", True),
        ("a … c\n", "a b c\n", True),
        ("a … c\n", "a b\n", False),
        ("a\n…\nz\n", "a\nz\n", True),
        ("a\n…\nz\n", "a\nb\nc\nz\n", True),
        ("a\n…\nz\n", "a\nb\n", False),
        ("a.b\n", "axb\n", False),
        ("a\n", "a\nb\n", False),
    ],
)
def test_what_a_story_prints_is_compared(shown: str, printed: str, same: bool) -> None:
    assert Snippet("page", 1, ("sh", "run"), "", shown).prints(printed) is same
