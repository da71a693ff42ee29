"""Before many jobs are changed somebody is asked; --yes answers, and without a terminal it must."""

from __future__ import annotations

import pytest

from tenure.rules.job import NewJob, State
from tenure.store import open_store
from tests.cli.terminal import Terminal, run
from tests.cli.world import World

pytestmark = pytest.mark.slow  # processes, one per command

BULK = {
    "rm": (("rm", "state=failed"), "remove 2 jobs (2 failed)?"),
    "rm one": (("rm", "%failed"), "remove 1 job (1 failed)?"),
    "cancel": (("cancel", "queue=default"), "cancel 4 jobs (2 queued, 1 waiting, 1 scheduled)?"),
    "replay": (("replay", "all"), "replay 4 jobs (2 failed, 1 cancelled, 1 succeeded)?"),
    "hold": (("hold", "task=shop.greet"), "hold 3 jobs (2 queued, 1 scheduled)?"),
    "move": (("move", "all", "--queue", "vip"), "move 4 jobs"),
    "prune": (
        ("prune", "--succeeded-days", "0", "--other-days", "0"),
        "remove 4 jobs that succeeded",
    ),
}


def everything(world: World) -> object:
    """All jobs as they are."""
    with open_store(world.url) as store:
        return store.list_jobs().jobs


@pytest.mark.parametrize("name", BULK)
def test_without_a_terminal_it_refuses(name: str, world: World) -> None:
    words = [str(world.failed) if word == "%failed" else word for word in BULK[name][0]]
    before = everything(world)
    done = run(*words, url=world.url, folder=world.folder)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"tenure: {BULK[name][1]}")
    assert done.err.endswith("? Use --yes to confirm without a terminal\n")
    assert done.err.count("\n") == 1
    assert everything(world) == before


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04"])
def test_no_means_no(answer: str, world: World) -> None:
    before = everything(world)
    with Terminal("cancel", "all", url=world.url, folder=world.folder) as terminal:
        terminal.wait_for("Cancel 4 jobs (2 queued, 1 waiting, 1 scheduled)? [y/N]:")
        terminal.type(answer)
        assert terminal.end() == 1
    assert "tenure: nothing was changed" in terminal.text
    assert everything(world) == before


def test_yes_is_not_asked_and_long_work_shows_its_progress(world: World) -> None:
    with open_store(world.url) as store:
        store.enqueue([NewJob(task="a.b")] * 300)
    words = ("cancel", "task=a.b", "--yes")
    with Terminal(*words, url=world.url, folder=world.folder) as terminal:
        assert terminal.end() == 0
    assert "[y/N]" not in terminal.text
    assert "100%" in terminal.text
    assert "cancelled 300 jobs" in terminal.text
    done = run("replay", "task=a.b", "--yes", url=world.url, folder=world.folder)
    assert (done.code, done.out, done.err) == (0, "replayed 300 jobs\n", "")
    with open_store(world.url) as store:
        assert {job.state for job in store.list_jobs(task="a.b").jobs} == {State.QUEUED}


def test_one_job_by_its_id_is_changed_without_a_question(world: World) -> None:
    words = ("cancel", str(world.queued))
    with Terminal(*words, url=world.url, folder=world.folder) as terminal:
        assert terminal.end() == 0
    assert terminal.text == "cancelled 1 job\n"
    again = run(*words, url=world.url, folder=world.folder)
    assert (again.code, again.out) == (0, "cancelled 0 jobs; 1 was already finished\n")


def test_nothing_matches(world: World) -> None:
    done = run("cancel", "queue=empty", url=world.url, folder=world.folder)
    assert (done.code, done.out, done.err) == (0, "no jobs to cancel\n", "")
