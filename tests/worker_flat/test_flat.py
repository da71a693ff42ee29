"""A worker that has run many times as many jobs holds no more of anything than before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
import pytest

from tenure import Tenure
from tenure.rules.codec import encode
from tenure.rules.job import NewJob, State
from tests.conftest import Count
from tests.worker_flat.serve import COLLECT, ECHO

ROOT = Path(__file__).parents[2]
CHUNK = 1000
PATIENCE_SECONDS = 600.0
SHARE = {"async": (5_000, 25_000), "thread": (4_000, 16_000)}
WHOLE = {"async": (20_000, 200_000), "thread": (10_000, 60_000)}
"""Jobs before the first look, and before the second."""
GROWTH = 1.10
RSS_GROWTH = 1.40
"""The resident set also shows what the busiest moment has left behind."""

THREADS_ON_SQLITE = {"async": 8, "thread": 16}
"""Its own, the heartbeat's, the bell's, one that commits for many, four that write, and the slots.
One that writes starts when so many write at the same moment: nobody knows when that will be."""

# Python's own allocator keeps a block of 1 MB for one live object in it. Without it, the C library
# counts each object, and with one arena and fixed limits it gives back what lies free.
COUNTED = {
    "PYTHONMALLOC": "malloc",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a process holds at one moment."""

    held_bytes: int
    rss_bytes: int
    threads: int
    files: int
    connections: int


class Lab:
    """A database and the one worker process that serves it."""

    def __init__(self, url: str, worker: psutil.Process) -> None:
        self._url = url
        self._worker = worker
        self._app = Tenure(url)

    def close(self) -> None:
        self._app.close()

    def run(self, jobs: int) -> None:
        """Have so many jobs run, to the last one, from a backlog, in large blocks."""
        store = self._app.whole_store
        store.pause("default")
        text = "x" * 80
        for start in range(0, jobs, CHUNK):
            count = min(CHUNK, jobs - start)
            store.enqueue([NewJob(task=ECHO, args=encode({"text": text})) for _ in range(count)])
        store.resume("default")
        self._until_finished()

    def look(self) -> Holdings:
        """What the worker holds after its garbage was collected."""
        [collect] = self._app.whole_store.enqueue([NewJob(task=COLLECT, args=encode({}))])
        job = self._app.wait(collect.id, timeout_seconds=60)
        assert job.state is State.SUCCEEDED
        self._until_finished()
        with self._worker.oneshot():
            return Holdings(
                int(job.result),
                self._worker.memory_info().rss,
                self._worker.num_threads(),
                self._worker.num_fds(),
                self._count_connections(),
            )

    def _count_connections(self) -> int:
        """PostgreSQL: all sessions of the database. This process has the same few each time."""
        if not self._url.startswith("postgresql"):
            return len(self._worker.net_connections())
        with psycopg.connect(self._url) as connection:
            row = connection.execute(
                "select count(*) from pg_stat_activity where datname = current_database()"
            ).fetchone()
            assert row is not None
            return int(row[0])

    def _until_finished(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while sum(count.jobs for count in self._app.count_live()):
            assert self._worker.is_running()
            assert time.monotonic() < deadline, "the worker is stuck, or far too slow"
            time.sleep(0.1)


@contextmanager
def working(url: str, kind: str) -> Iterator[Lab]:
    """A worker process on this database, until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.worker_flat.serve", url, kind],
        cwd=ROOT,
        env=os.environ | COUNTED,
    ) as process:
        lab = Lab(url, psutil.Process(process.pid))
        try:
            yield lab
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
            lab.close()


@pytest.mark.slow
@pytest.mark.parametrize("style", ["sqlite-apsw", "postgres-sync"], indirect=True)
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_worker_does_not_grow(store_url: str, kind: str, whole: bool, count: Count) -> None:
    few, many = (WHOLE if whole else SHARE)[kind]
    with working(store_url, kind) as lab:
        lab.run(few)
        before = lab.look()
        lab.run(many - few)
        after = lab.look()
    print(f"\nafter {few:,} jobs {before}, after {many:,} {after}, load {os.getloadavg()[0]:.1f}")
    assert after.held_bytes <= GROWTH * before.held_bytes
    assert after.rss_bytes <= RSS_GROWTH * before.rss_bytes
    on_sqlite = store_url.startswith("sqlite")
    assert after.threads <= (THREADS_ON_SQLITE[kind] if on_sqlite else before.threads)
    assert after.files <= before.files
    assert after.connections <= before.connections
    count("jobs", many)
