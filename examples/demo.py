"""Failing jobs, dead letters and a killed worker, in half a minute.

    python -m examples.demo [--pages 3000] [--keep FOLDER]
    python -m examples.demo --check FOLDER

The demo runs the backfill of examples/backfill.py on an embedded SQLite file, with two worker
processes. Small jobs fail and are retried, long jobs save progress, and the jobs of one broken
task become dead letters. In the middle of a long job the demo kills its worker with SIGKILL. Then
the broken task is fixed and its jobs are replayed. At the end every job must be accounted for: see
examples/verdict.py. You can kill more workers from another terminal; their jobs are recovered too.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from examples.backfill import app, embed, publish, summarise
from examples.stage import Look, Stage
from examples.verdict import DATABASE, RECORDS, Script, Verdict, counted, judge
from tenure import Handle, Job, State
from tenure.rules.job import Progress
from tenure.testing.recorder import RecordingEnvironment

BOOKS, SHELVES, WORKERS = 3, 6, 2
PAGES, CHAPTERS, FEWEST_CHAPTERS = 3000, 40, 12
KILL_AT = 0.4
"""A worker is killed when one of its books has this progress."""
LOOK_SECONDS, STOP_SECONDS = 0.2, 30.0
STUCK_SECONDS = 120.0
"""The demo gives up when no job has finished for this time."""


class Interrupted(Exception):
    """A signal asks the demo to end."""


class Failed(Exception):
    """The demo cannot continue."""


def main() -> int:
    """Run the demo, or check a kept one; 0 when every job is accounted for."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pages", type=int, default=PAGES, help="how many small jobs")
    parser.add_argument(
        "--keep", type=Path, help="keep the database and the records in this folder"
    )
    parser.add_argument("--check", type=Path, help="check a kept folder again")
    options = parser.parse_args()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # bars in any encoding
    if options.check:
        return tell(judge(options.check))
    # A flag, because an exception could come after the start of a worker and before we store it.
    stop = Stop()
    try:
        with home(options.keep) as folder:
            return tell(Demo(folder, options.pages, stop).run())
    except Interrupted:
        return stop.tell(is_kept=options.keep is not None)
    except Failed as error:
        print(f"NOT finished: {error}", flush=True)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


class Stop:
    """Set by the signals that end a program."""

    def __init__(self) -> None:
        # Not an Event: the line that the signal interrupts may have locked it.
        self._news: SimpleQueue[int] = SimpleQueue()
        self._signal = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._set)

    def _set(self, number: int, _: object) -> None:
        self._signal = number
        self._news.put(number)

    def wait(self, seconds: float) -> None:
        """Sleep. Raises `Interrupted` when a signal has arrived."""
        with suppress(Empty):
            self._news.get(timeout=seconds)
            raise Interrupted

    def tell(self, *, is_kept: bool) -> int:
        """Print how the demo ended; returns the exit code."""
        gone = "the workers are stopped" + ("" if is_kept else " and their database is removed")
        print(f"interrupted; {gone}", flush=True)
        return 128 + self._signal


