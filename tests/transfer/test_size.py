"""Many jobs: in reasonable time, and in memory that does not grow with them."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from tenure.rules import lifecycle
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.store import Store
from tenure.store.copy import run as transfer
from tenure.store.copy import tables as cargo
from tests.support.audit import audit
from tests.transfer.conftest import Urls, across

JOBS = 6_000
SECONDS = 120.0
"""Far more than it takes: a busy machine is no failure."""
CHUNK_BYTES = 10**6


def fill(store: Store) -> None:
    """Half of the jobs are finished, some with a story."""
    args = encode({"path": "s3://bucket/" + "x" * 100})
    for start in range(0, JOBS, 2000):
        store.enqueue([
            NewJob(
                task="app.work", args=args, priority=n % 3,
                delay_seconds=3600 if n % 10 == 0 else None,
            )
            for n in range(start, start + 2000)
        ])  # fmt: skip
    for _ in range(JOBS // 2000):
        [lease] = store.claim("w1", {"default": 1000})
        ends = [
            lifecycle.succeed(held, encode(held.id)) if held.id % 7 else lifecycle.release(held)
            for held in lease.jobs
        ]
        store.settle("w1", ends, done_leases=[lease.id])


@across
@pytest.mark.slow
def test_six_thousand_jobs(urls: Urls, stores: tuple[Store, Store]) -> None:
    source, target = stores
    fill(source)
    progress: list[int] = []
    start = time.monotonic()
    copied = transfer.copy(source, target, progress.append)
    seconds = time.monotonic() - start
    print(f"{JOBS} jobs in {seconds:.1f} s")
    assert copied.live + copied.finished == sum(progress) == JOBS
    assert copied.finished > JOBS // 4
    assert len(progress) == JOBS // 1000
    assert seconds < SECONDS
    audit(urls[1])


@across
@pytest.mark.slow
def test_memory_does_not_grow_with_the_jobs(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    monkeypatch.setattr(cargo, "CHUNK_BYTES", CHUNK_BYTES)
    big = NewJob(task="app.work", args=encode("x" * 250_000))
    for _ in range(10):
        source.enqueue([big] * 5)
    tracemalloc.start()
    try:
        transfer.copy(source, target, int)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    print(f"{peak / 1e6:.1f} MB at most for {transfer.count(source) / 4:.1f} MB of jobs")
    assert peak < 7 * CHUNK_BYTES
