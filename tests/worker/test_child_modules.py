"""Other processes of a worker have its tasks, wherever the user has defined them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenure import State, Tenure
from tenure.rules.job import NewJob
from tests.worker.support import PATIENCE_SECONDS, ended, eventually

pytestmark = [
    pytest.mark.slow,  # processes
    pytest.mark.parametrize("url", ["sqlite"], indirect=True),
]

CORE = """
from tenure import Tenure

app = Tenure()
"""
TASKS = """
import ctypes
import logging
import os
import subprocess
import sys
from core import app

log = logging.getLogger("shop")


@app.task(isolation="process")
def in_child(number: int) -> int:
    log.info("child has %d", number)
    log.warning("child warns")
    return number


@app.task()
def in_thread(number: int) -> int:
    log.info("thread has %d", number)
    return number


@app.task()
async def on_loop(number: int) -> int:
    log.info("coroutine has %d", number)
    return number


@app.task(isolation="process")
def holds_the_gil(file: str) -> None:
    with open(file, "w") as out:
        out.write(str(os.getpid()))
    ctypes.PyDLL(None).sleep(600)


@app.task(isolation="process", max_attempts=1)
def leaves_a_process(file: str) -> None:
    sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with open(file, "w") as out:
        out.write(str(sleeper.pid))
    os._exit(3)
"""
MAIN = """
import sys
from core import app
import tasks_a

if __name__ == "__main__":
    app.run_worker(processes=int(sys.argv[1]), sweep_seconds=0.1)
"""
FORGETFUL = """
from core import app
import tasks_a

