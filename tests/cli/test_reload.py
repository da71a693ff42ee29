"""`--reload` and `tenure dev`: real processes, real files, real signals."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tenure.rules.codec import encode
from tenure.rules.job import Job, NewJob, State
from tenure.store import open_store
from tests.cli.terminal import CTRL_C, Terminal, run
from tests.support.patience import until

pytestmark = pytest.mark.slow  # processes

SHOP = """
import asyncio
import time
from tenure import Tenure
from prices import price

app = Tenure("sqlite:///shop.db")


@app.task()
def buy() -> str:
    from shipping import ship
    return f"{price()} {ship()} 1"


@app.task()
async def pause() -> None:
    print("the pause has begun", flush=True)
    await asyncio.sleep(1000)


@app.task()
def sleep() -> None:
    print("the sleep has begun", flush=True)
    time.sleep(1000)


@app.task()
async def block() -> None:
    print("the block has begun", flush=True)
    time.sleep(1000)
"""
READY = "serves default"


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "prices.py").write_text("def price() -> str:\n    return 'cheap'\n")
    (tmp_path / "shipping.py").write_text("def ship() -> str:\n    return 'slow'\n")
    (tmp_path / "unused.py").write_text("")
    return tmp_path


def edit(file: Path, old: str, new: str) -> None:
    """Save a change, as an editor does."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def add(folder: Path, task: str) -> int:
    """Enqueue one job."""
    with open_store(f"sqlite:///{folder / 'shop.db'}") as store:
        [enqueued] = store.enqueue([NewJob(task=f"shop.{task}", args=encode({}))])
    return enqueued.id


def job(folder: Path, id: int) -> Job:
    """The job as the database has it now."""
    with open_store(f"sqlite:///{folder / 'shop.db'}") as store:
        return store.get(id)


def buy(folder: Path) -> str:
    """The result of one job that the worker runs now."""
    id = add(folder, "buy")
    until(lambda: job(folder, id).state.final, "the end of the job")
    ended = job(folder, id)
    assert ended.state is State.SUCCEEDED, ended
    return str(ended.result)


def pids(folder: Path) -> set[int]:
    """The processes that work in this folder, by what they were started with."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words, home = (entry / "cmdline").read_bytes(), (entry / "cwd").readlink()
            except OSError:
                continue
            if b"tenure" in words and home == folder:
                found.add(int(entry.name))
    return found


def worker(folder: Path, *words: str) -> Terminal:
    """A worker in a terminal that restarts when code changes. It writes bytecode, as by default."""
    env = {"PYTHONDONTWRITEBYTECODE": ""}
    return Terminal("worker", "shop:app", "--reload", *words, folder=folder, env=env)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_change_of_a_loaded_file_restarts_every_process(folder: Path, processes: str) -> None:
    count = int(processes)
    with worker(folder, "--processes", processes) as terminal:
        terminal.wait_for(READY, times=count)
        assert buy(folder) == "cheap slow 1"
        edit(folder / "shop.py", "ship()} 1", "ship()} 2")
        terminal.wait_for("shop.py changed; the worker restarts")
        terminal.wait_for(READY, times=2 * count)
        assert buy(folder) == "cheap slow 2"
        edit(folder / "prices.py", "cheap", "dear")
        terminal.wait_for("prices.py changed; the worker restarts")
        terminal.wait_for(READY, times=3 * count)
        assert buy(folder) == "dear slow 2"
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.text
    assert "Traceback" not in terminal.text
    assert not pids(folder)


def test_a_file_that_a_handler_imports_counts_and_others_do_not(folder: Path) -> None:
    with worker(folder) as terminal:
        terminal.wait_for(READY)
        edit(folder / "unused.py", "", "x = 1")
        assert buy(folder) == "cheap slow 1"
        # The parent learns of the file soon after the job, and compares with the start.
        edit(folder / "shipping.py", "slow", "fast")
        terminal.wait_for("shipping.py changed; the worker restarts")
        terminal.wait_for(READY, times=2)
        assert buy(folder) == "cheap fast 1"
    assert "unused" not in terminal.text
    until(lambda: not pids(folder), "the end of the worker whose parent was killed")


def test_two_saves_within_a_second_are_two_changes(folder: Path) -> None:
    """Python's cache of bytecode knows sizes and whole seconds only."""
    file, saved = folder / "prices.py", folder / "saved"
    second = int(file.stat().st_mtime) - 10
    with worker(folder) as terminal:
        terminal.wait_for(READY)
        edit(file, "cheap", "first")
        for number, name in enumerate(["first", "other", "third"]):
            terminal.wait_for(READY, times=number + 2)
            assert buy(folder) == f"{name} slow 1"
            saved.write_text(file.read_text().replace(name, ["other", "third", "fifth"][number]))
            os.utime(saved, ns=(0, second * 10**9 + number))
            saved.replace(file)


