"""A zombie cannot do anything.

A zombie is a worker that lost its lease and does not know it: paused, cut off, or started twice
under one name. Each of its writes must change nothing in any table and be answered as stale. The
writes are enumerated, so that a new one without a zombie test fails here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

import pytest

from tenure.errors import LeaseLost
from tenure.rules.codec import encode
from tenure.rules.job import Claimed, NewStep
from tenure.rules.lifecycle import Outcome
from tenure.store import LANDED, Store
from tests.statements.support import (
    SETTLEMENTS,
    Caller,
    Database,
    Presented,
    add,
    callers,
    claim_jobs,
    claim_one,
    defect,
    expire,
    running,
)
from tests.support.flows import added, more
from tests.support.stores import Clock

Zombie = tuple[str, Presented]
Raise = Callable[[Store, Clock, Database], Zombie]


def swept_away(store: Store, clock: Clock, _: Database) -> Zombie:
    """Its lease ran out and was swept; another worker runs the job now."""
    job = running(store, clock, "zombie")
    expire(store, clock)
    assert claim_one(store, clock, "w2").token > job.token
    return "zombie", Presented(job.id, job.token, job.lease_id)


def old_token_under_its_own_new_lease(store: Store, clock: Clock, _: Database) -> Zombie:
    """Two attempts in one worker: the old one presents the live lease, but the old token."""
    job = running(store, clock, "zombie")
    expire(store, clock)
    again = claim_one(store, clock, "zombie")
    assert (again.id, again.token) == (job.id, job.token + 1)
    return "zombie", Presented(job.id, job.token, again.lease_id)


def no_lease_row(store: Store, clock: Clock, database: Database) -> Zombie:
    """The token is the current one, but the lease is gone, as after a failover that lost it."""
    job = running(store, clock, "zombie")
    database.rows(f"delete from tenure.lease where id = {job.lease_id}")
    return "zombie", Presented(job.id, job.token, job.lease_id)


def another_name(store: Store, clock: Clock, _: Database) -> Zombie:
    """Everything is right but the worker's name."""
    job = running(store, clock, "w1")
    return "zombie", Presented(job.id, job.token, job.lease_id)


def last_attempt_swept(store: Store, clock: Clock, _: Database) -> Zombie:
    """The sweep ended the job for good, and wrote the zombie's name next to the lost attempt."""
    job = running(store, clock, "zombie", max_attempts=1)
    expire(store, clock)
    return "zombie", Presented(job.id, job.token, job.lease_id)


def cancelled_by_the_sweep(store: Store, clock: Clock, _: Database) -> Zombie:
    """Asked to stop, it did not answer, and the sweep ended the job as cancelled."""
    job = running(store, clock, "zombie")
    store.cancel(job.id, now=clock.now)
    expire(store, clock)
    return "zombie", Presented(job.id, job.token, job.lease_id)


def swept_and_replayed(store: Store, clock: Clock, _: Database) -> Zombie:
    """The sweep failed the job, and an operator has replayed it since."""
    zombie = last_attempt_swept(store, clock, _)
    store.replay(zombie[1].id, now=clock.now)
    return zombie


RUNNING: list[Raise] = [swept_away, old_token_under_its_own_new_lease, no_lease_row, another_name]
FINISHED: list[Raise] = [last_attempt_swept, cancelled_by_the_sweep, swept_and_replayed]
"""Those whose job the sweep has ended: only a settlement could be mistaken for one that landed."""

zombies = pytest.mark.parametrize("raise_zombie", RUNNING, ids=lambda make: make.__name__)
all_zombies = pytest.mark.parametrize(
    "raise_zombie", RUNNING + FINISHED, ids=lambda make: make.__name__
)


@defect("F-1", "C-7", "C-11")
@all_zombies
def test_a_zombie_settles_nothing(
    store: Store, clock: Clock, database: Database, raise_zombie: Raise
) -> None:
    """Whatever a zombie says about how its attempt ended is refused and changes no row."""
    worker, held = raise_zombie(store, clock, database)
    before = database.snapshot()
    for outcome in Outcome:
        settlement = SETTLEMENTS[outcome](held)
        answers = store.settle(worker, [settlement], done_leases=[held.lease_id], now=clock.now)
        assert [(outcome, answer.stale) for answer in answers] == [(outcome, True)]
        assert (outcome, database.snapshot()) == (outcome, before)


@callers
@all_zombies
def test_a_zombie_settles_nothing_in_the_users_transaction(
    store: Store, clock: Clock, database: Database, caller: Caller, raise_zombie: Raise
) -> None:
    """In the caller's transaction a zombie raises, so the caller's own rows are undone too."""
    worker, held = raise_zombie(store, clock, database)
    before = database.snapshot()
    for outcome in Outcome:
        with (
            pytest.raises(LeaseLost, match=f"job {held.id}"),
            caller.transaction(held.id) as connection,
        ):
            store.settle(worker, [SETTLEMENTS[outcome](held)], on=connection, now=clock.now)
        assert (outcome, database.snapshot()) == (outcome, before)
        assert caller.effects() == []


@zombies
def test_a_zombie_reports_no_progress(
    store: Store, clock: Clock, database: Database, raise_zombie: Raise
) -> None:
    worker, held = raise_zombie(store, clock, database)
    before = database.snapshot()
    [answer] = store.report_progress(worker, [(held, 0.5, "half")], now=clock.now)
    assert answer.stale
    assert database.snapshot() == before


