"""Unique keys by their names: which job has one, when it is free, and how work is done again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.errors import InvalidInput, InvalidName, JobGone, JobNotFound, KeyTaken, TenantMismatch
from tenure.rules.claim import Claimed
from tenure.rules.job import Enqueued, State, Unique, Until
from tenure.rules.lifecycle import Settlement, abort, fail, skip, succeed
from tenure.store import Store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, TASK, add, job, run, take_one

DAY_SECONDS = 86_400.0
FOREVER = Unique(key="k", until=Until.FOREVER)
AGAIN = Unique(key="k", until=Until.FOREVER, retake_failed=True)
PERIOD = Unique(key="k", until=Until.PERIOD, period_seconds=1000)
End = Callable[[Claimed], Settlement]
OTHER_ENDS: list[End] = [lambda job: fail(job, ERROR), skip, abort]


def enqueue(store: Store, clock: Clock, unique: Unique) -> Enqueued:
    [enqueued] = store.enqueue([job(unique=unique)], now=clock.now)
    return enqueued


def test_a_key_leads_to_its_job_live_and_finished(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, unique=FOREVER)
    assert store.get_by_key(TASK, "k").id == id
    run(store, clock.now, succeed)
    found = store.get_by_key(TASK, "k")
    assert (found.id, found.state) == (id, State.SUCCEEDED)


def test_of_one_call_only_the_jobs_that_may_take_the_key_of_failed_work_do(
    store: Store, clock: Clock
) -> None:
    """Seen failing when the first job of a key asked for all: both were the failed job."""
    old = add(store, clock.now, unique=FOREVER)
    run(store, clock.now, OTHER_ENDS[0])
    uniques = (FOREVER, AGAIN, FOREVER, AGAIN)
    first, *others = store.enqueue([job(unique=each) for each in uniques], now=clock.now)
    assert (first.id, first.created) == (old, False)
    assert [each.created for each in others] == [True, False, False]
    assert len({each.id for each in others}) == 1
    assert store.get_by_key(TASK, "k").id == others[0].id


def test_a_key_that_no_job_has_is_not_found(store: Store, clock: Clock) -> None:
    add(store, clock.now, unique=Unique(key="k"))
    run(store, clock.now, succeed)
    for scope, key in ((TASK, "k"), (TASK, "other"), ("other", "k")):
        with pytest.raises(JobNotFound, match=f"no job holds the unique key '{key}' of {scope}"):
            store.get_by_key(scope, key)


def test_a_key_whose_period_is_over_is_not_found(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, unique=PERIOD)
    clock.advance(1001)
    assert store.get_by_key(TASK, "k", now=clock.now).id == id, "a live job has its key"
    run(store, clock.now, succeed)
    with pytest.raises(JobNotFound):
        store.get_by_key(TASK, "k", now=clock.now)


@pytest.mark.parametrize(
    ("end", "told"), [(succeed, "has succeeded"), (OTHER_ENDS[0], "has failed"), (skip, "ended")]
)
def test_a_key_tells_that_its_job_is_gone(store: Store, clock: Clock, end: End, told: str) -> None:
    id = add(store, clock.now, unique=FOREVER)
    run(store, clock.now, end)
    store.prune(now=clock.advance(31 * DAY_SECONDS))
    with pytest.raises(JobGone, match=rf"job {id} holds .* but it {told} and is no longer stored"):
        store.get_by_key(TASK, "k", now=clock.now)
    assert enqueue(store, clock, FOREVER) == Enqueued(id, created=False, gone=True)


@pytest.mark.parametrize("unique", [FOREVER, PERIOD])
def test_delete_frees_the_key(store: Store, plain: Plain, clock: Clock, unique: Unique) -> None:
    first = add(store, clock.now, unique=unique)
    run(store, clock.now, succeed)
    store.delete(first, now=clock.now)
    second = enqueue(store, clock, unique)
    assert second.created
    run(store, clock.now, succeed)
    store.delete_many([second.id], now=clock.now)
    assert plain.table("unique_key") == []


def test_delete_leaves_the_key_of_another_job(store: Store, clock: Clock) -> None:
    first = add(store, clock.now, unique=FOREVER)
    run(store, clock.now, succeed)
    assert store.free_key(TASK, "k", now=clock.now)
    second = enqueue(store, clock, FOREVER)
    store.delete(first, now=clock.now)
    assert store.get_by_key(TASK, "k").id == second.id


def test_a_key_is_freed_by_name(store: Store, clock: Clock) -> None:
    first = add(store, clock.now, unique=FOREVER)
    with pytest.raises(KeyTaken, match=f"job {first} has the unique key 'k' and is live"):
        store.free_key(TASK, "k", now=clock.now)
    run(store, clock.now, succeed)
    assert store.free_key(TASK, "k", now=clock.now)
    assert not store.free_key(TASK, "k", now=clock.now)
    assert store.get(first).state is State.SUCCEEDED, "its job is not changed"
    assert enqueue(store, clock, FOREVER).created


def test_the_key_of_a_job_that_is_gone_is_freed_by_name(store: Store, clock: Clock) -> None:
    add(store, clock.now, unique=FOREVER)
    run(store, clock.now, succeed)
    store.prune(now=clock.advance(31 * DAY_SECONDS))
    assert store.free_key(TASK, "k", now=clock.now)
    assert enqueue(store, clock, FOREVER).created


def test_a_key_belongs_to_its_tenant(store: Store, clock: Clock) -> None:
    acme = store.for_tenant("acme")
    [mine] = acme.enqueue([job(unique=FOREVER)], now=clock.now)
    assert acme.get_by_key(TASK, "k").id == mine.id
    assert store.get_by_key(TASK, "k", tenant="acme").id == mine.id
    with pytest.raises(JobNotFound):
        store.get_by_key(TASK, "k")
    with pytest.raises(TenantMismatch):
        acme.free_key(TASK, "k", tenant="other")
    run(store, clock.now, succeed)
    assert not store.free_key(TASK, "k", now=clock.now)
    assert acme.free_key(TASK, "k", now=clock.now)


def test_mistakes_are_told(store: Store) -> None:
    with pytest.raises(InvalidInput, match="a task or the name of a scope is needed, not 5"):
        store.get_by_key(5, "k")  # type: ignore[arg-type]
    with pytest.raises(InvalidName, match="unique key must be a string"):
        store.free_key(TASK, 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidName, match="unique scope"):
        store.free_key("a b", "k")
    with pytest.raises(InvalidInput, match="retake_failed must be True or False"):
        Unique(key="k", retake_failed=1)  # type: ignore[arg-type]


# --- again, if it failed --------------------------------------------------------------------------


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("end", OTHER_ENDS)
def test_unsuccessful_work_is_enqueued_again_on_request(
    store: Store, clock: Clock, end: End, is_kept: bool
) -> None:
    first = add(store, clock.now, unique=FOREVER)
    run(store, clock.now, end)
    if not is_kept:
        store.prune(now=clock.advance(31 * DAY_SECONDS))
    assert not enqueue(store, clock, FOREVER).created
    again = enqueue(store, clock, AGAIN)
    assert again.created
    assert again.id != first
    assert enqueue(store, clock, AGAIN) == Enqueued(again.id, created=False), "it is live"
    if is_kept:
        with pytest.raises(KeyTaken):
            store.replay(first, now=clock.now)


@pytest.mark.parametrize("is_kept", [True, False])
def test_work_that_succeeded_is_not_done_again(store: Store, clock: Clock, is_kept: bool) -> None:
    first = add(store, clock.now, unique=AGAIN)
    assert enqueue(store, clock, AGAIN) == Enqueued(first, created=False)
    run(store, clock.now, succeed)
    if not is_kept:
        store.prune(now=clock.advance(31 * DAY_SECONDS))
    assert enqueue(store, clock, AGAIN) == Enqueued(first, created=False, gone=not is_kept)


@pytest.mark.parametrize("unique", [FOREVER, PERIOD])
@pytest.mark.parametrize("in_bulk", [True, False])
def test_a_replayed_job_keeps_its_key(
    store: Store, clock: Clock, unique: Unique, in_bulk: bool
) -> None:
    first = add(store, clock.now, unique=unique)
    run(store, clock.now, OTHER_ENDS[0])
    if in_bulk:
        assert list(store.replay_many([first], now=clock.now).changed) == [first]
    else:
        assert store.replay(first, now=clock.now)
    assert enqueue(store, clock, AGAIN) == Enqueued(first, created=False)
    take_one(store, clock.now)
    assert enqueue(store, clock, AGAIN) == Enqueued(first, created=False)


def test_both_wishes_in_one_batch_give_one_job(store: Store, clock: Clock) -> None:
    add(store, clock.now, unique=FOREVER)
    run(store, clock.now, skip)
    one, two = store.enqueue([job(unique=AGAIN), job(unique=AGAIN)], now=clock.now)
    assert (one.created, two) == (True, Enqueued(one.id, created=False))
