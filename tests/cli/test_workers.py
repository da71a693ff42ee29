"""`tenure workers`: which are alive, and which are dead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tenure.rules.job import NewJob, WorkerInfo
from tenure.store import open_store
from tests.cli.inside import inside
from tests.cli.terminal import Terminal


def test_the_list_of_all_workers_says_which_are_dead(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with open_store(url) as store:
        store.announce(WorkerInfo(name="fresh", host="here", pid=1))
        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        store.announce(WorkerInfo(name="gone", host="here", pid=2), now=an_hour_ago)
    lines = inside("--url", url, "workers", "--all").out.splitlines()
    said = {line.split()[0]: line.split()[-1] for line in lines}
    assert said == {"worker": "status", "fresh": "alive", "gone": "dead"}
    assert "gone" not in inside("--url", url, "workers").out


def test_the_running_jobs_of_a_worker_are_counted_now(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with open_store(url) as store:
        store.announce(WorkerInfo(name="w1", host="here", pid=1))
        store.enqueue([NewJob(task="t")] * 3)
        store.claim("w1", {"default": 3})
    for command in ("workers", "top"):
        lines = inside("--url", url, command).out.splitlines()
        [at] = [n for n, line in enumerate(lines) if line.startswith("worker ")]
        column = lines[at].index("running"), lines[at].index("running") + len("running")
        assert lines[at + 1][slice(*column)].strip() == "3", lines


@pytest.mark.slow
def test_a_worker_that_starts_without_its_database_says_so_first(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from tenure import Tenure\napp = Tenure()\n")
    url = "postgresql://bob@127.0.0.1:1/jobs"
    words = ("worker", "shop", "--give-up-seconds", "0.1")
    with Terminal(*words, url=url, folder=tmp_path) as terminal:
        terminal.wait_for(" serves default on ")
        terminal.interrupt()
    before, _, _ = terminal.text.partition(" serves default on ")
    assert "the worker starts without its database and waits for it: PostgreSQL" in before


@pytest.mark.slow
def test_a_worker_that_creates_its_file_says_so_first(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from tenure import Tenure\napp = Tenure()\n")
    told = f"created {tmp_path}/jobs.db, because there was no such file"
    texts = []
    for _ in range(2):
        with Terminal("worker", "shop", url="sqlite:///jobs.db", folder=tmp_path) as terminal:
            terminal.wait_for(" serves default on ")
            terminal.interrupt()
        texts.append(terminal.text)
    assert told in texts[0].partition(" serves default on ")[0]
    assert told not in texts[1]
