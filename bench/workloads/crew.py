"""Worker processes on one database, and the time that they take to drain it.

The workers start and run a few jobs before the clock does: connections, prepared statements and
child processes stand ready. Then their queues are paused and filled. The clock runs from the moment
at which the queues are resumed until the last job has been settled, as seen from here.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.harness import check
from bench.workloads.handlers import Kind
from bench.workloads.place import Place, plain
from tenure.rules.job import NewJob

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.002
WARM_UP = 500
DEFAULT = ("default",)
APP = ("bench.workloads.app",)
"""The module that a worker process runs, and its first arguments."""


class Crew:
    """Some worker processes of one database. `done` is how many jobs they have run."""

    def __init__(
        self,
        place: Place,
        kind: Kind,
        *,
        workers: int,
        queues: Sequence[str],
        notes: Path,
        program: Sequence[str],
    ) -> None:
        self._place = place
        self._queues = queues
        self.done = 0
        self._processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", *program),
                    *(place.url, kind, ",".join(queues), str(notes)),
                ],
                cwd=ROOT,
            )
            for _ in range(workers)
        ]

    def warm_up(self, jobs: int) -> None:
        """Wait until all workers are there, and have run so many jobs, which may be none."""
        wanted = len(self._processes)
        there = "select count(*) from {t}worker"
        self.wait(lambda: self._place.number(there) == wanted, "workers did not start")
        if jobs:
            self.wait_until_settled(self._place.fill(plain(jobs, queue=self._queues[-1])))
        self.done += jobs

    def drain(self, jobs: Sequence[NewJob], *, events: int = 0) -> float:
        """Run all of these, and audit. Answers jobs per second."""
        last = self.line_up(jobs)
        self._place.count.settle_down()
        start = time.perf_counter()
        self.run(last)
        seconds = time.perf_counter() - start
        self._place.check_finished(self.done, events=events)
        return len(jobs) / seconds

    def line_up(self, jobs: Sequence[NewJob]) -> int:
        """Enqueue all of these, and let none start yet. Answers the last id."""
        for queue in self._queues:
            self._place.store.pause(queue)
        self.done += len(jobs)
        return self._place.fill(jobs)

    def run(self, last: int) -> None:
        """Let go, and wait until nothing is left."""
        self._resume()
        self.wait_until_settled(last)

    def run_until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        """Let go, and wait for something."""
        self._resume()
        self.wait(is_so, otherwise)

    def mib(self) -> float:
        """Resident memory of all workers with their children."""
        return float(sum(each.memory_info().rss for each in self.family())) / 2**20

    def family(self) -> list[psutil.Process]:
        """All workers with their children."""
        first = [psutil.Process(each.pid) for each in self._processes]
        return first + [child for each in first for child in each.children(recursive=True)]

    def wait_until_settled(self, last: int) -> None:
        """Wait until nothing is live. The last job is asked for first: that costs one look-up."""
        one = f"select exists (select 1 from {{t}}job where id = {last})"
        look = self._place.number
        self.wait(lambda: not look(one), "the last job was not settled")
        self.wait(lambda: not look("select exists (select 1 from {t}job)"), "jobs are left")

    def wait(self, is_so: Callable[[], bool], otherwise: str) -> None:
        """Wait for something that the workers do."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            check(time.monotonic() < deadline, otherwise)
            check(all(each.poll() is None for each in self._processes), "a worker has ended")
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """End all workers."""
        for process in self._processes:
            process.terminate()
        try:
            for process in self._processes:
                process.wait(PATIENCE_SECONDS)
        finally:
            for process in self._processes:
                process.kill()
                process.wait()

    def _resume(self) -> None:
        """All at once: a hundred calls would take longer than the drain of the first queues."""
        *others, last = self._queues
        if others:
            names = ", ".join(f"'{name}'" for name in others)
            self._place.number(
                f"update {{t}}queue set paused_at = null where name in ({names}) returning 1"
            )
        self._place.store.resume(last)  # and this rings


@contextmanager
def crew(
    place: Place,
    kind: Kind = "async",
    *,
    workers: int = 1,
    queues: Sequence[str] = DEFAULT,
    notes: Path = Path("/dev/null"),
    warm_up: int = WARM_UP,
    program: Sequence[str] = APP,
) -> Iterator[Crew]:
    """Workers, warmed up."""
    one = Crew(place, kind, workers=workers, queues=queues, notes=notes, program=program)
    try:
        one.warm_up(warm_up * workers)
        yield one
    finally:
        one.stop()
