"""Our side of the benchmarks: jobs with a 100-byte payload, through the public `Store` only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from bench.harness import check
from tenure.rules.claim import UNKNOWN, Lease
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import succeed
from tenure.store import Store

WORKER = "web-1:4711"
BLOCK = 500
CHUNK = 1000
ARGS: dict[str, object] = {
    "user_id": 1234567,
    "template": "welcome",
    "locale": "en_GB",
    "to": "someone.or.other@example.com",
}
PAYLOAD = encode(ARGS)
"""About 100 bytes, the same on both sides."""


def enqueue(store: Store, jobs: int, needs: int = UNKNOWN) -> list[int]:
    """Enqueue so many jobs in chunks, each encoded and checked like a client's."""
    ids: list[int] = []
    for start in range(0, jobs, CHUNK):
        count = min(CHUNK, jobs - start)
        new = [NewJob(task="mail.send", args=encode(ARGS), needs=needs) for _ in range(count)]
        ids += [answer.id for answer in store.enqueue(new)]
    return ids


def claim(store: Store, block: int = BLOCK) -> list[Lease]:
    """Claim one block."""
    return store.claim(WORKER, {"default": block}, lease_seconds=60.0)


def settle(store: Store, leases: Sequence[Lease]) -> list[int]:
    """Report success for everything on these leases, and give them back. Answers the job ids."""
    jobs = [job for lease in leases for job in lease.jobs]
    answers = store.settle(
        WORKER,
        [succeed(job, duration_seconds=0.0123) for job in jobs],
        done_leases=[lease.id for lease in leases],
    )
    check(all(answer.landed for answer in answers), "a settlement was stale")
    return [job.id for job in jobs]


class Draining:
    """A side that claims and settles jobs which stand ready."""

    def __init__(self, store: Store, count: Count) -> None:
        self._store = store
        self._count = count
        self._finished = 0
        self._enqueued: list[int] = []
        self._done: list[int] = []

    def fill(self, jobs: int) -> None:
        self._count.settle_down()
        self._enqueued, self._done = enqueue(self._store, jobs), []

    def step(self) -> int:
        done = settle(self._store, claim(self._store))
        self._done += done
        return len(done)

    def audit(self, jobs: int) -> None:
        check(len(self._done) == jobs, "not every job was claimed, or one was claimed twice")
        check(set(self._done) == set(self._enqueued), "other jobs were claimed than enqueued")
        self._finished += jobs
        check_rows(self._count, ready=0, job=0, lease=0, history=self._finished)


class Enqueuing:
    """A side that enqueues in chunks, each in a transaction of its own."""

    def __init__(self, store: Store, count: Count) -> None:
        self._store = store
        self._count = count
        self._ids: list[int] = []

    def fill(self, jobs: int) -> None:  # noqa: ARG002
        self._count.settle_down()

    def step(self) -> int:
        self._ids += enqueue(self._store, CHUNK)
        return CHUNK

    def audit(self, jobs: int) -> None:  # noqa: ARG002
        total = len(self._ids)
        check(len(set(self._ids)) == total, "an id was given out twice")
        check_rows(self._count, ready=total, job=total, lease=0, history=0)


class Count(ABC):
    """Looks into the tables behind the store's back, to audit a run."""

    @abstractmethod
    def __call__(self, table: str) -> int:
        """How many rows the table has."""

    @abstractmethod
    def settle_down(self) -> None:
        """Between rounds: let no background work of the last round fall into the next."""


def check_rows(count: Count, **expected: int) -> None:
    """Raise unless these tables have so many rows."""
    for table, rows in expected.items():
        found = count(table)
        check(found == rows, f"{table} has {found} rows, not {rows}")
