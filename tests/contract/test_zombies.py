"""A zombie cannot do anything.

Each write of a worker that lost its lease must change nothing in any table and be refused as stale.
The writes are enumerated, so that a new one without a zombie test fails here. How a zombie settles
in a caller's transaction is shown in tests/borrowing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tenure.errors import LeaseLost
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.job import NewStep
from tenure.rules.lifecycle import Outcome
from tenure.store import Store
from tests.support.flows import added, more
from tests.support.plain import Plain
from tests.support.rules import rule
from tests.support.stores import Clock
from tests.support.work import running, take_one
from tests.support.zombies import (
    FINISHED,
    RUNNING,
    SETTLEMENTS,
    Presented,
    Raise,
    old_token_under_its_own_new_lease,
)

zombies = pytest.mark.parametrize("zombie", RUNNING, ids=lambda make: make.__name__)
all_zombies = pytest.mark.parametrize("zombie", RUNNING + FINISHED, ids=lambda make: make.__name__)


@pytest.fixture
def mended(plain: Plain) -> Iterator[None]:
    """Jobs whose lease row a test has deleted are removed before the audit."""
    yield
    plain.wipe()


@rule("lease-must-exist", "token-guard")
@all_zombies
@pytest.mark.usefixtures("mended")
def test_a_zombie_settles_nothing(store: Store, clock: Clock, plain: Plain, zombie: Raise) -> None:
    """Whatever a zombie says about how its attempt ended is refused and changes no row.

    Seen failing with the lease taken out of the guard: without its lease row the success (or the
    retry) landed; and with the token taken out of the guard: the old attempt settled the new one.
    """
    worker, presented = zombie(store, clock, plain, running)
    before = plain.everything()
    for outcome in Outcome:
        settlement = SETTLEMENTS[outcome](presented)
        answers = store.settle(
            worker, [settlement], done_leases=[presented.lease_id], now=clock.now
        )
        assert [(outcome, answer.stale) for answer in answers] == [(outcome, True)]
        assert (outcome, plain.everything()) == (outcome, before)


@zombies
@pytest.mark.usefixtures("mended")
def test_a_zombie_reports_no_progress(
    store: Store, clock: Clock, plain: Plain, zombie: Raise
) -> None:
    worker, presented = zombie(store, clock, plain, running)
    before = plain.everything()
    [answer] = store.report_progress(worker, [(presented, 0.5, "half")], now=clock.now)
    assert answer.stale
    assert plain.everything() == before


@zombies
@pytest.mark.usefixtures("mended")
def test_a_zombie_saves_no_checkpoint(
    store: Store, clock: Clock, plain: Plain, zombie: Raise
) -> None:
    worker, presented = zombie(store, clock, plain, running)
    before = plain.everything()
    assert store.save_checkpoint(worker, presented, encode({"at": 1}), now=clock.now).stale
    assert plain.everything() == before


@rule("note-fence")
@zombies
@pytest.mark.usefixtures("mended")
def test_a_zombie_annotates_nothing(
    store: Store, clock: Clock, plain: Plain, zombie: Raise
) -> None:
    """Seen failing with the look at token and lease taken out: the job had the notes of an attempt
    that had been swept."""
    worker, presented = zombie(store, clock, plain, running)
    before = plain.everything()
    [answer] = store.annotate(worker, [(presented, {"loss": 0.5})], now=clock.now)
    assert answer.stale
    assert plain.everything() == before


def running_once(store: Store, now: datetime, *, worker: str, **options: Any) -> Claimed:
    """A running job that starts at most once, and has not started."""
    return running(store, now, worker=worker, at_most_once=True, **options)


@rule("once-fence")
@zombies
@pytest.mark.usefixtures("mended")
def test_a_zombie_starts_no_job_that_starts_at_most_once(
    store: Store, clock: Clock, plain: Plain, zombie: Raise
) -> None:
    """Seen failing with the look at the lease's worker taken out: two workers started the job."""
    worker, presented = zombie(store, clock, plain, running_once)
    before = plain.everything()
    assert store.start_once(worker, presented, now=clock.now).stale
    assert plain.everything() == before


@rule("step-fence")
@zombies
@pytest.mark.usefixtures("mended")
def test_a_zombie_records_no_step(store: Store, clock: Clock, plain: Plain, zombie: Raise) -> None:
    """Seen failing with the look at token and lease taken out: the successor got a step that a
    zombie had written."""
    worker, presented = zombie(store, clock, plain, running)
    before = plain.everything()
    step = NewStep("charge", "charge", encode({"at": 1}))
    assert store.record_step(worker, presented, step, now=clock.now).stale
    assert plain.everything() == before


def running_node(store: Store, now: datetime, *, worker: str, **_: Any) -> Claimed:
    """A running job that is the only node of a workflow."""
    added(store, now, {"first": ()})
    return take_one(store, now, worker=worker)


@rule("grow-fence")
@zombies
@pytest.mark.usefixtures("mended")
def test_a_zombie_adds_nothing_to_its_workflow(
    store: Store, clock: Clock, plain: Plain, zombie: Raise
) -> None:
    """Seen failing with the look at token and lease taken out: the workflow had the nodes of an
    attempt that had been swept, beside those of its successor."""
    worker, presented = zombie(store, clock, plain, running_node)
    before = plain.everything()
    with pytest.raises(LeaseLost):
        store.grow_workflow(worker, presented, [more("second")], now=clock.now)
    assert plain.everything() == before


@zombies
@pytest.mark.usefixtures("mended")
def test_a_zombie_extends_no_lease(store: Store, clock: Clock, plain: Plain, zombie: Raise) -> None:
    """A heartbeat names a lease. One that is gone, or another worker's, is reported as lost."""
    worker, presented = zombie(store, clock, plain, running)
    lease = presented.lease_id - (zombie is old_token_under_its_own_new_lease)  # the one it had
    before = plain.everything()
    beat = store.extend(worker, {lease: [presented.id]}, now=clock.advance(1))
    assert (beat.lost, beat.cancelled) == ((lease,), ())
    assert plain.everything() == before


def test_every_outcome_has_a_zombie_test() -> None:
    """The table of settlements covers the enumeration, and each makes the outcome it stands for."""
    presented = Presented(1, 1, 1)
    assert {make(presented).outcome: outcome for outcome, make in SETTLEMENTS.items()} == {
        outcome: outcome for outcome in Outcome
    }


def test_every_worker_write_has_a_zombie_test() -> None:
    """The operations that present a worker's name are those above; claim, which has no lease yet;
    retire, which touches no job; and held, which only looks. A new one needs its zombie test."""
    writes = {
        name
        for name, method in inspect.getmembers(Store, inspect.isfunction)
        if "worker" in inspect.signature(method).parameters
    }
    assert writes == {
        "claim", "held", "retire", "settle", "extend", "report_progress", "save_checkpoint",
        "record_step", "annotate", "start_once", "grow_workflow",
    }  # fmt: skip
