"""A child finds the application of its worker: the same names of tasks, the same database."""

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name"),
    [(["-m", "shop.jobs"], "shop.jobs.work"), (["shop/jobs.py"], "jobs.work")],
    ids=["module", "script"],
)
def test_a_child_has_the_same_application(command: list[str], name: str, tmp_path: Path) -> None:
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
