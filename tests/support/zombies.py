"""Zombies: workers that lost their lease and do not know it, each with what it presents."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.lifecycle import (
    HeldJob,
    Outcome,
    Settlement,
    abort,
    fail,
    release,
    retry,
    skip,
    snooze,
    succeed,
)
from tenure.store import Store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, expire, running, take_one

SETTLEMENTS: dict[Outcome, Callable[[HeldJob], Settlement]] = {
    Outcome.SUCCEED: lambda job: succeed(job, encode({"by": "zombie"})),
    Outcome.RETRY: lambda job: retry(job, ERROR, 5.0),
    Outcome.FAIL: lambda job: fail(job, ERROR),
    Outcome.SNOOZE: lambda job: snooze(job, 5.0),
    Outcome.RELEASE: release,
    Outcome.ABORT: abort,
    Outcome.SKIP: skip,
}
"""One way to end an attempt per outcome."""


class Presented(NamedTuple):
    """What a worker presents, true or not."""

    id: int
    token: int
    lease_id: int


Zombie = tuple[str, Presented]
Start = Callable[..., Claimed]
Raise = Callable[[Store, Clock, Plain, Start], Zombie]
"""Makes a zombie of a job that `Start` enqueues and claims."""


def swept(store: Store, clock: Clock, _: Plain, start: Start = running) -> Zombie:
    """Its lease expired and was swept; another worker runs the job now."""
    job = start(store, clock.now, worker="zombie")
    expire(store, clock)
    assert take_one(store, clock.now, worker="w2").token > job.token
    return "zombie", _presented(job)


def old_token_under_its_own_new_lease(
    store: Store, clock: Clock, _: Plain, start: Start = running
) -> Zombie:
    """Two attempts in one worker: the old one presents the live lease, but the old token."""
    job = start(store, clock.now, worker="zombie")
    expire(store, clock)
    again = take_one(store, clock.now, worker="zombie")
    assert (again.id, again.token) == (job.id, job.token + 1)
    return "zombie", Presented(job.id, job.token, again.lease_id)


def no_lease_row(store: Store, clock: Clock, plain: Plain, start: Start = running) -> Zombie:
    """The token is the current one, but the lease is gone, as after a failover that lost it."""
    job = start(store, clock.now, worker="zombie")
    plain.rows(f"delete from tenure.lease where id = {job.lease_id}")
    return "zombie", _presented(job)


def another_name(store: Store, clock: Clock, _: Plain, start: Start = running) -> Zombie:
    """Everything is right but the worker's name."""
    return "zombie", _presented(start(store, clock.now, worker="w1"))


def last_attempt_swept(store: Store, clock: Clock, _: Plain, start: Start = running) -> Zombie:
    """The sweep failed the job, and wrote the zombie's name next to the lost attempt."""
    job = start(store, clock.now, worker="zombie", max_attempts=1)
    expire(store, clock)
    return "zombie", _presented(job)


def cancelled_by_the_sweep(store: Store, clock: Clock, _: Plain, start: Start = running) -> Zombie:
    """Its cancellation was requested, it did not react, and the sweep cancelled the job."""
    job = start(store, clock.now, worker="zombie")
    store.cancel(job.id, now=clock.now)
    expire(store, clock)
    return "zombie", _presented(job)


def swept_and_replayed(store: Store, clock: Clock, plain: Plain, start: Start = running) -> Zombie:
    """The sweep failed the job, and an operator has replayed it since."""
    zombie = last_attempt_swept(store, clock, plain, start)
    store.replay(zombie[1].id, now=clock.now)
    return zombie


def _presented(job: Claimed) -> Presented:
    return Presented(job.id, job.token, job.lease_id)


RUNNING: list[Raise] = [swept, old_token_under_its_own_new_lease, no_lease_row, another_name]
FINISHED: list[Raise] = [last_attempt_swept, cancelled_by_the_sweep, swept_and_replayed]
"""Those whose job the sweep has finished: only a settlement could be taken for one that landed."""
