"""`tenure workers`: which are alive, and which are dead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from tenure.rules.job import WorkerInfo
from tenure.store import open_store
from tests.cli.inside import inside


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
