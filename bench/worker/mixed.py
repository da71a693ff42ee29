"""Half `async def`, half `def` jobs in one queue, against the same jobs of each kind alone.

Each job sleeps for 20 ms, and each kind has 20 slots: so slots are the limit, not the processor.
One worker process takes turns with the jobs of one kind, those of the other, and both mixed, one
after the other in line. The rate of a kind is that until its last job starts. Target: at least 0.9.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing

import psycopg

from bench import work
from bench.engine import bare_postgres, bare_sqlite
from bench.harness import ROUNDS, Result, Round, check, compare
from bench.lab import Lab
from bench.worker.app import LAST, QUEUE, SLEEP
from bench.worker.process import PATIENCE_SECONDS, WorkerProcess
from tenure.rules.claim import NEEDS, Kind
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.store import Store, open_store

KINDS: tuple[Kind, ...] = ("async", "thread")
STORES = ("sqlite", "postgres")
NAMES = tuple(f"worker.{store}.mixed_{kind}" for store in STORES for kind in KINDS)
WARM_UP_JOBS = 200
LOOK_SECONDS = 0.01

Rates = Mapping[Kind, float]


class Queue:
    """A queue with one worker process."""

    def __init__(self, store: Store, count: work.Count, worker: WorkerProcess) -> None:
        self._store = store
        self._count = count
        self._worker = worker
        self._finished = 0

    def run(self, kinds: Sequence[Kind], jobs: int) -> Rates:
        """Run this number of jobs of each kind. Returns the rate of each."""
        self._store.pause(QUEUE)
        self._count.settle_down()
        most = work.CHUNK // len(kinds)
        for start in range(0, jobs, most):
            chunk = min(most, jobs - start)
            self._store.enqueue([_job(SLEEP, kind) for _ in range(chunk) for kind in kinds])
        self._store.enqueue([_job(LAST, kind) for kind in kinds])
        start_at = time.perf_counter()
        self._store.resume(QUEUE)
        rates: dict[Kind, float] = {}
        while len(rates) < len(kinds):
            said = self._worker.hear()
            [kind] = [kind for kind in kinds if kind == said]
            rates[kind] = jobs / (time.perf_counter() - start_at)
        self._audit(len(kinds) * (jobs + 1))
        return rates

    def _audit(self, jobs: int) -> None:
        """Not timed."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._count("job"):
            check(time.monotonic() < deadline, "the last jobs were not settled")
            time.sleep(LOOK_SECONDS)
        self._finished += jobs
        work.check_rows(self._count, ready=0, job=0, lease=0, event=0, history=self._finished)


def _job(task: str, kind: Kind) -> NewJob:
    return NewJob(task=f"{task}.{kind}", args=encode({}), needs=NEEDS[kind])


def measure(queue: Queue, jobs: int) -> list[tuple[Rates, Rates]]:
    """The rates of both kinds together, and alone, in each round."""
    queue.run(KINDS, WARM_UP_JOBS)
    rounds: list[tuple[Rates, Rates]] = []
    for _ in range(ROUNDS):
        before = queue.run(KINDS, jobs)
        alone = {kind: queue.run([kind], jobs)[kind] for kind in KINDS}
        after = queue.run(KINDS, jobs)
        together = {kind: 2 / (1 / before[kind] + 1 / after[kind]) for kind in KINDS}
        rounds.append((together, alone))
    return rounds


def run(lab: Lab) -> Iterator[Result]:
    """Measure on both databases."""
    jobs = lab.size(4_000, 1_000)
    for name in STORES:
        with ExitStack() as stack:
            url, store, count = _sqlite(lab, stack) if name == "sqlite" else _postgres(lab, stack)
            worker = stack.enter_context(WorkerProcess(url, "mixed"))
            rounds = measure(Queue(store, count, worker), jobs)
        for kind in KINDS:
            yield compare(
                f"worker.{name}.mixed_{kind}",
                [Round(together[kind], alone[kind]) for together, alone in rounds],
                "the same alone",
            )


def _sqlite(lab: Lab, stack: ExitStack) -> tuple[str, Store, work.Count]:
    path = lab.file("mixed.db")
    url = f"sqlite:///{path}"
    store = stack.enter_context(open_store(url))
    return url, store, bare_sqlite.Count(stack.enter_context(closing(bare_sqlite.connect(path))))


def _postgres(lab: Lab, stack: ExitStack) -> tuple[str, Store, work.Count]:
    url = stack.enter_context(lab.database())
    store = stack.enter_context(lab.postgres_store(url))
    auditor = stack.enter_context(psycopg.connect(url, autocommit=True))
    return url, store, bare_postgres.Count(auditor)
