"""Jobs that wait for others: freed once, skipped when a parent is lost, never forgotten."""

from __future__ import annotations

import inspect
import sys
from datetime import timedelta
from functools import partial

import pytest

from tenure.errors import JobNotFound
from tenure.rules.job import State
from tenure.rules.lifecycle import abort, fail, retry, skip, succeed
from tenure.store import Store
from tests.support.plain import Plain
from tests.support.rules import rule
from tests.support.stores import Clock
from tests.support.work import ERROR, add, ids_of, job, run, settle, take, take_one


def state(store: Store, clock: Clock, id: int) -> State:
    return store.get(id, now=clock.now).state


def test_a_child_waits_until_its_last_parent_has_succeeded(store: Store, clock: Clock) -> None:
    parents = (add(store, clock.now), add(store, clock.now))
    child = add(store, clock.now, parents=parents)
    assert (state(store, clock, child), store.get(child).unfinished_parents) == (State.WAITING, 2)
    run(store, clock.now, succeed)
    assert (state(store, clock, child), store.get(child).unfinished_parents) == (State.WAITING, 1)
    run(store, clock.now, succeed)
    assert (state(store, clock, child), store.get(child).token) == (State.QUEUED, 2)
    assert ids_of(take(store, clock.now)) == [child]


def test_two_parents_that_end_in_one_batch_free_their_child_once(
    store: Store, clock: Clock
) -> None:
    parents = (add(store, clock.now), add(store, clock.now))
    child = add(store, clock.now, parents=parents)
    settle(store, clock.now, *(succeed(parent) for parent in take(store, clock.now)))
    assert ids_of(take(store, clock.now)) == [child]
    assert take(store, clock.now) == []


def test_a_parent_named_twice_counts_once(store: Store, clock: Clock) -> None:
    parent = add(store, clock.now)
    child = add(store, clock.now, parents=(parent, parent))
    assert store.get(child).unfinished_parents == 1
    run(store, clock.now, succeed)
    assert state(store, clock, child) is State.QUEUED


def test_a_retry_of_a_parent_frees_nobody(store: Store, clock: Clock) -> None:
    child = add(store, clock.now, parents=(add(store, clock.now),))
    run(store, clock.now, lambda parent: retry(parent, ERROR, 0))
    assert state(store, clock, child) is State.WAITING


def test_a_child_keeps_its_due_time_while_it_waits(store: Store, clock: Clock) -> None:
    parent = add(store, clock.now)
    due = clock.now + timedelta(seconds=60)
    late, early = (
        add(store, clock.now, parents=(parent,), delay_seconds=60),
        add(store, clock.now, parents=(parent,), delay_seconds=1),
    )
    clock.advance(30)
    run(store, clock.now, succeed)
    assert (state(store, clock, late), store.get(late).due_at) == (State.SCHEDULED, due)
    assert state(store, clock, early) is State.QUEUED


@pytest.mark.parametrize("end", ["fail", "skip", "abort", "cancel", "sweep"])
def test_a_child_whose_parent_did_not_succeed_is_skipped(
    store: Store, clock: Clock, end: str
) -> None:
    parent = add(store, clock.now, max_attempts=1)
    child = add(store, clock.now, parents=(parent, add(store, clock.now, queue="other")))
    if end == "cancel":
        store.cancel(parent, now=clock.now)
    elif end == "sweep":
        take_one(store, clock.now)
        assert store.sweep(now=clock.advance(31)).finished == 1
    else:
        ends = {"fail": lambda j: fail(j, ERROR), "skip": skip, "abort": abort}
        run(store, clock.now, ends[end])
    assert state(store, clock, child) is State.WAITING  # the other parent still runs
    run(store, clock.now, succeed, queue="other")
    skipped = store.get(child)
    assert (skipped.state, skipped.reason) == (State.SKIPPED, "a parent did not succeed")
    assert (skipped.attempts, skipped.worker, skipped.claimed_at) == (0, None, None)


