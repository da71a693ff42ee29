"""An ordinary bad day, in about a minute.

    python -m examples.demo [--pages 3000]

The backfill of examples/backfill.py on an embedded SQLite file, with two worker processes. Small
jobs fail and are tried again, long ones save their progress, one step is broken and ends among the
dead letters. In the middle a worker is killed with SIGKILL. Then the broken step is fixed and
replayed. At the end the history checker goes through everything that every process has recorded.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.backfill import app, embed, publish, summarise
from examples.stage import Stage
from tenure import Handle, Job, State
from tenure.codec import decode
from tenure.worker.recorder import RecordingWorld
from tests.support.invariants import Expected, check

BOOKS, CHAPTERS, SHELVES, WORKERS = 3, 24, 6, 2
KILL_AT = 0.4
"""A worker is killed when this part of the work is done."""
STOP_SECONDS = 30.0
LIMIT_SECONDS = 240.0


def main() -> int:
    """Run the demo; 0 when every job is accounted for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pages", type=int, default=3000, help="how many small jobs")
    pages = parser.parse_args().pages
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A flag, because an exception could come between the start of the workers and our note of it.
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        with tempfile.TemporaryDirectory(prefix="tenure-demo-") as folder:
            return Demo(Path(folder), pages, stop).run()
    except KeyboardInterrupt:
        print("interrupted; the workers are gone, and so is the file", flush=True)
        return 130


class Demo:
    """One run, in a folder of its own."""

    def __init__(self, folder: Path, pages: int, stop: threading.Event) -> None:
        self._records = folder / "records"
        self._records.mkdir()
        self._fixed = folder / "fixed"
        os.environ["TENURE_URL"] = f"sqlite:///{folder / 'jobs.db'}"
        os.environ["SHELF_FIXED"] = str(self._fixed)
        self._pages = pages
        self._stop = stop
        self._workers: list[subprocess.Popen[bytes]] = []
        self._killed: list[int] = []
        self._stage = Stage(app)

    def run(self) -> int:
        """All acts, and the verdict."""
        RecordingWorld(self._records).record(app)
        with app:
            jobs = self._enqueue()
            try:
                with self._stage:
                    for _ in range(WORKERS):
                        self._start_worker()
                    self._work(jobs)
                    self._replay()
            finally:
                self._stop_workers()
            return self._verdict(jobs)

    def _enqueue(self) -> list[Handle[Any]]:
        calls: list[Any] = [summarise.call(book, CHAPTERS) for book in range(1, BOOKS + 1)]
        calls += [publish.call(shelf) for shelf in range(1, SHELVES + 1)]
        calls += [embed.call(page) for page in range(1, self._pages + 1)]
        started = time.perf_counter()
        jobs = app.enqueue_many(calls)
        seconds = time.perf_counter() - started
        self._stage.say(f"{len(jobs)} jobs enqueued in one transaction, {seconds:.2f} s")
        return jobs

    def _start_worker(self) -> None:
        # In a session of its own, so that Ctrl-C is for us alone, and we end it in good order.
        worker = subprocess.Popen(
            [sys.executable, "-m", "examples.backfill", str(self._records)], start_new_session=True
        )
        self._workers.append(worker)
        self._stage.say(f"worker {worker.pid} started")

    def _work(self, jobs: list[Handle[Any]]) -> None:
        """Until nothing is left; a worker is killed on the way, and another one takes its place."""
        while left := self._look(len(jobs)):
            if not self._killed and left <= (1 - KILL_AT) * len(jobs):
                victim = self._workers[0]
                self._stage.say(f"SIGKILL to worker {victim.pid}, in the middle of its jobs")
                victim.kill()
                victim.wait()
                self._killed.append(victim.pid)
                self._start_worker()

    def _replay(self) -> None:
        """Fix the broken step and run its dead letters again."""
        dead = list(app.list_jobs(states={State.FAILED}).jobs)
        self._stage.say(f"{len(dead)} dead letters: {dead[0].reason if dead else 'none'}")
        self._fixed.touch()
        for job in dead:
            app.replay(job.id)
        self._stage.say(f"the shelf is fixed; {len(dead)} jobs replayed")
        while self._look(len(dead)):
            pass

    def _look(self, total: int) -> int:
        """One look at the work; answers how many jobs are left."""
        left = sum(count.jobs for count in app.count_live())
        self._stage.paint(total - left, total)
        if self._stop.wait(0.2):
            raise KeyboardInterrupt
        for worker in self._workers:
            if worker.poll() is not None and worker.pid not in self._killed:
                raise SystemExit(f"worker {worker.pid} has ended with {worker.returncode}")
        if self._stage.seconds > LIMIT_SECONDS:
            raise SystemExit(f"{left} jobs are left after {LIMIT_SECONDS:.0f} s")
        return left

    def _stop_workers(self) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGINT)  # they finish what they run
        for worker in self._workers:
            worker.wait(STOP_SECONDS)

    def _verdict(self, jobs: list[Handle[Any]]) -> int:
        """Compare what is in the database with what was enqueued, and check the records."""
        found = list(all_jobs())
        say = self._stage.say
        say(f"{len(found)} jobs in history: {dict(Counter(str(job.state) for job in found))}")
        say(f"{sum(job.attempts > 1 for job in found)} needed more than one attempt")
        say(f"{sum(job.crashes > 0 for job in found)} were in the hands of the killed worker")
        wrong = [job for job in found if not is_as_expected(job)]
        if wrong or sorted(job.id for job in found) != sorted(handle.id for handle in jobs):
            say(f"NOT every job is accounted for, such as {wrong[:3]}")
            return 1
        try:
            check(self._records, app.url, Expected(disturbed=self._killed))
        except AssertionError as error:
            say(f"the history checker has found: {error}")
            return 1
        say("every job is accounted for, and the history checker is content")
        return 0


def is_as_expected(job: Job) -> bool:
    """Everything has succeeded, with its own result."""
    if job.state is not State.SUCCEEDED:
        return False
    result, args = decode(job.result or "null"), decode(job.args, dict[str, int])
    if job.task == summarise.name:
        return isinstance(result, list) and len(result) == CHAPTERS
    if job.task == publish.name:
        return result == f"shelf {args['shelf']}"
    return result == args["page"] ** 2


def all_jobs() -> Iterator[Job]:
    """Every job, a page at a time, newest first."""
    page = app.list_jobs(limit=1000)
    yield from page.jobs
    while page.next is not None:
        page = app.list_jobs(limit=1000, before=page.next)
        yield from page.jobs


if __name__ == "__main__":
    sys.exit(main())
