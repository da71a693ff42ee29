"""`tenure bench`: it measures, tells when it did not, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tenure.benchmark.tasks import ARGS
from tenure.errors import SchemaMissing
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.store import open_store
from tests.cli.terminal import CTRL_C, PATIENCE_SECONDS, Terminal, run, start
from tests.cli.world import World, places
from tests.support.plain import Plain
from tests.worker.support import eventually

ENDLESS = ("bench", "--jobs", "3", "--rounds", "100", "--yes")


def urls(world: World) -> list[str]:
    """Where the stores of a bench that runs now can be opened."""
    if world.url.startswith("sqlite:"):
        return [f"sqlite:///{world.folder}/{name}/jobs.db" for name in places(world)]
    mark = "&" if "?" in world.url else "?"
    return [f"{world.url}{mark}schema={name}" for name in places(world)]


def everything(world: World) -> object:
    """All that the user has."""
    with Plain(world.url) as plain:
        return plain.everything()


@contextmanager
def at_work(pid: int, world: World, *, processes: int = 1) -> Iterator[None]:
    """When the block begins the workers are at work; afterwards nothing of it all is left."""
    before = everything(world)

    def family() -> list[psutil.Process]:
        return psutil.Process(pid).children(recursive=True)

    eventually(lambda: places(world))
    eventually(lambda: workers_alive(urls(world)[0]) >= processes)
    started = family()
    yield
    _, alive = psutil.wait_procs(started, timeout=PATIENCE_SECONDS)
    assert started
    assert not alive
    assert everything(world) == before


def workers_alive(url: str) -> int:
    """How many workers have said that they are there; none without tables."""
    try:
        with open_store(url) as store:
            return sum(worker.alive for worker in store.workers())
    except SchemaMissing:
        return 0


def test_without_a_terminal_it_must_be_told(world: World) -> None:
    done = run("bench", url=world.url, folder=world.folder)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"tenure: put load on {world.url} to measure it? Use --yes to confirm without a terminal\n"
    )
    assert places(world) == []


def test_a_database_that_is_away(tmp_path: Path) -> None:
    words = ("--give-up-seconds", "0", "bench", "--yes", "--json")
    done = run(*words, url="postgresql://postgres@127.0.0.1:1/nowhere", folder=tmp_path)
    assert (done.code, done.out) == (4, "")
    assert done.error["kind"] == "StoreUnavailable"
    assert "left behind" not in done.error["error"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    words = ("bench", "--yes", "--json")
    done = run(*words, url=f"sqlite:///{tmp_path}/nowhere/jobs.db", folder=tmp_path)
    assert (done.code, done.out) == (4, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("fixture", "processes"), [("world", 1), ("pg_world", 2)])
def test_ctrl_c_leaves_nothing_behind(
    fixture: str, processes: int, request: pytest.FixtureRequest
) -> None:
    world: World = request.getfixturevalue(fixture)
    words = (*ENDLESS, "--processes", str(processes))
    with (
        Terminal(*words, url=world.url, folder=world.folder) as terminal,
        at_work(terminal.process.pid, world, processes=processes),
    ):
        terminal.type(CTRL_C)
        terminal.type(CTRL_C)  # impatience does not stop the cleaning up
        assert terminal.end() == 130, terminal.text
    assert places(world) == []
    assert terminal.text.rstrip().endswith("tenure: interrupted")
    assert "Traceback" not in terminal.text


@pytest.mark.slow
def test_sigterm_leaves_nothing_behind(pg_world: World) -> None:
    with started(pg_world) as process:
        with at_work(process.pid, pg_world):
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, out, err) == (143, "", "")
    assert places(pg_world) == []


@pytest.mark.slow
def test_workers_end_when_it_is_killed(world: World) -> None:
    with started(world) as process, at_work(process.pid, world):
        process.kill()


@pytest.mark.slow
def test_a_database_that_fails_on_the_way(pg_world: World) -> None:
    with started(pg_world) as process:
        with at_work(process.pid, pg_world), Plain(pg_world.url) as plain:
            plain.rows(f"drop view {places(pg_world)[0]}.all_jobs")
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, out) == (5, "")
        assert err.startswith("tenure: the Tenure schema is not complete")
    assert places(pg_world) == []


@pytest.mark.slow
def test_a_job_too_many_is_noticed(world: World) -> None:
    """It counts the rows of the database, not what it believes to have done."""
    with started(world) as process:
        with at_work(process.pid, world):
            with open_store(urls(world)[0]) as store:
                store.enqueue([NewJob(task="bench.async", queue="async", args=encode(ARGS))])
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, out) == (1, "")
        assert "jobs should have run once, but the database has" in err
    assert places(world) == []


@contextmanager
def started(world: World) -> Iterator[subprocess.Popen[str]]:
    """A bench with pipes that would take very long."""
    process = start(*ENDLESS, url=world.url, folder=world.folder)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
