"""A fresh virtual environment with nothing but the wheel runs what the README shows first.

One for each supported version of Python that is on this machine.
"""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from tests.docs.pages import page
from tests.packaging.conftest import Fresh

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.xdist_group("packaging")]

INSTALLED = {"apsw", "click", "cronsim", "msgspec", "tenure"}
WORKER_SECONDS = 60


def test_nothing_else_is_installed(fresh: Fresh) -> None:
    listed = json.loads(fresh.run("python", "-m", "pip", "list", "--format", "json"))
    assert {each["name"] for each in listed} - {"pip", "setuptools"} == INSTALLED


def test_import_is_cheap(fresh: Fresh) -> None:
    """Neither a driver, nor the command line, nor an event loop before it is needed."""
    code = "import sys, tenure; print(*sorted(set(sys.modules)))"
    loaded = set(fresh.run("python", "-c", code).split())
    assert "tenure" in loaded
    assert not loaded & {"apsw", "asyncio", "click", "psycopg", "rich", "sqlite3"}


def test_the_first_example_of_the_readme_runs(fresh: Fresh) -> None:
    first = page("README.md").snippets[0]
    (fresh.folder / "first.py").write_text(first.code, "utf-8")
    assert fresh.run("python", "-W", "error", "first.py") == first.output


def test_the_command_line_works(fresh: Fresh) -> None:
    assert fresh.run("tenure", "--help").startswith("Usage: tenure ")
    fresh.run("tenure", "--url", "sqlite:///cli.db", "db", "init")
    assert "SQLite" in fresh.run("tenure", "--url", "sqlite:///cli.db", "doctor")


def test_a_worker_on_the_command_line_runs_a_job(fresh: Fresh) -> None:
    (fresh.folder / "greeter.py").write_text(
        "from tenure import Tenure\n\n"
        "app = Tenure()\n\n\n"
        "@app.task(name='greet')\n"
        "def greet(name: str) -> str:\n"
        "    return f'Hello, {name}!'\n"
    )
    url = ("--url", "sqlite:///worker.db")
    fresh.run("tenure", *url, "db", "init")
    fresh.run("tenure", *url, "enqueue", "greet", "--args", '{"name": "Ada"}')
    with subprocess.Popen(
        [fresh.bin / "tenure", *url, "worker", "greeter:app"],
        cwd=fresh.folder, env=fresh.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    ) as worker:  # fmt: skip
        try:
            code = (
                "from greeter import app, greet\n"
                f"app.use_url({url[1]!r})\n"
                "print(app.handle(greet, 1).wait(timeout_seconds=60))\n"
            )
            assert fresh.run("python", "-c", code) == "Hello, Ada!\n"
        finally:
            worker.send_signal(signal.SIGINT)
            _, log = worker.communicate(timeout=WORKER_SECONDS)
    assert worker.returncode == 0, log


def test_without_psycopg_postgresql_is_refused_with_the_way_to_get_it(fresh: Fresh) -> None:
    done = subprocess.run(
        [fresh.bin / "tenure", "--url", "postgresql://127.0.0.1:1/none", "ls"],
        cwd=fresh.folder, env=fresh.env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "tenure[postgres]" in done.stderr
