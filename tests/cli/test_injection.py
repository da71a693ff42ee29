"""Stored names, reasons and errors cannot control the terminal that shows them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tenure.cli import output
from tenure.cli.screen import _fit
from tests.cli.inside import inside
from tests.cli.terminal import Terminal
from tests.cli.world import World, make_world
from tests.support.plain import Plain

HOSTILE = (
    "a\x1b]0;title\x07\x1b[2J\x9b31m\x85\u202ertl\u2066\u200f\u2028end\nfake: line\rover\x7f\x08"
)
LOOKS = [
    ("ls",), ("get", "{failed}"), ("get", "{queued}"), ("why", "{queued}"), ("why", "{failed}"),
    ("timeline", "{failed}"), ("timeline", "{queued}"),
    ("attempts", "{failed}"), ("errors",), ("queues",), ("workers",),
    ("stats",), ("top", "--once"), ("health",), ("steps", "{queued}"), ("doctor",),
    ("cancel", "{failed}"), ("replay", "state=failed", "--yes"), ("enqueue", HOSTILE),
    ("get", HOSTILE), (HOSTILE,), ("ls", f"state={HOSTILE}"), ("workflow", "list"),
    ("schedule", "list"), ("gate", "list"), ("gate", "show", HOSTILE),
]  # fmt: skip


@pytest.fixture(params=["sqlite", "postgres"])
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A world in which a handler, or another program, has written whatever it liked."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    if request.param == "postgres":
        url = str(request.getfixturevalue("pg_migrated_url"))
    world = make_world(url, tmp_path)
    error = json.dumps({"type": HOSTILE, "message": HOSTILE, "traceback": HOSTILE})
    with Plain(url) as plain:
        for table in ("job", "history"):
            plain.rows(f"update tenure.{table} set reason = '{HOSTILE}', task = '{HOSTILE}'")
            plain.rows(f"update tenure.{table} set error = '{error}' where error is not null")
        plain.rows(f"update tenure.worker set name = '{HOSTILE}', host = '{HOSTILE}'")
        plain.rows(f"update tenure.event set worker = '{HOSTILE}'")
        plain.rows(f"update tenure.job set queue = '{HOSTILE}' where id = {world.held}")
    return world


def shown(world: World, words: tuple[str, ...]) -> list[str]:
    return [word.format(failed=world.failed, queued=world.queued) for word in words]


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: ascii(" ".join(words))[:30])
def test_no_control_character_is_written(hostile: World, words: tuple[str, ...]) -> None:
    ended = inside("--url", hostile.url, *shown(hostile, words))
    written = ended.out + ended.err
    assert written
    for line in written.splitlines():
        assert line.isprintable(), ascii(line)
        assert not line.startswith(("fake", "over"))


def test_json_has_the_values_and_no_control_character(hostile: World) -> None:
    ended = inside("--url", hostile.url, "get", str(hostile.failed), "--json")
    assert ended.out.rstrip("\n").isprintable()
    job = json.loads(ended.out)
    assert (job["task"], job["reason"]) == (HOSTILE, HOSTILE)
    assert job["error"]["message"] == HOSTILE
    ended = inside("--url", hostile.url, "gate", "show", HOSTILE, "--json")
    assert ended.err.rstrip("\n").isprintable()
    assert json.loads(ended.err)["kind"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [("ls",), ("why", "{failed}"), ("top", "--once"), ("top",)])
def test_a_terminal_gets_our_own_sequences_only(tmp_path: Path, words: tuple[str, ...]) -> None:
    world = make_world(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    with Plain(world.url) as plain:
        plain.rows(f"update tenure.history set reason = '{HOSTILE}', task = '{HOSTILE}'")
    with Terminal(*shown(world, words), url=world.url, folder=tmp_path) as terminal:
        terminal.wait_for("rtl")
        if words == ("top",):
            terminal.type("\x03")
        terminal.end()
        text = terminal.text
    for bad in ("\x1b]0;", "\x07", "\x1b[2J", "\x9b", "\u202e", "\u200f", "\x85", "\nfake"):
        assert bad not in text, ascii(bad)


def test_a_style_cannot_be_forged() -> None:
    red = output.style("red", fg="red")
    assert output.rendered(red) == "\x1b[31mred\x1b[0m"
    assert output.unstyled(red) == "red"
    forged = "\x1b[31mred\x1b[0m \0abcdef31m"
    assert output.rendered(forged + red) == " [31mred [0m  abcdef31m\x1b[31mred\x1b[0m"
    assert _fit(f"\x1b[2J{red}", 80) == " [2J\x1b[31mred\x1b[0m"
    assert _fit(f"\x1b[2J{red}", 4) == " [2…"


def test_output_in_a_pipe_has_no_styles(tmp_path: Path) -> None:
    world = make_world(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    assert "\x1b" not in inside("--url", world.url, "ls").out
    assert os.linesep in inside("--url", world.url, "db", "sql").out


def test_a_styled_text_brings_no_escape_sequence_of_its_own() -> None:
    shown = output.rendered(output.style("\x1b[8mhidden", fg="red"))
    assert shown == "\x1b[31m [8mhidden\x1b[0m"


@pytest.mark.parametrize("reason", ['{"error": 5}', '{"delay_seconds": "x"}'])
def test_a_reason_that_looks_like_our_own_json_is_shown_as_it_is(
    tmp_path: Path, reason: str
) -> None:
    world = make_world(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    inside("--url", world.url, "cancel", str(world.queued), "--reason", reason)
    assert reason in inside("--url", world.url, "timeline", str(world.queued)).out