@contextmanager
def home(kept: Path | None) -> Iterator[Path]:
    """The folder of the demo: a temporary one, or the one to keep."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="tenure-demo-") as folder:
            yield Path(folder)
        return
    try:
        kept.mkdir(parents=True)
    except FileExistsError:
        raise Failed(f"{kept} already exists; name a new folder") from None
    yield kept.resolve()
    print(f"\nkept in {kept}; list the jobs with\n  .venv/bin/tenure --url "
          f"sqlite:///{kept.resolve() / DATABASE} ls", flush=True)  # fmt: skip


def tell(verdict: Verdict) -> int:
    """Print the verdict; returns the exit code."""
    print("\n" + "\n".join(verdict.lines), flush=True)
    return 0 if verdict.is_good else 1


class Demo:
    """One run of the demo."""

    def __init__(self, folder: Path, pages: int, stop: Stop) -> None:
        self._folder = folder
        self._records = folder / RECORDS
        self._records.mkdir()
        self._fixed = folder / "shelf-fixed"
        os.environ["TENURE_URL"] = f"sqlite:///{folder / DATABASE}"
        os.environ["SHELF_FIXED"] = str(self._fixed)
        self._pages = pages
        self._chapters = max(FEWEST_CHAPTERS, CHAPTERS * pages // PAGES)
        self._stop = stop
        self._stage = Stage()
        self._jobs: list[Handle[Any]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self._dead: dict[int, int] = {}
        """Process -> how many of its jobs are not yet swept."""
        self._has_killed = False
        self._changed = (0.0, -1)

    def run(self) -> Verdict:
        """Run the whole demo and return the verdict."""
        RecordingEnvironment(self._records).record(app)
        with app:
            self._jobs = self._enqueue()
            try:
                with self._stage:
                    for _ in range(WORKERS):
                        self._start_worker()
                    self._work()
                    self._replay()
                self._stop_workers()
            finally:
                for worker in self._workers:
                    worker.kill()
                    worker.wait()
        ids, killed = [job.id for job in self._jobs], list(self._dead)
        Script(ids, self._chapters, SHELVES, killed).save(self._folder)
        return judge(self._folder)

    def _enqueue(self) -> list[Handle[Any]]:
        calls: list[Any] = [summarise.call(n, self._chapters) for n in range(1, BOOKS + 1)]
        calls += [publish.call(shelf) for shelf in range(1, SHELVES + 1)]
        calls += [embed.call(page) for page in range(1, self._pages + 1)]
        started = time.perf_counter()
        jobs = app.enqueue_many(calls)
        seconds = time.perf_counter() - started
        self._stage.say(f"{len(jobs):,} jobs enqueued in one transaction, {seconds:.2f} s")
        return jobs

    def _start_worker(self) -> None:
        # In its own session, so that Ctrl-C reaches only this process, which stops the worker.
        with self._log(len(self._workers)).open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "examples.backfill", str(self._records)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._workers.append(worker)
        self._stage.say(f"worker {worker.pid} started")

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"

    def _work(self) -> None:
        """Work until only dead letters are left; kill one worker meanwhile."""
        while self._look():
            if not self._has_killed and (victim := self._victim()):
                self._has_killed = True
                victim.kill()
                victim.wait()

    def _victim(self) -> subprocess.Popen[bytes] | None:
        """A worker with a book that is far enough; if all books are done, one with any job."""
        running = app.list_jobs(states={State.RUNNING}).jobs
        books = [app.get(handle.id) for handle in self._jobs[:BOOKS]]
        if any(book.finished_at is None for book in books):
            far = {book.id for book in books if is_far(app.progress(book.id))}
            running = tuple(job for job in running if job.id in far)
        holders = {pid_of(job) for job in running}
        alive = (worker for worker in self._workers if worker.poll() is None)
        return next((worker for worker in alive if worker.pid in holders), None)

    def _replay(self) -> None:
        """Fix the broken task and replay its dead letters."""
        dead = app.list_jobs(states={State.FAILED}).jobs
        why = dead[0].error if dead else None
        self._stage.say(f"{len(dead)} dead letters: {why.message if why else 'no reason'}")
        self._fixed.touch()
        for job in dead:
            app.replay(job.id)
        self._stage.say(f"the shelf is fixed; {len(dead)} jobs replayed")
        while self._look():
            pass

    def _look(self) -> int:
        """Read and show the state of the work; returns how many jobs are left."""
        self._mind_workers()
        live: Counter[str] = Counter()
        for count in app.count_live():
            live[count.state] += count.jobs
        hands = self._hands()
        left, dead = live.total(), len(app.list_jobs(states={State.FAILED}).jobs)
        self._stage.paint(Look(
            len(self._jobs) - left - dead, len(self._jobs), live[State.QUEUED],
            live[State.RUNNING], live[State.SCHEDULED], dead, self._books(),
            [self._worker_row(worker.pid, hands) for worker in self._workers],
        ))  # fmt: skip
        self._give_up_if_stuck(left)
        self._stop.wait(LOOK_SECONDS)
        return left

    def _hands(self) -> Counter[int]:
        """Process -> how many jobs it claimed. Reports when the jobs of a dead one are swept."""
        hands = Counter(pid_of(job) for job in app.list_jobs(states={State.RUNNING}).jobs)
        for pid, count in self._dead.items():
            if count and not hands[pid]:
                self._dead[pid] = 0
                jobs = counted(count, "job")
                self._stage.say(f"the lease of {pid} has expired; {jobs} queued again")
        return hands

    def _mind_workers(self) -> None:
        """Replace each worker that was killed, by the demo or by the user."""
        for number, worker in enumerate(self._workers):
            if worker.poll() is None or worker.pid in self._dead:
                continue
            if worker.returncode != -signal.SIGKILL:
                words = self._log(number).read_text(errors="replace")
                raise Failed(f"worker {worker.pid} exited with {worker.returncode}\n{words}")
            self._dead[worker.pid] = 0
            self._dead[worker.pid] = count = self._hands()[worker.pid]
            self._stage.say(f"SIGKILL to worker {worker.pid}, which has {counted(count, 'job')}")
            self._start_worker()

    def _books(self) -> list[tuple[str, float, str]]:
        shown = []
        for number, handle in enumerate(self._jobs[:BOOKS], 1):
            job, progress = app.get(handle.id), app.progress(handle.id)
            if job.state is State.SUCCEEDED:
                part, words = 1.0, "done"
            else:
                part, words = progress.fraction or 0.0, progress.message or "waiting"
                pid = pid_of(job)
                if pid:
                    words += ", worker " + ("killed" if pid in self._dead else str(pid))
            shown.append((f"book {number}", part, words))
        return shown

    def _worker_row(self, pid: int, hands: Counter[int]) -> tuple[int, str, str]:
        if pid not in self._dead:
            return pid, f"{counted(hands[pid], 'job')} claimed", ""
        if self._dead[pid]:
            return (
                pid,
                f"killed; its lease on {counted(self._dead[pid], 'job')} expires soon",
                "bad",
            )
        return pid, "killed; other workers run its jobs", "quiet"

    def _give_up_if_stuck(self, left: int) -> None:
        since, before = self._changed
        if left != before:
            self._changed = (self._stage.seconds, left)
        elif self._stage.seconds - since > STUCK_SECONDS:
            raise Failed(f"{left} jobs are left, and none has finished for {STUCK_SECONDS:.0f} s")

    def _stop_workers(self) -> None:
        """Interrupt the workers and wait until they have exited."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGINT)
        for worker in self._workers:
            try:
                status = worker.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                raise Failed(f"worker {worker.pid} did not stop in {STOP_SECONDS:.0f} s") from None
            if status == -signal.SIGKILL:
                self._dead.setdefault(worker.pid, 0)
            elif status:
                raise Failed(f"worker {worker.pid} exited with {status}")


def is_far(progress: Progress) -> bool:
    """Is a book far enough for its worker to be killed?"""
    return (progress.fraction or 0.0) >= KILL_AT


def pid_of(job: Job) -> int:
    """The process that has claimed this job; 0 for none. A worker's name is host-process-random."""
    return int(job.worker.split("-")[-2]) if job.worker else 0


if __name__ == "__main__":
    sys.exit(main())
