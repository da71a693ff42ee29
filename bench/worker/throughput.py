"""No-op jobs through one worker process, against the engine's own claim and settle loop.

Six sides take turns: the engine's loop (blocks of 500 on one connection, no handlers), a worker
with `async def` handlers, one with `def` handlers, and one with `async def` handlers beside tasks
of the other kinds, which have no jobs; the first and the last worker also with jobs that are
enqueued by name alone. Each has a database of its own. The jobs are enqueued before
the clock starts. A worker's clock runs from the moment at which its queue is resumed until the last
job has been settled, as seen from here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from bench import work
from bench.harness import ROUNDS, Result, Round, check, compare
from bench.worker.app import LAST, QUEUE
from bench.worker.process import PATIENCE_SECONDS, WorkerProcess
from tenure.rules.claim import NEEDS, UNKNOWN
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.store import Store

KINDS = ("async", "thread")
UNUSED, BY_NAME, BY_NAME_UNUSED = "unused", "by name", "by name, unused"


class Work(NamedTuple):
    """The tasks of a worker, and what the tickets of its jobs say."""

    tasks: str
    needs: int


SIDES = {
    "async": Work("async", NEEDS["async"]),
    "thread": Work("thread", NEEDS["thread"]),
    UNUSED: Work("unused", NEEDS["async"]),
    BY_NAME: Work("async", UNKNOWN),
    BY_NAME_UNUSED: Work("unused", UNKNOWN),
}
WARM_UP_JOBS = 5_000
LOOK_SECONDS = 0.002


class Side(Protocol):
    """One of the competitors."""

    def fill(self, jobs: int) -> None:
        """Prepare a turn of so many jobs; not timed."""

    def drain(self, jobs: int) -> None:
        """Do them all."""

    def audit(self, jobs: int) -> None:
        """Raise unless exactly these jobs were done, once each; not timed."""


class Engine(work.Draining):
    """The claim and settle loop of the engine's benchmarks."""

    def drain(self, jobs: int) -> None:
        done = 0
        while done < jobs:
            step = self.step()
            check(step > 0, "the work ran out")
            done += step


class Working:
    """A worker process that drains its queue."""

    def __init__(self, store: Store, count: work.Count, worker: WorkerProcess, side: str) -> None:
        self._needs = SIDES[side].needs
        self._store = store
        self._count = count
        self._worker = worker
        self._finished = 0

    def fill(self, jobs: int) -> None:
        self._store.pause(QUEUE)
        self._count.settle_down()
        work.enqueue(self._store, jobs - 1, self._needs)
        self._store.enqueue([NewJob(task=LAST, args=encode({}), needs=self._needs)])

    def drain(self, jobs: int) -> None:  # noqa: ARG002
        self._store.resume(QUEUE)
        check(self._worker.hear() == "last", "the worker said something else")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._count("job"):
            check(time.monotonic() < deadline, "the last jobs were not settled")
            time.sleep(LOOK_SECONDS)

    def audit(self, jobs: int) -> None:
        self._finished += jobs
        # No event: nothing was retried, released or taken back.
        work.check_rows(self._count, ready=0, job=0, lease=0, event=0, history=self._finished)


def measure(engine: Engine, workers: Mapping[str, Working], *, jobs: int) -> list[dict[str, float]]:
    """Jobs per second of each side, in each round."""
    sides: dict[str, Side] = {"engine": engine, **workers}
    _turn(sides, WARM_UP_JOBS, list(sides))  # connections, prepared statements, caches, pace
    rounds = []
    for _ in range(ROUNDS):
        there = _turn(sides, jobs, list(sides))
        back = _turn(sides, jobs, list(reversed(sides)))
        rounds.append({name: 2 * jobs / (there[name] + back[name]) for name in sides})
    return rounds


def _turn(sides: Mapping[str, Side], jobs: int, order: Sequence[str]) -> dict[str, float]:
    seconds = {}
    for name in order:
        side = sides[name]
        side.fill(jobs)
        start = time.perf_counter()
        side.drain(jobs)
        seconds[name] = time.perf_counter() - start
        side.audit(jobs)
    return seconds


def results(store: str, rounds: Sequence[Mapping[str, float]]) -> Iterator[Result]:
    """One figure per kind of handler."""
    for kind in KINDS:
        yield compare(
            f"worker.{store}.{kind}",
            [Round(one[kind], one["engine"]) for one in rounds],
            "engine's claim and settle",
        )
    yield compare(
        f"worker.{store}.unused_kinds",
        [Round(one[UNUSED], one["async"]) for one in rounds],
        "the same without tasks of other kinds",
    )
    yield compare(
        f"worker.{store}.by_name_unused_kinds",
        [Round(one[BY_NAME_UNUSED], one[BY_NAME]) for one in rounds],
        "the same without tasks of other kinds",
    )
