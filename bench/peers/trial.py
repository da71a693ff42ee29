"""One competitor on one fresh database: enqueue, drain with worker processes, wait, and audit.

A drain's clock runs from the go, which all its workers wait for with everything imported, until
every job has run and the database shows no unfinished one. A trial in which a job did not run, or
whose completions are not in the database, raises; jobs that ran twice are counted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec
import psutil

from bench.cpu import cpu_seconds
from bench.harness import check
from bench.lab import Lab
from bench.peers.adapter import Adapter
from bench.peers.board import Board
from bench.peers.environments import ROOT
from bench.peers.place import Place, fresh_place

START_SECONDS = 60.0
DRAIN_SECONDS = 180.0
SETTLE_SECONDS = 30.0
STOP_SECONDS = 5.0
LOOK_SECONDS = 0.005
MEMORY = Path("/dev/shm")


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """What a drain showed."""

    jobs: int
    seconds: float
    twice: int
    worker_cpu_us_per_job: float
    worker_mib: float
    commits_per_job: float | None = None
    wal_bytes_per_job: float | None = None

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.jobs / self.seconds


class Trial:
    """A competitor at work. `jobs` is the highest number of jobs that it will see."""

    def __init__(
        self, adapter: type[Adapter], python: str, place: Place, board: Board, log: IO[bytes]
    ) -> None:
        self.adapter = adapter
        self.place = place
        self.board = board
        self._python = python
        self.log = log
        self._workers: list[subprocess.Popen[bytes]] = []
        self._finished = 0

    def step(self, *arguments: object) -> dict[str, float]:
        """Do one step in a process of its own, and answer what it said."""
        done = subprocess.run(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=self.log,
            cwd=ROOT,
            env=self.environment(),
        )
        lines = [line for line in done.stdout.decode().splitlines() if line.startswith("answer ")]
        check(done.returncode == 0 and bool(lines), f"{self._who} {arguments[0]}:\n{self._said()}")
        answer: dict[str, float] = json.loads(lines[-1].removeprefix("answer "))
        return answer

    def enqueue_many(self, first: int, end: int) -> float:
        """Enqueue in bulk. Answers jobs per second."""
        return (end - first) / self.step("enqueue_many", first, end)["seconds"]

    def check_stored(self, jobs: int) -> None:
        """Raise unless the database holds so many jobs."""
        found = self.place.number(self.adapter.stored)
        check(found == jobs, f"{self._who}: {found} jobs are stored, not {jobs}")

    @contextmanager
    def workers(self, count: int) -> Iterator[float]:
        """Worker processes, from the go on. Yields when that was."""
        self.board.reset_workers()
        try:
            for worker in range(count):
                self._workers.append(
                    subprocess.Popen(
                        self.command("work", worker),
                        stdin=subprocess.DEVNULL,
                        stdout=self.log,
                        stderr=self.log,
                        start_new_session=True,
                        cwd=ROOT,
                        env=self.environment(),
                    )
                )
            self._wait(lambda: self.board.is_ready(count), START_SECONDS, "workers did not start")
            yield self.board.go()
        finally:
            self._stop()

    def drain(self, first: int, end: int, workers: int) -> Drain:
        """Run these jobs, which stand ready, and audit."""
        before = self.place.written()
        with self.workers(workers) as start:
            self.wait_until_done(first, end)
            seconds = time.monotonic() - start
            cpu, mib = self.cpu_seconds(), self._mib()
        after = self.place.written()
        jobs = end - first
        self._audit(jobs)
        return Drain(
            jobs=jobs,
            seconds=seconds,
            twice=self.board.twice(first, end),
            worker_cpu_us_per_job=1e6 * cpu / jobs,
            worker_mib=mib,
            commits_per_job=(after[0] - before[0]) / jobs if before and after else None,
            wal_bytes_per_job=(after[1] - before[1]) / jobs if before and after else None,
        )

    def wait_until_done(self, first: int, end: int) -> None:
        """Wait until these jobs have run, and then until the database knows of it."""
        jobs = end - first
        self._wait(
            lambda: self.board.done(first, end) == jobs, DRAIN_SECONDS, f"not all {jobs:,} jobs ran"
        )
        self._wait(
            lambda: not self.place.number(self.adapter.unfinished),
            SETTLE_SECONDS,
            "jobs stayed unfinished in the database",
        )

    def _audit(self, jobs: int) -> None:
        self._finished += jobs
        if self.adapter.finished is not None:
            found = self.place.number(self.adapter.finished)
            expected = self._finished
            check(found == expected, f"{self._who}: {found} completions stored, not {expected}")

    def cpu_seconds(self) -> float:
        """CPU time of the workers so far, with their children."""
        return sum(cpu_seconds(each.pid) for each in self._processes())

    def _mib(self) -> float:
        return sum(each.memory_info().rss for each in self._processes()) / 2**20

    def _processes(self) -> list[psutil.Process]:
        first = [psutil.Process(worker.pid) for worker in self._workers]
        return first + [child for each in first for child in each.children(recursive=True)]

    def _stop(self) -> None:
        for worker in self._workers:
            _signal_group(worker, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self._workers:
            try:
                worker.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            finally:
                _signal_group(worker, signal.SIGKILL)
                worker.wait()
        self._workers.clear()

    def _wait(self, is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            late = time.monotonic() > deadline
            dead = any(worker.poll() is not None for worker in self._workers)
            check(not (late or dead), f"{self._who}: {otherwise}\n{self._said()}")
            time.sleep(LOOK_SECONDS)

    @property
    def _who(self) -> str:
        return self.adapter.name

    def command(self, *arguments: object) -> list[str]:
        """A step as a command line, to be run in the root of the checkout."""
        where = (self.adapter.name, self.place.url, self.board.path, self.board.jobs)
        return [self._python, "-m", "bench.peers.stage", *map(str, (*where, *arguments))]

    def environment(self) -> dict[str, str]:
        """The environment of a step."""
        path = [str(ROOT)]
        if not self.adapter.packages:  # ours: from wherever the present process has it
            path += filter(None, [os.environ.get("PYTHONPATH")])
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}

    def _said(self) -> str:
        self.log.flush()
        self.log.seek(0)
        return self.log.read()[-2000:].decode(errors="replace")


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """The workers lead a session each, so that their children hear it too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextmanager
def trial(lab: Lab, adapter: type[Adapter], python: str, *, jobs: int) -> Iterator[Trial]:
    """A competitor with its tables in a fresh database, and a board for so many jobs."""
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="tenure-bench-", dir=memory) as folder,
        tempfile.TemporaryFile() as log,
        fresh_place(lab, adapter.store) as place,
    ):
        one = Trial(adapter, python, place, Board(Path(folder) / "board", jobs), log)
        one.step("install")
        yield one
