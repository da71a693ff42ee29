"""Shorthands of the conformance suite: one call for what every test does."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.job import Job, Json, NewJob
from tenure.rules.lifecycle import Settlement
from tenure.store import Answer, Store
from tests.support.stores import Clock

ERROR: Json = encode({"type": "ValueError", "message": "no"})
TASK = "app.work"


def job(**options: Any) -> NewJob:
    """A job to enqueue, of the usual task unless told otherwise."""
    return NewJob(**{"task": TASK} | options)


def add(store: Store, now: datetime, **options: Any) -> int:
    """Enqueue one job; answers its id."""
    [added] = store.enqueue([job(**options)], now=now)
    assert added.created
    return added.id


def add_many(store: Store, now: datetime, count: int, **options: Any) -> list[int]:
    """Enqueue several alike in one call."""
    return [added.id for added in store.enqueue([job(**options)] * count, now=now)]


def take(
    store: Store,
    now: datetime,
    most: int = 100,
    *,
    worker: str = "w1",
    queue: str = "default",
    lease_seconds: float = 30.0,
) -> list[Claimed]:
    """Claim from one queue; answers the jobs of all leases."""
    leases = store.claim(worker, {queue: most}, lease_seconds=lease_seconds, now=now)
    return [claimed for lease in leases for claimed in lease.jobs]


def take_one(store: Store, now: datetime, **options: Any) -> Claimed:
    """Claim exactly one job."""
    [claimed] = take(store, now, 1, **options)
    return claimed


def running(store: Store, now: datetime, *, worker: str = "w1", **options: Any) -> Claimed:
    """Enqueue one job and claim it; no other job may be ready."""
    add(store, now, **options)
    [claimed] = take(store, now, worker=worker)
    return claimed


def expire(store: Store, clock: Clock) -> None:
    """Let each lease of the usual length expire, and sweep."""
    clock.advance(31)
    while store.sweep(now=clock.now).more:
        pass


def settle(
    store: Store, now: datetime, *settlements: Settlement, worker: str = "w1"
) -> list[Answer]:
    """Settle, and give up the leases that are used up by it."""
    leases = sorted({settlement.lease for settlement in settlements})
    return store.settle(worker, settlements, done_leases=leases, now=now)


def run(store: Store, now: datetime, end: Any, **options: Any) -> Job:
    """Claim the next job, end its attempt with `end(claimed)`, and look at the job."""
    claimed = take_one(store, now, **options)
    [answer] = settle(store, now, end(claimed), worker=options.get("worker", "w1"))
    assert answer.landed
    return store.get(claimed.id, now=now)


def ids_of(jobs: list[Claimed]) -> list[int]:
    """The ids of claimed jobs, in order."""
    return [claimed.id for claimed in jobs]
