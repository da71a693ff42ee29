"""Commands choose jobs by the filter language."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from tenure.cli import filters as cli_filters
from tenure.rules.codec import encode
from tenure.rules.filters import describe
from tenure.rules.job import NewJob
from tenure.store import open_store
from tenure.store.look import find
from tests.cli.inside import Ended, inside
from tests.cli.world import World, make_world


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    url = f"sqlite:///{tmp_path}/jobs.db"
    if request.param == "postgres":
        url = str(request.getfixturevalue("pg_migrated_url"))
    return make_world(url, tmp_path)


def ids(ended: Ended) -> list[int]:
    assert ended.code == 0, ended.err
    return [json.loads(line)["id"] for line in ended.out.splitlines()]


def test_ls_takes_the_whole_language(world: World) -> None:
    for words, expected in (
        (("error=ValueError",), [world.failed_too, world.failed]),
        (('text~"no such address" args.to=bob',), [world.failed_too, world.failed]),
        (("args.name=Bob",), [world.scheduled]),
        (("task=shop.*", "state!=queued,scheduled,waiting", "queue=default"),
         [world.cancelled, world.succeeded]),
        (("due>now",), [world.scheduled]),
        (("worker=w-1", "--order", "oldest"), [world.succeeded, world.failed, world.failed_too]),
        (("order=oldest worker=w-1", "--limit", "1"), [world.succeeded]),
        (("queue=default", "--order", "next"), [world.queued]),
        (("finished>1h", "state=cancelled"), [world.cancelled]),
    ):  # fmt: skip
        assert ids(inside("--url", world.url, "ls", *words, "--json")) == expected, words


def test_every_command_that_changes_jobs_takes_it(world: World) -> None:
    for words, told in (
        (("hold", "args.name=Bob"), "held 1 job"),
        (("unhold", "args.name=Bob", "due>now"), "unheld 1 job"),
        (("move", "due>now", "--queue", "later"), "moved 1 job"),
        (("cancel", "queue=later created>1h"), "cancelled 1 job"),
        (("replay", "error=ValueError"), "replayed 2 jobs"),
        (("rm", "worker=w-1 state=succeeded"), "removed 1 job"),
        (("cancel", "args.name=Nobody"), "no jobs to cancel"),
    ):
        ended = inside("--url", world.url, *words, "--yes")
        assert (ended.code, ended.out) == (0, f"{told}\n"), (words, ended)


def test_a_change_goes_through_pages_that_find_nothing(tmp_path: Path) -> None:
    """Bounded pages never make a command leave jobs out."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    with open_store(url) as store:
        store.enqueue([NewJob(task="a.b", args=encode({"n": n})) for n in range(30)])
    with patch.object(find, "SCAN_ROWS", 3), patch.object(find, "LEAST_STEP", 1):
        ended = inside("--url", url, "cancel", "args.n<2", "--yes")
    assert ended.out == "cancelled 2 jobs\n"


def test_a_search_that_takes_too_long_says_how_to_continue(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with open_store(url) as store:
        store.enqueue([NewJob(task="a.b", args=encode({"n": n})) for n in range(30)])
    with (
        patch.object(find, "SCAN_ROWS", 3),
        patch.object(find, "LEAST_STEP", 1),
        patch.object(cli_filters, "PAGE", 1),
    ):
        ended = inside("--url", url, "ls", "args.n=0", "--seconds", "1e-9")
        assert ended.out == "no jobs\n"
        assert "looked at 3 jobs, none found yet; continue with --after " in ended.err
        cursor = ended.err.split("--after ")[1].split(",")[0]
        words = ("ls", "args.n=0", "--json", "--seconds", "0", "--after", cursor)
        assert ids(inside("--url", url, *words)) == [1]


def test_the_help_of_ls_is_the_description_of_the_language() -> None:
    told = inside("ls", "--help").out
    assert [line.strip() for line in describe().splitlines()] == [
        line.strip() for line in told.partition("FILTER\n\n")[2].splitlines()
    ]
    for command in ("cancel", "replay", "hold", "unhold", "move", "rm", "errors"):
        assert "`tenure ls --help`" in " ".join(inside(command, "--help").out.split())
