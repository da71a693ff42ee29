"""What the databases do for each step of a job's life, and for a worker that drains a queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.rules.claim import Lease
from tenure.store import Store
from tenure.store.postgres import notify
from tests.guard import scenes
from tests.guard.budgets import check, check_cheapest
from tests.guard.counts import Counts, Meter, count_growth
from tests.guard.places import Place

TIMES = 8


def enqueue_bulk(store: Store, meter: Meter) -> Counts:
    """Of 1,000 jobs."""
    return meter.count(lambda: scenes.fill(store, TIMES * scenes.CHUNK)).per(TIMES)


def enqueue_one(store: Store, meter: Meter) -> Counts:
    scenes.fill(store, 1)  # workers are told of this one

    def work() -> None:
        for _ in range(scenes.TIMES):
            scenes.fill(store, 1)

    return meter.count(work).per(scenes.TIMES)


def claim(store: Store, meter: Meter) -> Counts:
    """Of 500 jobs, with as many left in line at the end."""
    scenes.fill(store, 2 * TIMES * scenes.BLOCK)
    taken: list[list[Lease]] = []
    counts = meter.count(lambda: taken.extend(scenes.claim(store) for _ in range(TIMES)))
    assert sum(len(lease.jobs) for leases in taken for lease in leases) == TIMES * scenes.BLOCK
    return counts.per(TIMES)


def settle(store: Store, meter: Meter) -> Counts:
    """Of 500 jobs."""
    scenes.fill(store, TIMES * scenes.BLOCK)
    taken = [scenes.claim(store) for _ in range(TIMES)]

    def work() -> None:
        for leases in taken:
            scenes.settle(store, leases)

    return meter.count(work).per(TIMES)


def claim_nothing(store: Store, meter: Meter) -> Counts:
    def work() -> None:
        for _ in range(TIMES):
            assert not scenes.claim(store)

    return meter.count(work).per(TIMES)


def peek(store: Store, meter: Meter) -> Counts:
    """With nothing to do."""
    store.peek([scenes.QUEUE])

    def work() -> None:
        for _ in range(scenes.TIMES):
            assert not store.peek([scenes.QUEUE]).ready

    return meter.count(work).per(scenes.TIMES)


def heartbeat(store: Store, meter: Meter) -> Counts:
    """For one lease of 500 jobs."""
    scenes.fill(store, scenes.BLOCK)
    leases = scenes.claim(store)

    def work() -> None:
        for _ in range(TIMES):
            scenes.beat(store, leases)

    return meter.count(work).per(TIMES)


STEPS = (enqueue_bulk, enqueue_one, claim, settle, claim_nothing, peek, heartbeat)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_costs_what_it_may(
    place: Place, step: Callable[[Store, Meter], Counts], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Notifications go by the clock, one in 5 ms, and what goes by the clock cannot be counted.
    monkeypatch.setattr(notify, "CALM_SECONDS", 3600.0)
    with place.store() as (store, meter):
        check(f"{place.name}.{step.__name__}", step(store, meter))


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_worker_that_drains_a_queue_costs_what_it_may(place: Place, kind: scenes.Kind) -> None:
    """Per job."""
    check_cheapest(
        f"{place.name}.drain.{kind}",
        lambda: count_growth(lambda jobs: place.drain(kind, jobs), 2_000, 8_000),
    )


@pytest.mark.slow
def test_a_minute_of_an_idle_worker_costs_what_it_may(place: Place) -> None:
    """Looks, and signs of life."""
    check_cheapest(f"{place.name}.idle_minute", lambda: place.idle(1.25) - place.idle(0.25))
