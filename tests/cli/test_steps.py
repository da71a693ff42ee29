"""Steps at the command line, beside `tenure steps` itself, which is among all commands."""

from __future__ import annotations

import pytest

from tenure.store import open_store
from tests.cli.cases import _with_steps
from tests.cli.terminal import run
from tests.cli.world import World


def test_a_job_without_steps_says_so(world: World) -> None:
    done = run("steps", str(world.held), url=world.url, folder=world.folder)
    assert (done.code, done.out, done.err) == (0, "no steps\n", "")


@pytest.mark.parametrize(("words", "left"), [((), 2), (("--afresh",), 0)])
def test_a_replay_goes_on_with_the_steps_unless_it_begins_afresh(
    world: World, words: tuple[str, ...], left: int
) -> None:
    _with_steps(world)
    done = run("replay", str(world.queued), *words, url=world.url, folder=world.folder)
    assert (done.code, done.out, done.err) == (0, "replayed 1 job\n", "")
    with open_store(world.url) as store:
        assert len(store.steps(world.queued)) == left


def test_the_timeline_tells_of_steps(world: World) -> None:
    _with_steps(world)
    done = run("timeline", str(world.queued), "--json", url=world.url, folder=world.folder)
    told = [(line["kind"], line["detail"]) for line in done.lines if line["kind"] == "step"]
    assert told == [("step", "parse"), ("step", "send")]
