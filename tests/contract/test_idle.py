"""is_idle: have queues any work left?"""

from __future__ import annotations

import pytest

from tenure.errors import InvalidInput, InvalidName, TenantMismatch
from tenure.rules.gates import Limits
from tenure.rules.lifecycle import snooze, succeed
from tenure.store import Store
from tests.support.stores import Clock
from tests.support.work import add, take_one


def test_an_empty_store_is_idle(store: Store, clock: Clock) -> None:
    assert store.is_idle(["default"], now=clock.now)


def test_a_ready_job_is_work_for_its_own_queue_alone(store: Store, clock: Clock) -> None:
    add(store, clock.now, queue="a")
    assert not store.is_idle(["a", "b"], now=clock.now)
    assert store.is_idle(["b"], now=clock.now)


def test_a_running_job_is_work_until_it_ends(store: Store, clock: Clock) -> None:
    """Also for the other workers: it may come back."""
    add(store, clock.now)
    job = take_one(store, clock.now)
    assert not store.is_idle(["default"], now=clock.now)
    assert store.is_idle(["other"], now=clock.now)
    store.settle("w1", [succeed(job)], now=clock.now)
    assert store.is_idle(["default"], now=clock.now)


def test_a_job_is_work_from_a_moment_before_it_is_due(store: Store, clock: Clock) -> None:
    add(store, clock.now, delay_seconds=10)
    assert store.is_idle(["default"], within_seconds=9.5, now=clock.now)
    assert not store.is_idle(["default"], within_seconds=10, now=clock.now)
    assert store.is_idle(["other"], within_seconds=10, now=clock.now)
    assert not store.is_idle(["default"], now=clock.advance(11))


def test_a_snoozed_job_runs_no_more(store: Store, clock: Clock) -> None:
    add(store, clock.now)
    job = take_one(store, clock.now)
    store.settle("w1", [snooze(job, 60.0)], now=clock.now)
    assert store.is_idle(["default"], within_seconds=1, now=clock.now)


def test_a_job_at_a_gate_is_work(store: Store, clock: Clock) -> None:
    store.declare_gates({"g": Limits(max_running=1)}, now=clock.now)
    add(store, clock.now, gate="g")
    assert not store.is_idle(["default"], now=clock.now)


def test_held_jobs_and_paused_queues_are_no_work(store: Store, clock: Clock) -> None:
    held = add(store, clock.now)
    store.hold(held, now=clock.now)
    assert store.is_idle(["default"], now=clock.now)
    store.unhold(held, now=clock.now)
    add(store, clock.now, delay_seconds=1)
    store.pause("default", now=clock.now)
    assert store.is_idle(["default"], within_seconds=5, now=clock.now)
    store.resume("default", now=clock.now)
    assert not store.is_idle(["default"], now=clock.now)


def test_a_child_waits_for_its_parent_and_is_no_work_itself(store: Store, clock: Clock) -> None:
    parent = add(store, clock.now, queue="other")
    add(store, clock.now, parents=(parent,))
    assert store.is_idle(["default"], now=clock.now)


def test_bad_input_is_refused(store: Store, clock: Clock) -> None:
    with pytest.raises(InvalidName):
        store.is_idle([""], now=clock.now)
    with pytest.raises(InvalidInput):
        store.is_idle(["default"], within_seconds=-1, now=clock.now)
    with pytest.raises(TenantMismatch):
        store.for_tenant("acme").is_idle(["default"], now=clock.now)
