"""How it looks: narrow terminals, colours, long names, letters of all kinds, many jobs."""

from __future__ import annotations

import re

import pytest

from tenure.cli.show import cut, wide
from tenure.rules import lifecycle
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.store import open_store
from tests.cli.terminal import Terminal, run
from tests.cli.world import World, announce

pytestmark = pytest.mark.slow  # processes, one per command

COLOUR = re.compile(r"\x1b\[\d+(;\d+)*m")
SEQUENCE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")
LOOKS = (("ls",), ("errors",), ("queues",), ("workers",), ("stats",), ("timeline", "2"),
         ("attempts", "2"), ("top", "--once"))  # fmt: skip


def add_awkward_jobs(world: World) -> None:
    """Names as long as they may be, and messages in many scripts."""
    with open_store(world.url) as store:
        task = "shop." + "very_" * 38 + "long"
        store.enqueue([NewJob(task=task, queue="q" * 200)])
        [added] = store.enqueue([NewJob(task="shop.odd", queue="odd")])
        [lease] = store.claim("w-1", {"odd": 1})
        [claimed] = lease.jobs
        assert claimed.id == added.id
        message = "日本語のエラー \x1b[31mred\x07 ñandú " + "🙂" * 40
        error = encode({"type": "ValueError", "message": message})
        store.settle("w-1", [lifecycle.fail(claimed, error, message[:20].replace("\x1b", ""))])


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_a_table_fits_a_narrow_terminal(words: tuple[str, ...], world: World) -> None:
    add_awkward_jobs(world)
    announce(world)
    with Terminal(*words, url=world.url, folder=world.folder, columns=40) as terminal:
        assert terminal.end() == 0, terminal.text
    lines = SEQUENCE.sub("", terminal.text).splitlines()
    tables = [line for line in lines if not line.startswith("tenure  sqlite")]
    assert max(map(wide, tables)) <= 40, "\n".join(lines)
    assert "\x07" not in terminal.text
    assert "\x1b[31mred" not in terminal.text


def test_the_live_view_fits_a_narrow_terminal(world: World) -> None:
    add_awkward_jobs(world)
    words = ("top", "--interval", "0.1")
    with Terminal(*words, url=world.url, folder=world.folder, columns=40, rows=12) as terminal:
        terminal.wait_for("worker", times=2)
        terminal.type("\x03")
        assert terminal.end() == 0
    frames = terminal.text.split("\x1b[H")[1:]
    for frame in frames:
        lines = SEQUENCE.sub("", frame).splitlines()
        assert len(lines) <= 12
        assert max(map(wide, lines)) <= 40


def test_colours_are_for_terminals_that_want_them(world: World) -> None:
    with Terminal("ls", url=world.url, folder=world.folder) as terminal:
        assert terminal.end() == 0
    assert COLOUR.search(terminal.text)
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        with Terminal("ls", url=world.url, folder=world.folder, env=env) as plain:
            assert plain.end() == 0
        assert "\x1b" not in plain.text
    words = ("top", "--interval", "0.1")
    no_colour = {"NO_COLOR": "1"}
    with Terminal(*words, url=world.url, folder=world.folder, env=no_colour) as top:
        top.wait_for("latest failures", times=2)
        top.type("\x03")
        assert top.end() == 0
    assert not COLOUR.search(top.text)
    assert top.text.count("\x1b[?1049h") == top.text.count("\x1b[?1049l") == 1
    assert "\x1b" not in run("ls", url=world.url, folder=world.folder).out


def test_without_a_terminal_nothing_is_cut(world: World) -> None:
    add_awkward_jobs(world)
    done = run("ls", url=world.url, folder=world.folder)
    assert "shop." + "very_" * 38 + "long" in done.out
    assert "…" not in done.out


def test_a_terminal_that_knows_few_letters(world: World) -> None:
    add_awkward_jobs(world)
    latin = {"PYTHONIOENCODING": "latin-1"}
    with Terminal("errors", url=world.url, folder=world.folder, env=latin) as terminal:
        assert terminal.end() == 0, terminal.text
    assert "???" in terminal.text


def test_ten_thousand_jobs(world: World) -> None:
    with open_store(world.url) as store:
        for _ in range(5):
            store.enqueue([NewJob(task="bulk.work", queue="bulk")] * 2000)
    done = run("ls", "queue=bulk", "--limit", "0", "--json", url=world.url, folder=world.folder)
    ids = [line["id"] for line in done.lines]
    assert len(ids) == 10_000
    assert ids == sorted(ids, reverse=True)
    with Terminal("ls", "state=queued", url=world.url, folder=world.folder) as terminal:
        assert terminal.end() == 0
    assert terminal.text.count("bulk.work") == 50


def test_texts_are_cut_by_columns() -> None:
    assert cut("plain", 5) == "plain"
    assert cut("plainer", 5) == "plai…"
    assert wide("日本語") == 6
    assert cut("日本語です", 6) == "日本…"
    assert wide("n\u0303") == 1
