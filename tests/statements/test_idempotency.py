"""Idempotency: statements 37 to 39. (40 and 41: see test_schedules.)"""

from __future__ import annotations

from functools import partial

from tenure.rules.codec import encode
from tenure.rules.job import Enqueued, NewJob, State, Unique, Until
from tenure.rules.lifecycle import fail, retry, succeed
from tenure.store import Store
from tests.statements.conftest import Opener
from tests.statements.support import (
    ERROR,
    Database,
    add,
    at_once,
    claim_one,
    defect,
    expire,
    new_jobs,
    running,
    statement,
)
from tests.support.stores import Clock

KEYED = NewJob(task="app.work", unique=Unique(key="invoice 7"))


@statement(37)
def test_a_second_enqueue_with_the_key_of_a_live_job_is_that_job(
    store: Store, clock: Clock, database: Database
) -> None:
    """In line, running, waiting for a retry, crashed: the key stays held, and the second caller is
    told the first job's id and that nothing was created."""
    [first] = store.enqueue([KEYED], now=clock.now)
    again = Enqueued(first.id, created=False)
    assert store.enqueue([KEYED], now=clock.now) == [again]
    job = claim_one(store, clock)
    assert store.enqueue([KEYED], now=clock.now) == [again]
    store.settle("w1", [retry(job, ERROR, 5.0)], now=clock.now)
    assert store.enqueue([KEYED], now=clock.now) == [again]
    store.promote(now=clock.advance(5))
    claim_one(store, clock)
    expire(store, clock)
    assert store.enqueue([KEYED, KEYED], now=clock.now) == [again, again]
    assert database.count("job") == 1


@statement(37)
@defect("F-7")
def test_concurrent_enqueues_with_one_key_give_one_job(
    open_shared: Opener, shared_database: Database
) -> None:
    """The unique index decides, not a look before the insert: one caller created it, and all got
    its id."""
    stores = [open_shared() for _ in range(6)]
    for number in range(8):
        job = NewJob(task="app.work", unique=Unique(key=f"key {number}"))
        answers = [answer for [answer] in at_once([partial(s.enqueue, [job]) for s in stores])]
        assert len({answer.id for answer in answers}) == 1
        assert [answer.created for answer in answers].count(True) == 1
    assert shared_database.count("job") == shared_database.count("unique_key") == 8


@statement(38)
def test_jobs_without_a_key_are_never_merged(store: Store, clock: Clock) -> None:
    """The same task with the same arguments, in one batch or in two: as many jobs as asked for."""
    ids = add(store, clock, 3) + add(store, clock, 2)
    assert len(set(ids)) == 5


@statement(39)
def test_a_job_that_runs_again_after_a_crash_has_one_record(
    store: Store, clock: Clock, database: Database
) -> None:
    """The same id, one row in history, one result; the lost attempt is a line of its story."""
    job = running(store, clock)
    expire(store, clock)
    again = claim_one(store, clock)
    store.settle("w1", [succeed(again, encode("result"))], now=clock.now)
    assert database.rows("select id, token from tenure.history") == [(job.id, 2)]
    kinds = [event.kind for event in store.timeline(job.id)]
    assert kinds == ["enqueued", "claimed", "crashed", "claimed", "succeeded"]


@defect("B-5")
def test_the_key_of_a_finished_job_is_free_again(store: Store, clock: Clock) -> None:
    """By success, failure, cancellation, or a sweep: every way out gives the key back."""
    seen = set()
    for end in ("succeed", "fail", "cancel", "sweep"):
        [added] = store.enqueue([NewJob(task="app.work", unique=Unique(key="k"), max_attempts=1)])
        assert added.created, end
        seen.add(added.id)
        if end == "cancel":
            assert store.cancel(added.id) is State.CANCELLED
            continue
        job = claim_one(store, clock)
        if end == "sweep":
            expire(store, clock)
        else:
            store.settle("w1", [succeed(job) if end == "succeed" else fail(job, ERROR)])
        assert store.get(added.id).state.final, end
    assert len(seen) == 4


def test_a_job_gives_back_only_a_key_that_is_its_own(store: Store, clock: Clock) -> None:
    """A key held until started passes to a second job while the first runs. The end of the first
    must not give away what the second holds."""
    unique = Unique(key="k", until=Until.STARTED)
    [first] = store.enqueue([NewJob(task="app.work", unique=unique)], now=clock.now)
    job = claim_one(store, clock)
    [second] = store.enqueue([NewJob(task="app.work", unique=unique)], now=clock.now)
    assert second.created
    store.settle("w1", [succeed(job)], now=clock.now)
    [third] = store.enqueue([NewJob(task="app.work", unique=unique)], now=clock.now)
    assert (third.id, third.created) == (second.id, False)
    assert first.id != second.id


def test_the_same_key_with_other_arguments_is_reported(store: Store) -> None:
    """Not silently merged: the caller is told that the holder was given something else."""
    unique = Unique(key="k")
    store.enqueue([NewJob(task="app.work", args=encode({"n": 1}), unique=unique)])
    [same] = store.enqueue([NewJob(task="app.work", args=encode({"n": 1}), unique=unique)])
    [other] = store.enqueue([NewJob(task="app.work", args=encode({"n": 2}), unique=unique)])
    assert (same.created, same.same_args) == (False, True)
    assert (other.created, other.same_args) == (False, False)


@defect("F-8")
def test_a_key_belongs_to_a_tenant_and_a_scope(store: Store) -> None:
    """One tenant's key holds back nobody else's job; the scope is the task, unless it is named."""
    unique, shared = Unique(key="k"), Unique(key="k", scope="mail")
    jobs = [
        NewJob(task="app.one", unique=unique),
        NewJob(task="app.two", unique=unique),
        NewJob(task="app.one", unique=unique, tenant="acme"),
        NewJob(task="app.one", unique=shared),
        NewJob(task="app.two", unique=shared),
    ]
    assert [answer.created for answer in store.enqueue(jobs)] == [True, True, True, True, False]


def test_a_batch_with_one_taken_key_stores_the_others(store: Store, clock: Clock) -> None:
    [held] = store.enqueue([KEYED], now=clock.now)
    answers = store.enqueue([*new_jobs(1), KEYED, *new_jobs(1)], now=clock.now)
    assert [answer.created for answer in answers] == [True, False, True]
    assert answers[1].id == held.id
