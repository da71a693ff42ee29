"""The demo in a terminal and outside of one, to its end and interrupted; it cleans up after itself.

Its summary: see test_summary.py. At full size it runs in test_newcomer.py.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

from examples.demo import Interrupted, Stop
from tests.newcomer.conftest import ROOT, RUN_SECONDS, command, environment
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.terminal import Screen, Terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PAINTED = (
    r"^jobs    [█░]{36}  \d+ of 409$",
    r"^rate    .{36}  \d+ jobs per second$",
    r"^ +\d+ queued, \d+ claimed, \d+ to retry, 6 dead letters$",
    r"^book 2  █+░+  chapter \d+ of 12, worker \d+$",
    r"^book 2  █+  done$",
    r"^worker  \d+ +\d+ jobs claimed$",
    r"^worker  \d+ +killed; its lease on \d+ jobs? expires soon$",
    r"^worker  \d+ +killed; other workers run its jobs$",
    r"^ +[\d.]+ s  SIGKILL to worker \d+, which has \d+ jobs?$",
    r"^ +[\d.]+ s  the lease of \d+ has expired; \d+ jobs? queued again$",
)


@contextmanager
def plain(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo outside of a terminal."""
    with subprocess.Popen(
        command(), cwd=ROOT, env=environment(folder), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def workers_of(pid: int) -> list[psutil.Process]:
    """Its worker processes, as soon as there are two at work."""
    demo, found = psutil.Process(pid), list[psutil.Process]()

    def are_there() -> bool:
        found[:] = [each for each in demo.children() if is_worker(each)]
        return len(found) >= 2

    until(are_there)
    return found


def is_worker(process: psutil.Process) -> bool:
    try:
        return "examples.backfill" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def test_in_a_terminal_the_work_is_painted_and_the_terminal_given_back(tmp_path: Path) -> None:
    with Terminal(command(), cwd=ROOT, env=environment(tmp_path / "tmp")) as terminal:
        terminal.wait_for(shows("^jobs "))
        assert terminal.screen.is_alternate
        assert not terminal.screen.is_cursor_visible
        assert terminal.finish(seconds=RUN_SECONDS) == 0
        assert_given_back(terminal)
        told = terminal.screen.transcript
    for each in PAINTED:
        assert shows(each)(terminal.screen), each
    assert told.count("jobs enqueued in one transaction") == 1
    assert "409 enqueued, 409 succeeded, 0 left, 0 missing" in told
    assert list((tmp_path / "tmp").iterdir()) == []


def shows(pattern: str) -> Callable[[Screen], bool]:
    """Has this been on the screen?"""
    return lambda screen: any(
        re.search(pattern, frame, re.MULTILINE) for frame in (screen.text, *screen.frames)
    )


def assert_given_back(terminal: Terminal) -> None:
    assert not terminal.screen.is_alternate
    assert terminal.screen.is_cursor_visible
    assert terminal.is_as_before


@pytest.mark.parametrize(("columns", "rows"), [(44, 30), (20, 6)])
def test_a_small_terminal_shows_what_fits_and_ctrl_c_gives_it_back(
    tmp_path: Path, columns: int, rows: int
) -> None:
    """The screen of the test refuses a line that is too wide, and a view that scrolls."""
    folder = tmp_path / "tmp"
    with Terminal(
        command(), cwd=ROOT, env=environment(folder), columns=columns, lines=rows
    ) as terminal:
        terminal.wait_for(shows(r"^jobs    [█░]{8}  [1-9]"))
        workers = workers_of(terminal.process.pid)
        terminal.press_ctrl_c()
        assert terminal.finish() == 130
        assert_given_back(terminal)
        told = terminal.screen.transcript
    assert "interrupted; the workers are stopped" in told
    assert "Traceback" not in told
    assert not any(worker.is_running() for worker in workers)
    assert list(folder.iterdir()) == []


def test_without_colours_nothing_is_coloured(tmp_path: Path) -> None:
    env = {**environment(tmp_path / "tmp"), "NO_COLOR": "1"}
    with Terminal(command(), cwd=ROOT, env=env) as terminal:
        terminal.wait_for(shows(r"^worker  \d+ +\d+ jobs claimed"))
        assert {style for row in terminal.screen.cells for _, style in row} == {()}
        terminal.press_ctrl_c()
        assert terminal.finish() == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_leaves_neither_process_nor_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    with plain(tmp_path / "tmp") as process:
        workers = workers_of(process.pid)
        process.send_signal(number)
        printed, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + number, printed
    assert printed.endswith("interrupted; the workers are stopped and their database is removed\n")
    assert "Traceback" not in printed
    assert not any(worker.is_running() for worker in workers)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_worker_that_ends_by_itself_is_no_part_of_the_show(tmp_path: Path) -> None:
    with plain(tmp_path / "tmp") as process:
        workers = workers_of(process.pid)
        workers[0].terminate()
        printed, _ = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 1
    assert f"NOT finished: worker {workers[0].pid} exited with" in printed
    assert not any(worker.is_running() for worker in workers)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_workers_do_not_outlive_a_demo_that_was_killed(tmp_path: Path) -> None:
    with plain(tmp_path / "tmp") as process:
        workers = workers_of(process.pid)
        process.kill()
        until(lambda: not any(worker.is_running() for worker in workers))


def test_a_closed_pipe_ends_it_without_a_traceback(tmp_path: Path) -> None:
    with plain(tmp_path / "tmp") as process:
        workers = workers_of(process.pid)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        status = process.wait(RUN_SECONDS)
    assert status == 128 + signal.SIGPIPE
    assert not any(worker.is_running() for worker in workers)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_folder_that_is_there_already_is_not_touched(tmp_path: Path) -> None:
    done = subprocess.run(
        command("--keep", tmp_path), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == f"NOT finished: {tmp_path} already exists; name a new folder\n"
    assert list(tmp_path.iterdir()) == []


def test_a_signal_at_any_line_of_a_rest_ends_it() -> None:
    """One that came while the rest had a lock that its handler wanted stopped the demo for good."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    line, came = 0, True
    try:
        while came:
            line, came = line + 1, interrupts(line)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert line > 3


def interrupts(line: int) -> bool:
    """Does a signal at this line of a rest, counted along all calls, end it or the next one?"""
    stop, left = Stop(), line

    def trace(_frame: FrameType, event: str, _of: object) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left == -1:
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        stop.wait(0.01)
        sys.settrace(None)
        stop.wait(0.01)
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    assert left >= 0, f"the signal at line {line} was lost"
    return False
