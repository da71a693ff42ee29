"""Ctrl-C, SIGTERM and closed pipes: the right end, and the terminal as it was."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tenure.cli.exit import interrupted_later
from tenure.cli.main import main
from tenure.client import Client
from tenure.errors import StoreUnavailable
from tenure.rules.codec import encode
from tenure.rules.job import Enqueued, NewJob, State
from tenure.store import Store, open_store
from tests.cli.terminal import CTRL_C, PATIENCE_SECONDS, Terminal, start
from tests.cli.world import World
from tests.support.plain import Plain
from tests.worker.support import eventually

pytestmark = pytest.mark.slow  # processes, one per command


def add_long(world: World, seconds: float) -> int:
    """A job that takes a while."""
    with open_store(world.url) as store:
        job = NewJob(task="shop.long", args=encode({"seconds": seconds}), queue="long")
        [enqueued] = store.enqueue([job])
    return enqueued.id


@pytest.mark.parametrize("end", ["ctrl-c", "sigterm"])
def test_a_worker_drains(world: World, end: str) -> None:
    """The first signal lets the running job finish, and the worker exits with 0."""
    id = add_long(world, 1.0)
    words = ("worker", "shop:app", "-q", "long")
    with Terminal(*words, url=world.url, folder=world.folder) as terminal:
        terminal.wait_for("the long job has begun")
        if end == "ctrl-c":
            terminal.type(CTRL_C)
        else:
            terminal.send(signal.SIGTERM)
        assert terminal.end() == 0, terminal.text
    assert world.state(id) is State.SUCCEEDED
    assert "Traceback" not in terminal.text


def test_a_second_ctrl_c_ends_a_worker_at_once(world: World) -> None:
    id = add_long(world, 600.0)
    words = ("worker", "shop:app", "-q", "long", "--drain-seconds", "600")
    with Terminal(*words, url=world.url, folder=world.folder) as terminal:
        terminal.wait_for("the long job has begun")
        terminal.type(CTRL_C)
        terminal.wait_for("for at most 600 s; a second Ctrl-C or signal ends it at once")
        assert terminal.interrupt() == 130, terminal.text
    assert "Traceback" not in terminal.text
    assert world.state(id) is State.RUNNING  # until its lease ends


def test_sigterm_gives_the_terminal_back(world: World) -> None:
    words = ("top", "--interval", "0.1")
    with Terminal(*words, url=world.url, folder=world.folder) as terminal:
        terminal.wait_for("latest failures")
        terminal.send(signal.SIGTERM)
        assert terminal.end() == 143
    assert terminal.text.rstrip().endswith("\x1b[?25h\x1b[?1049l")


def test_top_gives_the_terminal_back_when_the_database_is_lost(world: World) -> None:
    words = ("top", "--interval", "0.1")
    with Terminal(*words, url=world.url, folder=world.folder) as terminal:
        terminal.wait_for("latest failures")
        with Plain(world.url) as plain:
            plain.rows("drop table tenure.history")
        code = terminal.end()
    after = terminal.text.rpartition("\x1b[?25h\x1b[?1049l")[2].strip()
    assert code == 4, terminal.text
    assert after.startswith("tenure: ")
    assert "\n" not in after


def test_ctrl_c_while_waiting_for_a_job(world: World) -> None:
    words = ("enqueue", "shop.greet", "--args", '{"name": "x"}', "--wait")
    with Terminal(*words, url=world.url, folder=world.folder) as terminal:
        eventually(lambda: newest(world) not in world.ids)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
    id = newest(world)
    assert f"tenure: interrupted; job {id} is not affected, see `tenure get {id}`" in terminal.text
    assert world.state(id) is State.QUEUED


@pytest.mark.parametrize("wait", [(), ("--wait",)], ids=["alone", "wait"])
def test_ctrl_c_as_soon_as_the_job_is_there(
    world: World,
    wait: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is committed, and the command does not know its id yet."""
    add_tickets = Store.enqueue

    def interrupted(store: Store, jobs: list[NewJob]) -> list[Enqueued]:
        answer = add_tickets(store, jobs)
        signal.raise_signal(signal.SIGINT)
        return answer

    monkeypatch.setattr(Store, "enqueue", interrupted)
    monkeypatch.setattr(sys, "argv", ["tenure", "--url", world.url, "enqueue", "a.b", *wait])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as end:
        main()
    id = newest(world)
    assert id not in world.ids
    assert end.value.code == 130
    told = f"tenure: interrupted; job {id} is not affected, see `tenure get {id}`\n"
    assert capsys.readouterr() == ("", told)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_database_that_goes_away_while_a_job_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever took that for an enqueue that failed would have the work done twice."""

    def wait(*_: object, **__: object) -> None:
        raise StoreUnavailable("it cannot be reached")

    monkeypatch.setattr(Client, "wait", wait)
    monkeypatch.setattr(sys, "argv", ["tenure", "--url", world.url, "enqueue", "a.b", "--wait"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 4
    id = newest(world)
    told = f"tenure: job {id} is enqueued, see `tenure get {id}`; it cannot be reached\n"
    assert capsys.readouterr() == ("", told)


def test_a_second_ctrl_c_does_not_wait_for_the_answer() -> None:
    """The database may never give one."""
    pressed = []

    def enqueue() -> None:
        with interrupted_later():
            for time in range(3):
                pressed.append(time)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        enqueue()
    assert pressed == [0, 1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def newest(world: World) -> int:
    """The id of the latest job."""
    with open_store(world.url) as store:
        return store.list_jobs(limit=1).jobs[0].id


def test_ctrl_c_in_a_copy(world: World) -> None:
    """It says how to go on, and to go on works."""
    target = f"sqlite:///{world.folder}/target.db"
    with open_store(target):
        pass
    words = ("--give-up-seconds", "600", "copy", "--from", world.url, "--to", target)
    with Plain(target) as other, Terminal(*words, folder=world.folder) as terminal:
        terminal.wait_for("[y/N]")
        other.rows("begin immediate")  # the copy cannot get far
        terminal.type("y\n")
        terminal.wait_for("0%")
        assert terminal.interrupt() == 130, terminal.text
    assert "tenure: interrupted; run the command again to finish the copy" in terminal.text
    assert "Traceback" not in terminal.text
    with Terminal(*words, "--yes", folder=world.folder) as again:
        assert again.end() == 0, again.text
    assert "copied 4 live and 4 finished jobs" in again.text
    assert "100%" in again.text


def test_ctrl_c_in_a_question(world: World) -> None:
    with Terminal("rm", "all", url=world.url, folder=world.folder) as terminal:
        terminal.wait_for("Remove 4 jobs (2 failed, 1 cancelled, 1 succeeded)? [y/N]")
        assert terminal.interrupt() == 130
    assert terminal.text.endswith("\ntenure: interrupted\n")
    assert world.state(world.failed) is State.FAILED


@pytest.mark.parametrize("words", [("ls", "--limit", "0"), ("ls", "--limit", "0", "--json")])
def test_a_reader_that_leaves(words: tuple[str, ...], world: World) -> None:
    """As in `tenure ls | head -1`: no message, no traceback."""
    with open_store(world.url) as store:
        store.enqueue([NewJob(task="a.b")] * 2000)
    process = start(*words, url=world.url, folder=world.folder)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE_SECONDS) == 141
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_a_shell_sees_nothing_of_a_closed_pipe(world: World) -> None:
    with open_store(world.url) as store:
        store.enqueue([NewJob(task="a.b")] * 2000)
    process = start("ls", "--limit", "0", url=world.url, folder=world.folder)
    assert process.stdout is not None
    assert process.stderr is not None
    head = subprocess.run(
        ["head", "-1"], stdin=process.stdout, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    process.stdout.close()
    assert head.stdout.split()[:2] == ["id", "state"]
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(PATIENCE_SECONDS)
