"""A task has one name, however its module was loaded, in the worker and in its children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import asyncio
import sys

from tenure import Tenure, Worker

app = Tenure(f"sqlite:///{sys.argv[1]}")  # children see the arguments of the script


@app.task(isolation="process")
def work() -> str:
    return f"{work.name} on {app.url}"


async def main() -> None:
    async with Worker(app, process_slots=1):
        handle = await work.enqueue_async()
        print(work.name, "|", await handle.wait_async(timeout_seconds=30))


if __name__ == "__main__":
    asyncio.run(main())
"""

INTERACTIVE = """
from tenure import Tenure

app = Tenure("sqlite:///jobs.db")

@app.task()
def work() -> None: ...

print(work.name)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name"),
    [(["-m", "shop.jobs"], "shop.jobs.work"), (["shop/jobs.py"], "jobs.work")],
    ids=["module", "script"],
)
def test_a_task_has_the_same_name_in_a_child(command: list[str], name: str, tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(MODULE)
    ended = subprocess.run(
        [sys.executable, *command, "jobs.db"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{name} | {name} on sqlite:///jobs.db\n"


def test_a_module_that_is_run_names_its_tasks_as_one_that_is_imported(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(INTERACTIVE)
    for command in (["-m", "shop.jobs"], ["-c", "import shop.jobs"]):
        printed = subprocess.check_output([sys.executable, *command], cwd=tmp_path, text=True)
        assert printed == "shop.jobs.work\n"


@pytest.mark.parametrize("command", [["-"], ["-c", INTERACTIVE]], ids=["stdin", "command"])
def test_a_task_without_a_file_has_a_valid_name(command: list[str], tmp_path: Path) -> None:
    printed = subprocess.check_output(
        [sys.executable, *command], cwd=tmp_path, input=INTERACTIVE, text=True
    )
    assert printed == "main.work\n"