def test_an_error_in_the_code_is_shown_and_the_next_change_is_awaited(folder: Path) -> None:
    waits = "waiting for the next change of a file"
    with worker(folder) as terminal:
        terminal.wait_for(READY)
        edit(folder / "prices.py", "def price", "def (price")
        terminal.wait_for("SyntaxError: invalid syntax (prices.py, line 1)")
        terminal.wait_for(waits)
        edit(folder / "prices.py", "def (price", "from taxes import tax\n\n\ndef price")
        terminal.wait_for("No module named 'taxes'")
        terminal.wait_for(waits, times=2)
        (folder / "taxes.py").write_text("tax = 1")
        terminal.wait_for(READY, times=2)
        assert buy(folder) == "cheap slow 1"
        (folder / "taxes.py").write_text("1 / 0")
        terminal.wait_for("ZeroDivisionError")
        terminal.wait_for(waits, times=3)
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.text
    assert "Traceback" not in terminal.text


def test_an_error_at_the_start_is_shown_and_the_first_change_is_awaited(folder: Path) -> None:
    edit(folder / "shop.py", "app = Tenure(", "app = Tenure((")
    with worker(folder) as terminal:
        terminal.wait_for("SyntaxError")
        edit(folder / "shop.py", "app = Tenure((", "app = Tenure(")
        terminal.wait_for(READY)


def test_a_mistake_in_the_command_ends_it(folder: Path) -> None:
    done = run("worker", "shpo:app", "--reload", folder=folder)
    assert done.code == 2
    assert "there is no module shpo" in done.err
    assert run("worker", "--reload", folder=folder).code == 2


@pytest.mark.parametrize("task", ["pause", "sleep"])
def test_a_restart_puts_running_jobs_back_uncharged(folder: Path, task: str) -> None:
    with worker(folder) as terminal:
        terminal.wait_for(READY)
        id = add(folder, task)
        terminal.wait_for(f"the {task} has begun")
        edit(folder / "shop.py", "ship()} 1", "ship()} 2")
        terminal.wait_for(f"the {task} has begun", times=2)
        assert job(folder, id).attempts == 0
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.text
    ended = job(folder, id)
    assert (ended.state, ended.attempts) == (State.QUEUED, 0)
    assert "Traceback" not in terminal.text
    assert "a second Ctrl-C" not in terminal.text  # a restart is not a first one


def test_a_handler_that_blocks_the_event_loop_does_not_hold_up_a_restart(folder: Path) -> None:
    with worker(folder) as terminal:
        terminal.wait_for(READY)
        add(folder, "block")
        terminal.wait_for("the block has begun")
        edit(folder / "shop.py", "ship()} 1", "ship()} 2")
        terminal.wait_for("and was killed; its jobs run again when their leases expire")
        terminal.wait_for(READY, times=2)
        assert buy(folder) == "cheap slow 2"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_second_ctrl_c_ends_it_at_once(folder: Path, processes: str) -> None:
    with worker(folder, "--drain-seconds", "600", "--processes", processes) as terminal:
        terminal.wait_for(READY, times=int(processes))
        add(folder, "pause")
        terminal.wait_for("the pause has begun")
        terminal.type(CTRL_C)
        terminal.wait_for("is draining")
        assert terminal.interrupt() == 130, terminal.text
    until(lambda: not pids(folder), "the end of all processes")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_worker_ends_when_its_parent_is_killed(folder: Path, processes: str) -> None:
    with worker(folder, "--processes", processes) as terminal:
        terminal.wait_for(READY, times=int(processes))
        terminal.send(signal.SIGKILL)
        until(lambda: not pids(folder), "the end of all processes")


def test_dev_runs_jobs_and_schedules_of_a_new_file_in_colour(folder: Path) -> None:
    added = "@app.schedule(every_seconds=1)\n@app.task()\nasync def tick() -> None: ...\n"
    (folder / "shop.py").write_text(SHOP + added)
    with Terminal("dev", "shop:app", folder=folder) as terminal:
        terminal.wait_for("schedule shop.tick: Every second")
        terminal.wait_for("job 1 of shop.tick")
        assert re.search(r"\x1b\[32mINFO\x1b\[0m +worker \S+ serves default on sqlite:",
                         terminal.text)  # fmt: skip
        until(lambda: job(folder, 1).state is State.SUCCEEDED, "a tick")
        terminal.wait_for("succeeded in")
        edit(folder / "shop.py", "ship()} 1", "ship()} 2")
        terminal.wait_for("shop.py changed; the worker restarts")
        terminal.wait_for(READY, times=2)
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.text
    assert "Traceback" not in terminal.text


def test_dev_shows_tracebacks_and_no_control_characters_of_jobs(folder: Path) -> None:
    added = (
        '@app.task(max_attempts=1)\ndef fail() -> None:\n    raise ValueError("\\x1b]0;hi\\x07")\n'
    )
    (folder / "shop.py").write_text(SHOP + added)
    with Terminal("dev", "shop:app", "--no-reload", folder=folder, env={"NO_COLOR": "1"}) as shown:
        shown.wait_for(READY)
        add(folder, "fail")
        shown.wait_for("in fail")
        shown.type(CTRL_C)
        assert shown.end() == 0, shown.text
    assert "ValueError" in shown.text
    assert "\x1b" not in shown.text
    assert "\x07" not in shown.text