if __name__ == "__main__":
    @app.task()
    def only_here() -> None: ...

    app.run_worker(processes=2)
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a Python command in a folder with an application in three modules."""
    (tmp_path / "core.py").write_text(CORE)
    (tmp_path / "tasks_a.py").write_text(TASKS)
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    started: list[subprocess.Popen[str]] = []

    def run(*words: str) -> subprocess.Popen[str]:
        with (tmp_path / "log.txt").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *words], cwd=tmp_path, env={**os.environ, "TENURE_URL": url},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True,
                start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def enqueue(app: Tenure, name: str, **arguments: Any) -> int:
    args = json.dumps(arguments).encode()
    return app.store.enqueue([NewJob(task=f"tasks_a.{name}", args=args)])[0].id  # type: ignore[arg-type]


def lines_of(folder: Path) -> list[str]:
    return (folder / "log.txt").read_text().splitlines()


WORKER = ("-m", "tenure", "worker")


@pytest.mark.parametrize(
    "words",
    [
        (*WORKER, "main:app"), (*WORKER, "main:app", "--processes", "2"),
        ("main.py", "1"), ("main.py", "2"), ("-m", "main", "2"),
    ],
    ids=["command", "command-2", "script", "script-2", "module-2"],
)  # fmt: skip
def test_children_have_the_tasks_of_all_modules(
    words: tuple[str, ...], app: Tenure, start: Start
) -> None:
    start(*words)
    for number in range(3):
        for name in ("in_child", "in_thread", "on_loop"):
            job = ended(app, enqueue(app, name, number=number))
            assert (job.state, job.result_json) == (State.SUCCEEDED, str(number))


def test_a_process_whose_tasks_differ_refuses_to_start(
    app: Tenure, start: Start, tmp_path: Path
) -> None:
    process = start("forgetful.py")
    assert process.wait(PATIENCE_SECONDS) != 0
    said = "\n".join(lines_of(tmp_path))
    assert "this worker process refuses to start" in said
    assert "forgetful.only_here (parent: thread, here: missing)" in said
    assert "ConfigError: a worker process refused to start" in said
    assert not app.workers()


def test_a_task_more_on_disk_stops_no_worker(app: Tenure, start: Start, tmp_path: Path) -> None:
    """A deployment has written new code while the worker runs the old one."""
    worker = start(*WORKER, "main:app", "--processes", "2")
    eventually(lambda: len(app.workers()) == 2)
    (tmp_path / "tasks_a.py").write_text(f"{TASKS}\n\n@app.task()\ndef one_more() -> None: ...\n")
    first = app.workers()[0]
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: len({each.pid for each in app.workers()} - {first.pid}) == 2)
    id = enqueue(app, "in_child", number=1)
    assert ended(app, id).state is State.SUCCEEDED
    assert worker.poll() is None


def test_a_child_whose_task_is_gone_says_so_in_one_line(
    app: Tenure, start: Start, tmp_path: Path
) -> None:
    start(*WORKER, "main:app")
    eventually(app.workers)
    (tmp_path / "tasks_a.py").write_text(TASKS.replace("def in_child(", "def in_child_now("))
    id = enqueue(app, "in_child", number=1)
    eventually(lambda: app.get(id).token > 1)
    reason = str(app.get(id).reason)
    assert "this child process refuses to start: this process does not have the tasks" in reason
    assert "tasks_a.in_child (parent: process, here: missing)" in reason
    assert app.get(id).attempts == 0
    assert "Traceback" not in "\n".join(lines_of(tmp_path))


def test_a_child_that_holds_the_gil_dies_with_its_worker(
    app: Tenure, start: Start, tmp_path: Path
) -> None:
    worker = start(*WORKER, "main:app")
    file = tmp_path / "pid"
    enqueue(app, "holds_the_gil", file=str(file))
    child = psutil.Process(int(eventually(lambda: file.exists() and file.read_text())))
    worker.kill()
    worker.wait()
    eventually(lambda: not _lives(child))


def test_a_process_that_left_its_session_is_reported(
    app: Tenure, start: Start, tmp_path: Path
) -> None:
    start(*WORKER, "main:app")
    file = tmp_path / "pid"
    id = enqueue(app, "leaves_a_process", file=str(file))
    assert ended(app, id).state is State.FAILED
    stray = psutil.Process(int(file.read_text()))
    try:
        said = f"process {stray.pid} (sleep 600) was started by a handler"
        eventually(lambda: any(said in line for line in lines_of(tmp_path)))
    finally:
        stray.kill()


def test_the_watchdog_reports_such_a_process_when_the_worker_was_killed(
    app: Tenure, start: Start, tmp_path: Path
) -> None:
    """Two children: one leaves a process behind in a session of its own, and lives on."""
    worker = start(*WORKER, "main:app", "--process-slots", "1")
    file = tmp_path / "pid"
    (tmp_path / "tasks_a.py").write_text(
        TASKS.replace("os._exit(3)", "ctypes.PyDLL(None).sleep(9)")
    )
    enqueue(app, "leaves_a_process", file=str(file))
    stray = psutil.Process(int(eventually(lambda: file.exists() and file.read_text())))
    try:
        worker.kill()
        said = f"the worker was killed; process {stray.pid} (sleep 600)"
        eventually(lambda: any(said in line for line in lines_of(tmp_path)))
    finally:
        stray.kill()


def test_handlers_log_like_their_worker_with_their_job(
    app: Tenure, start: Start, tmp_path: Path
) -> None:
    """In threads, on the loop and in child processes."""
    worker = start(*WORKER, "main:app", "--log-format", "json")
    ids = [enqueue(app, name, number=7) for name in ("in_child", "in_thread", "on_loop")]
    for id in ids:
        ended(app, id)
    worker.send_signal(signal.SIGTERM)
    worker.wait(PATIENCE_SECONDS)
    lines = [json.loads(line) for line in lines_of(tmp_path)]
    own = {
        line["job"]: line
        for line in lines
        if line["logger"] == "shop" and "has 7" in line["message"]
    }
    assert sorted(own) == sorted(ids)
    for line in own.values():
        assert line["task"].startswith("tasks_a.")
        assert (line["attempt"], line["queue"], line["level"]) == (1, "default", "INFO")
        assert line["worker"]


def test_text_lines_name_the_job(app: Tenure, start: Start, tmp_path: Path) -> None:
    start(*WORKER, "main:app")
    id = enqueue(app, "in_child", number=8)
    ended(app, id)
    said = f"INFO     shop: child has 8 [job {id} of tasks_a.in_child, attempt 1]"
    eventually(lambda: any(said in line for line in lines_of(tmp_path)))


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
