"""Commands with any arguments: an exit code that is documented, one line of error, no traceback."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure import passwords
from tenure.cli import exit as endings
from tenure.cli.main import cli, main
from tenure.rules.job import Json, NewJob
from tenure.store import open_store
from tests.cli.world import make_world
from tests.fuzz.conftest import examples

CODES = {0, 1, 2, 3, 4, 5}
ENDLESS = {"--wait", "--reload", "--follow"}
"""Options with which a command may rightly take for ever."""
ALWAYS: dict[tuple[str, ...], list[str]] = {
    ("top",): ["--once"],
    ("bench",): ["--jobs", "0"],
    ("worker",): ["--lease-seconds", "0"],
    ("dev",): ["--no-reload", "--queue", "="],
}
"""What makes commands end that would go on. It comes last, and the last one counts."""

# What a shell can hand over: no NUL, and bytes that are not UTF-8 as lone surrogates.
TEXT = st.text(
    st.one_of(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
        st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF),
    ),
    max_size=12,
)
VALUES = st.one_of(
    TEXT,
    st.integers(-5, 30).map(str),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from([
        "all", "state=failed", "queue=mail", "task=shop.greet", "shop", "shop.greet", "default", "",
        "-", "--", "-1", "{}", '{"name": "Ada"}', "[1]", "NaN", "* * * * *", "0 0 30 2 *", "UTC",
        "Europe/Berlin", "2100-01-31T08:00+00:00", "0001-01-01T00:00+14:00", "sqlite:///b.db",
        "sqlite:///no/b.db", "sqlite://x", "mysql://x", "skip", "all", "latest", "json", "sqlite",
    ]),
)  # fmt: skip


@dataclass(frozen=True)
class Told:
    """How a command ended, and what it wrote."""

    code: object
    out: str
    err: str


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands there are, by the words that call them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def options_of(path: tuple[str, ...]) -> list[tuple[str, bool]]:
    """The options of a command, each with whether it takes a value."""
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return [
        (option.opts[-1], not option.is_flag)
        for option in command.params
        if isinstance(option, click.Option) and not ENDLESS & {*option.opts}
    ]


@st.composite
def calls(draw: st.DrawFn) -> list[str]:
    """Mostly sensible: a command, some of its options, some words; sometimes anything."""
    if draw(st.integers(0, 9)) == 0:
        words = draw(st.lists(VALUES, max_size=5))
        return ["--give-up-seconds", "0.2", *words] if "--wait" not in words else []
    path = draw(st.sampled_from(COMMANDS))
    words = []
    for option, takes_value in draw(st.lists(st.sampled_from(OPTIONS[path]), max_size=4)):
        words += [option, draw(VALUES)] if takes_value else [option]
    words += draw(st.lists(VALUES, max_size=3))
    before = draw(st.sampled_from([[], [], ["--tenant", "acme"], ["--tenant", draw(TEXT)]]))
    return ["--give-up-seconds", "0.2", *before, *path, *words, *ALWAYS.get(path, [])]


COMMANDS = [*commands()]
OPTIONS = {path: [*options_of(path), ("--json", False)] for path in COMMANDS}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Jobs in every state, and the application in the working directory."""
    folder, before = tmp_path_factory.mktemp("commands"), Path.cwd()
    made = f"sqlite:///{folder}/jobs.db?synchronous=NORMAL"
    make_world(made, folder)
    with open_store(made) as store:  # more digits than Python reads or writes: SQL can store them
        store.enqueue([NewJob(task="shop.greet", args=Json(b'{"name":%b}' % (b"9" * 5000)))])
    os.chdir(folder)
    yield made
    os.chdir(before)


def call(words: list[str], url: str) -> Told:
    """Run a command in this process, as the installed program would."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    endings._json_asked = False
    with (
        patch.object(sys, "argv", ["tenure", *words]),
        patch.object(sys, "path", list(sys.path)),
        patch.object(sys, "stdout", out),
        patch.object(sys, "stderr", err),
        patch.object(sys, "stdin", io.StringIO()),
        patch.dict(os.environ, {"TENURE_URL": url}),
    ):
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            passwords._passwords.clear()
    texts = (stream.buffer.getvalue().decode() for stream in (out, err))
    return Told(code, *texts)


@pytest.mark.slow
@examples(250)
@given(calls())
@example(["get", "\udcff"])
@example(["ls", "queue=\udcff"])
@example(["enqueue", "a.b", "--args", "[" * 5000])
@example(["enqueue", "a.b", "--args", '{"a": 1e999}', "--json"])
@example(["get", "9" * 5000])
@example(["ls", "9" * 5000])
@example(["ls", "--json"])
@example(["enqueue", "a.b", "--args", '{"n": ' + "9" * 5000 + "}", "--json"])
@example(["move", "1", "--due-at", "9999-12-31T23:59:59-14:00", "--yes"])
@example(["db", "sql", "--schema", "\udcff"])
@example(["--url", "sqlite:///" + "a" * 300, "ls"])
@example(["--url", "sqlite:///\udcff.db", "ls"])
@example(["schedule", "add", "s", "t", "--cron", "* " * 5000])
@example(["schedule", "add", "s", "t", "--cron", "* * * * *", "--tz", "../x"])
@example(["schedule", "show", "s", "--next", "1" * 30])
@example(["health", "--file", "\udcff", "--max-age-seconds", "inf"])
def test_any_arguments_end_in_a_documented_way(url: str, words: list[str]) -> None:
    told = call(words, url)
    assert told.code in CODES, told
    assert "Traceback" not in told.out + told.err
    if told.code not in (0, 1) and told.err:
        assert told.err.count("\n") == 1, told
    command = next((path for path in COMMANDS[::-1] if {*path} <= {*words}), ())
    if "--json" in words and "--" not in words and "--help" not in words and command:
        for line in told.err.splitlines() if told.code in (2, 3, 4, 5) else ():
            assert json.loads(line)["exit_code"] == told.code
