"""peek: what there is to do, and when. What an idle worker asks, again and again."""

from __future__ import annotations

import pytest

from tenure.errors import InvalidName, TenantMismatch
from tenure.store import Outlook, Store
from tests.support.stores import Clock
from tests.support.work import add, take, take_one

NOTHING = Outlook(ready=frozenset(), due_seconds=None, expired=False)


def test_there_is_nothing_to_do(store: Store, clock: Clock) -> None:
    assert store.peek(["default"], now=clock.now) == NOTHING


def test_queues_with_tickets_in_line_are_ready(store: Store, clock: Clock) -> None:
    for queue in ("a", "b", "b"):
        add(store, clock.now, queue=queue)
    assert store.peek(["a", "b", "c"], now=clock.now).ready == {"a", "b"}
    assert store.peek(["c"], now=clock.now) == NOTHING
    take(store, clock.now, queue="a")
    assert store.peek(["a", "b"], now=clock.now).ready == {"b"}


def test_every_priority_counts(store: Store, clock: Clock) -> None:
    for priority in (-100, 0, 100):
        add(store, clock.now, priority=priority)
        assert store.peek(["default"], now=clock.now).ready == {"default"}
        take_one(store, clock.now)
    assert not store.peek(["default"], now=clock.now).ready


def test_a_paused_queue_is_not_ready(store: Store, clock: Clock) -> None:
    add(store, clock.now)
    store.pause("default", now=clock.now)
    assert not store.peek(["default"], now=clock.now).ready
    store.resume("default", now=clock.now)
    assert store.peek(["default"], now=clock.now).ready == {"default"}


def test_a_suspect_is_ready_as_well(store: Store, clock: Clock) -> None:
    add(store, clock.now)
    take_one(store, clock.now, lease_seconds=10)
    store.sweep(now=clock.advance(11))
    assert store.peek(["default"], now=clock.now).ready == {"default"}


def test_it_tells_when_the_next_job_is_due_in_whatever_queue(store: Store, clock: Clock) -> None:
    for seconds in (90, 30, 60):
        add(store, clock.now, queue="elsewhere", delay_seconds=seconds)
    assert store.peek(["default"], now=clock.now).due_seconds == pytest.approx(30)
    assert store.peek(["default"], now=clock.advance(29.5)).due_seconds == pytest.approx(0.5)
    assert store.peek(["default"], now=clock.advance(1)).due_seconds == pytest.approx(-0.5)
    assert store.promote(now=clock.now) == 1
    assert store.peek(["default"], now=clock.now).due_seconds == pytest.approx(29.5)


def test_it_tells_of_a_lease_to_sweep(store: Store, clock: Clock) -> None:
    add(store, clock.now)
    take_one(store, clock.now, lease_seconds=10)
    assert not store.peek(["default"], now=clock.advance(9.5)).expired
    assert store.peek(["default"], now=clock.advance(1)).expired
    store.sweep(now=clock.now)
    assert not store.peek(["default"], now=clock.now).expired


def test_it_changes_nothing(store: Store, clock: Clock) -> None:
    add(store, clock.now)
    add(store, clock.now, delay_seconds=5)
    clock.advance(10)
    assert store.peek(["default"], now=clock.now) == store.peek(["default"], now=clock.now)
    assert store.promote(now=clock.now) == 1
    assert len(take(store, clock.now)) == 2


def test_it_concerns_all_tenants(store: Store) -> None:
    with pytest.raises(TenantMismatch):
        store.for_tenant("acme").peek(["default"])


def test_a_bad_name_is_refused(store: Store) -> None:
    with pytest.raises(InvalidName):
        store.peek(["no such name"])