@zombies
def test_a_zombie_saves_no_checkpoint(
    store: Store, clock: Clock, database: Database, raise_zombie: Raise
) -> None:
    worker, held = raise_zombie(store, clock, database)
    before = database.snapshot()
    assert store.save_checkpoint(worker, held, encode({"at": 1}), now=clock.now).stale
    assert database.snapshot() == before


@zombies
def test_a_zombie_records_no_step(
    store: Store, clock: Clock, database: Database, raise_zombie: Raise
) -> None:
    worker, held = raise_zombie(store, clock, database)
    before = database.snapshot()
    step = NewStep("charge", "charge", encode({"at": 1}))
    assert store.record_step(worker, held, step, now=clock.now).stale
    assert database.snapshot() == before


@zombies
def test_a_zombie_adds_nothing_to_its_workflow(
    store: Store,
    clock: Clock,
    database: Database,
    raise_zombie: Raise,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def running_node(store: Store, clock: Clock, worker: str = "w1") -> Claimed:
        added(store, clock.now, {"first": ()})
        return claim_one(store, clock, worker)

    monkeypatch.setattr(sys.modules[__name__], "running", running_node)
    worker, held = raise_zombie(store, clock, database)
    before = database.snapshot()
    with pytest.raises(LeaseLost):
        store.grow_workflow(worker, held, [more("second")], now=clock.now)
    assert database.snapshot() == before


@zombies
def test_a_zombie_extends_no_lease(
    store: Store, clock: Clock, database: Database, raise_zombie: Raise
) -> None:
    """A heartbeat names a lease. One that is gone, or somebody else's, is answered as lost."""
    worker, held = raise_zombie(store, clock, database)
    if raise_zombie is old_token_under_its_own_new_lease:
        held = Presented(held.id, held.token, held.lease_id - 1)  # the lease it once had
    before = database.snapshot()
    beat = store.extend(worker, {held.lease_id: [held.id]}, now=clock.advance(1))
    assert (beat.lost, beat.cancelled) == ((held.lease_id,), ())
    assert database.snapshot() == before


def test_a_heartbeat_after_the_deadline_is_refused_before_anybody_swept(
    store: Store, clock: Clock, database: Database
) -> None:
    """The deadline itself ends the lease for its worker; it must stop, though nobody noticed."""
    job = running(store, clock)
    before = database.snapshot()
    beat = store.extend("w1", {job.lease_id: [job.id]}, now=clock.advance(30))
    assert beat.lost == (job.lease_id,)
    assert database.snapshot() == before


def test_a_zombie_in_a_batch_is_told_apart_from_the_living(store: Store, clock: Clock) -> None:
    """Two attempts of one job in one batch of one worker: each gets its own answer."""
    [id] = add(store, clock)
    old = claim_one(store, clock)
    expire(store, clock)
    new = claim_one(store, clock)
    assert (old.id, new.id) == (id, id)
    settlements = [
        SETTLEMENTS[Outcome.SUCCEED](new),
        SETTLEMENTS[Outcome.SUCCEED](Presented(id, old.token, new.lease_id)),
        SETTLEMENTS[Outcome.FAIL](old),
    ]
    assert [a.landed for a in store.settle("w1", settlements, now=clock.now)] == [
        True,
        False,
        False,
    ]


def test_a_zombie_does_not_keep_the_living_from_settling(store: Store, clock: Clock) -> None:
    add(store, clock, 3)
    first, second, third = claim_jobs(store, clock)
    zombie = Presented(second.id, second.token + 1, second.lease_id)
    answers = store.settle(
        "w1", [SETTLEMENTS[Outcome.SUCCEED](job) for job in (first, zombie, third)], now=clock.now
    )
    assert [answer.landed for answer in answers] == [True, False, True]


@callers
def test_a_settlement_committed_in_the_users_transaction_is_not_committed_twice(
    store: Store, clock: Clock, caller: Caller
) -> None:
    """After an unanswered COMMIT the user may run the transaction again. The first one counts:
    the second must be undone, or the effect would be there twice for one success."""
    job = running(store, clock)
    with caller.transaction(job.id) as connection:
        assert store.settle("w1", [SETTLEMENTS[Outcome.SUCCEED](job)], on=connection) == [LANDED]
    with pytest.raises(LeaseLost), caller.transaction(job.id) as connection:
        store.settle("w1", [SETTLEMENTS[Outcome.SUCCEED](job)], on=connection)
    assert caller.effects() == [job.id]


def test_every_outcome_has_a_zombie_test() -> None:
    """The table of settlements covers the enumeration, and each makes the outcome it stands for."""
    held = Presented(1, 1, 1)
    assert {make(held).outcome: outcome for outcome, make in SETTLEMENTS.items()} == {
        outcome: outcome for outcome in Outcome
    }


def test_every_worker_write_has_a_zombie_test() -> None:
    """Operations that present a worker's name are the ones above; claim, which holds nothing yet;
    and retire, which touches no job. Whoever adds one adds its zombie test."""
    writes = {
        name
        for name, method in inspect.getmembers(Store, inspect.isfunction)
        if "worker" in inspect.signature(method).parameters
    }
    assert writes == {
        "claim", "retire", "settle", "extend", "report_progress", "save_checkpoint", "record_step",
        "grow_workflow",
    }  # fmt: skip