def test_a_skip_goes_down_the_whole_line(
    store: Store, clock: Clock, request: pytest.FixtureRequest
) -> None:
    """Skipping a chain must not need a stack that is as deep as the chain is long."""
    first = last = add(store, clock.now)
    for _ in range(100):
        last = add(store, clock.now, parents=(last,))
    claimed = take_one(store, clock.now)
    request.addfinalizer(partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(len(inspect.stack()) + 200)
    settle(store, clock.now, fail(claimed, ERROR))
    assert state(store, clock, first) is State.FAILED
    assert state(store, clock, last) is State.SKIPPED
    assert store.count_live(now=clock.now) == []


def test_a_fan_frees_all_of_its_children(store: Store, clock: Clock) -> None:
    parent = add(store, clock.now)
    children = [
        answer.id
        for answer in store.enqueue([job(parents=(parent,)) for _ in range(1200)], now=clock.now)
    ]
    run(store, clock.now, succeed)
    assert ids_of(take(store, clock.now, 2000)) == children


def test_parents_that_are_final_already_count_at_once(store: Store, clock: Clock) -> None:
    good = add(store, clock.now)
    run(store, clock.now, succeed)
    bad = add(store, clock.now)
    run(store, clock.now, skip)
    assert state(store, clock, add(store, clock.now, parents=(good,))) is State.QUEUED
    assert state(store, clock, add(store, clock.now, parents=(good, bad))) is State.SKIPPED


def test_an_unknown_parent_refuses_the_whole_batch(
    store: Store, plain: Plain, clock: Clock
) -> None:
    parent = add(store, clock.now)
    before = plain.everything()
    with pytest.raises(JobNotFound, match="999999"):
        store.enqueue([job(), job(parents=(parent, 999_999)), job()], now=clock.now)
    assert plain.everything() == before


def test_a_waiting_child_can_be_cancelled_and_its_own_children_are_skipped(
    store: Store, clock: Clock
) -> None:
    child = add(store, clock.now, parents=(add(store, clock.now),))
    grandchild = add(store, clock.now, parents=(child,))
    assert store.cancel(child, now=clock.now) is State.CANCELLED
    assert state(store, clock, grandchild) is State.SKIPPED
    run(store, clock.now, succeed)
    assert state(store, clock, child) is State.CANCELLED


@rule("freed-held")
def test_a_held_child_is_freed_but_stays_held(store: Store, clock: Clock) -> None:
    """Seen failing with the hold ignored: the held child ran."""
    child = add(store, clock.now, parents=(add(store, clock.now),))
    assert store.hold(child, now=clock.now)
    run(store, clock.now, succeed)
    assert (state(store, clock, child), store.get(child).held) == (State.QUEUED, True)
    assert take(store, clock.now) == []
    assert store.unhold(child, now=clock.now)
    assert ids_of(take(store, clock.now)) == [child]


@rule("flagged-free")
def test_a_child_whose_cancellation_is_requested_is_not_freed(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """Seen failing with the request ignored: the end of the parent queued the child."""
    child = add(store, clock.now, parents=(add(store, clock.now),))
    plain.rows(f"update tenure.job set cancel_requested = true where id = {child}")
    run(store, clock.now, succeed)
    assert state(store, clock, child) is State.CANCELLED


def test_a_parent_that_is_replayed_does_not_free_its_child_again(
    store: Store, clock: Clock
) -> None:
    parent = add(store, clock.now)
    child = add(store, clock.now, parents=(parent,))
    run(store, clock.now, succeed)
    run(store, clock.now, succeed)
    assert store.replay(parent, now=clock.now)
    assert run(store, clock.now, succeed).id == parent
    assert state(store, clock, child) is State.SUCCEEDED
    assert take(store, clock.now) == []


def test_a_child_may_be_replayed_without_its_parents(store: Store, clock: Clock) -> None:
    parent = add(store, clock.now)
    child = add(store, clock.now, parents=(parent,))
    run(store, clock.now, lambda job: fail(job, ERROR))
    assert state(store, clock, child) is State.SKIPPED
    assert store.replay(child, now=clock.now)
    assert run(store, clock.now, succeed).id == child
