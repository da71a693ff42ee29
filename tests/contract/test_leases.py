"""Leases: pushed out by heartbeats, refused after expiry, and swept by anybody."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.errors import InvalidInput
from tenure.rules.codec import encode
from tenure.rules.job import Beat, State
from tenure.rules.lifecycle import release, succeed
from tenure.store import LANDED, Store, Swept
from tests.support.plain import Plain
from tests.support.rules import rule
from tests.support.stores import Clock, open_face
from tests.support.work import add, add_many, ids_of, settle, take, take_one


def test_a_heartbeat_pushes_the_deadline_out(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    lease_id = take_one(store, clock.now).lease_id
    beat = store.extend("w1", {lease_id: []}, lease_seconds=30, now=clock.advance(20))
    assert beat == Beat((), ())
    assert store.get(id, now=clock.now).expires_at == clock.now + timedelta(seconds=30)
    assert store.sweep(now=clock.advance(29)) == Swept()
    assert store.sweep(now=clock.advance(1)).requeued == 1


@rule("never-shorter")
def test_a_heartbeat_never_shortens_a_lease(store: Store, clock: Clock) -> None:
    """Seen failing with each deadline set anew: a lease of ten minutes had half a minute left."""
    id = add(store, clock.now)
    claimed = take_one(store, clock.now, lease_seconds=600)
    deadline = clock.now + timedelta(seconds=600)
    assert store.extend("w1", {claimed.lease_id: [id]}, now=clock.advance(20)).lost == ()
    assert store.get(id, now=clock.now).expires_at == deadline
    assert store.sweep(now=clock.advance(570)) == Swept()
    store.extend("w1", {claimed.lease_id: [id]}, now=clock.now)
    assert store.get(id, now=clock.now).expires_at == clock.now + timedelta(seconds=30)
    assert store.sweep(now=clock.advance(29)) == Swept()
    assert store.sweep(now=clock.advance(1)).requeued == 1


@rule("late-heartbeat")
def test_an_expired_lease_is_lost_even_before_anybody_swept_it(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """Seen failing with the deadline taken out of `extend`: the lease lived on."""
    add(store, clock.now)
    lease_id = take_one(store, clock.now).lease_id
    clock.advance(30)
    before = plain.everything()
    assert store.extend("w1", {lease_id: []}, now=clock.now) == Beat((lease_id,), ())
    assert plain.everything() == before


def test_a_lease_is_held_until_the_last_moment(store: Store, clock: Clock) -> None:
    add(store, clock.now)
    lease_id = take_one(store, clock.now).lease_id
    assert store.sweep(now=clock.advance(29.999_999)) == Swept()
    assert store.extend("w1", {lease_id: []}, now=clock.now).lost == ()


def test_a_heartbeat_tells_which_leases_are_lost_and_which_jobs_must_stop(
    store: Store, clock: Clock
) -> None:
    add_many(store, clock.now, 3)
    [lease] = store.claim("w1", {"default": 3}, now=clock.now)
    other = take_one(store, clock.now, worker="w2") if add(store, clock.now) else None
    assert other is not None
    asked = lease.jobs[1]
    for id in (asked.id, other.id):
        assert store.cancel(id, now=clock.now) is State.RUNNING
    beat = store.extend("w1", {lease.id: [], 999: []}, now=clock.advance(5))
    assert beat == Beat((999,), ((asked.id, asked.token),))


def test_a_heartbeat_without_leases_says_nothing(store: Store, clock: Clock) -> None:
    assert store.extend("w1", {}, now=clock.now) == Beat((), ())


def test_settling_after_the_deadline_but_before_a_sweep_lands(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 2)
    first, second = take(store, clock.now)
    clock.advance(3600)
    assert settle(store, clock.now, succeed(first), release(second)) == [LANDED, LANDED]


# Sweeps.


def test_a_sweep_puts_the_job_back_as_it_was(store: Store, clock: Clock) -> None:
    id = add(
        store, clock.now, queue="q", priority=-3, args=encode({"n": 1}), metadata=encode([2]),
        timeout_seconds=7, tenant="t",
    )  # fmt: skip
    before = store.get(id, now=clock.now)
    take_one(store, clock.now, queue="q")
    assert store.sweep(now=clock.advance(30)) == Swept(requeued=1)
    after = store.get(id, now=clock.now)
    assert (after.state, after.token, after.reason) == (State.QUEUED, 2, "lease lost")
    assert (after.attempts, after.crashes) == (1, 1)
    for name in ("queue", "priority", "args", "metadata", "timeout_seconds", "tenant"):
        assert getattr(after, name) == getattr(before, name)


@rule("charge-started")
def test_a_job_alone_on_its_lease_is_charged(store: Store, clock: Clock) -> None:
    """It may have killed its worker before the first heartbeat.

    Seen failing with only reported jobs charged: a job that kills its worker at once came back for
    ever.
    """
    id = add(store, clock.now, max_attempts=2)
    for attempts in (1, 2):
        take_one(store, clock.now)
        store.sweep(now=clock.advance(30))
        assert store.get(id).attempts == attempts
    failed = store.get(id)
    assert (failed.state, failed.reason, failed.crashes) == (State.FAILED, "lease lost", 2)
    assert failed.worker == "w1"
    assert "LeaseLost" in (failed.error_json or "")


@rule("charge-started")
def test_of_a_block_only_the_started_jobs_are_charged(store: Store, clock: Clock) -> None:
    """Seen failing with each job of the block charged: a job failed that had never run; and with
    the reports ignored: the job that had started was not charged."""
    started, innocent, settled = add_many(store, clock.now, 3, max_attempts=1)
    [lease] = store.claim("w1", {"default": 3}, now=clock.now)
    store.extend("w1", {lease.id: [started]}, now=clock.advance(1))
    store.extend("w1", {lease.id: []}, now=clock.advance(1))  # says nothing new
    store.settle("w1", [succeed(lease.jobs[2])], now=clock.now)
    assert store.sweep(now=clock.advance(30)) == Swept(requeued=1, finished=1)
    assert store.get(started).state is State.FAILED
    back = store.get(innocent)
    assert (back.state, back.attempts, back.crashes) == (State.QUEUED, 0, 1)
    assert store.get(settled).state is State.SUCCEEDED


def test_an_innocent_job_never_fails_without_having_run(store: Store, clock: Clock) -> None:
    """Whatever its neighbours do; once it is tried alone, a crash is its own."""
    poison, innocent = add_many(store, clock.now, 2, max_attempts=2)
    take(store, clock.now)
    store.sweep(now=clock.advance(30))
    first, second = (take(store, clock.now, worker=worker) for worker in ("w2", "w3"))
    assert [ids_of(first), ids_of(second)] == [[poison], [innocent]]
    settle(store, clock.now, succeed(second[0]), worker="w3")
    store.sweep(now=clock.advance(30))
    assert (store.get(poison).attempts, store.get(poison).crashes) == (1, 2)
    assert store.get(innocent).state is State.SUCCEEDED


def test_a_held_job_stays_held_through_a_sweep(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    take_one(store, clock.now)
    assert store.hold(id, now=clock.now)
    store.sweep(now=clock.advance(30))
    assert (store.get(id).state, store.get(id).held) == (State.QUEUED, True)
    assert take(store, clock.now) == []
    store.unhold(id, now=clock.now)
    assert ids_of(take(store, clock.now)) == [id]


@rule("flagged-sweep")
def test_a_job_whose_cancellation_is_requested_is_cancelled_by_a_sweep(
    store: Store, clock: Clock
) -> None:
    """Seen failing with the request ignored: the cancelled job was queued for another worker."""
    id = add(store, clock.now)
    take_one(store, clock.now)
    store.cancel(id, now=clock.now)
    assert store.sweep(now=clock.advance(30)) == Swept(finished=1)
    assert (store.get(id).state, store.get(id).crashes) == (State.CANCELLED, 1)


def test_a_sweep_goes_page_by_page_oldest_deadline_first(
    store: Store, plain: Plain, clock: Clock
) -> None:
    ids = add_many(store, clock.now, 5)
    for n in range(5):
        take_one(store, clock.now, lease_seconds=20 - n)
    clock.advance(60)
    assert store.sweep(most=2, now=clock.now) == Swept(requeued=2, more=True)
    back = {job.id for job in store.list_jobs(states=[State.QUEUED]).jobs}
    assert back == set(ids[3:])
    assert store.sweep(most=2, now=clock.now) == Swept(requeued=2, more=True)
    assert store.sweep(most=2, now=clock.now) == Swept(requeued=1)
    assert store.sweep(most=2, now=clock.now) == Swept()
    assert plain.one("select count(*) from tenure.lease") == 0


def test_an_expired_lease_without_live_jobs_is_cleared_away(
    store: Store, plain: Plain, clock: Clock
) -> None:
    add(store, clock.now)
    store.settle("w1", [succeed(take_one(store, clock.now))], done_leases=(), now=clock.now)
    assert plain.one("select count(*) from tenure.lease") == 1
    assert store.sweep(now=clock.advance(30)) == Swept()
    assert plain.one("select count(*) from tenure.lease") == 0


@pytest.mark.parametrize("most", [0, -1, 10_001])
def test_a_page_has_bounds(store: Store, most: int) -> None:
    with pytest.raises(InvalidInput):
        store.sweep(most=most)
    with pytest.raises(InvalidInput):
        store.promote(most=most)


def test_claims_and_heartbeats_measure_a_lease_alike(store: Store, clock: Clock) -> None:
    """The default is the same length, counted from the moment of the call."""
    add(store, clock.now)
    [lease] = store.claim("w1", {"default": 1}, now=clock.now)
    length = lease.expires_at - clock.now
    store.extend("w1", {lease.id: []}, now=clock.advance(17))
    assert store.get(lease.jobs[0].id).expires_at == clock.now + length


def test_a_store_that_was_just_opened_sweeps_no_live_lease(
    store: Store, style: str, store_url: str, plain: Plain, clock: Clock
) -> None:
    """A new process judges by the deadlines in the tables; nothing is reset at its start."""
    add_many(store, clock.now, 3)
    take(store, clock.now)
    before = plain.everything()
    newcomer = open_face(style, store_url)
    try:
        assert newcomer.sweep(now=clock.now) == Swept()
        assert newcomer.promote(now=clock.now) == 0
    finally:
        newcomer.close()
    assert plain.everything() == before


def test_a_lease_of_another_boot_has_expired(
    store: Store, style: str, store_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not style.startswith("sqlite"):
        pytest.skip("PostgreSQL judges leases by its own clock")
    id = add(store, clock.now)
    claimed = take_one(store, clock.now, lease_seconds=1e6)
    monkeypatch.setattr("tenure.store.sqlite.session.boot_id", lambda: "another boot")
    after_boot = open_face(style, store_url)
    try:
        lost = after_boot.extend("w1", {claimed.lease_id: []}, now=clock.now).lost
        assert lost == (claimed.lease_id,)
        assert after_boot.sweep(now=clock.now) == Swept(requeued=1)
        assert after_boot.get(id).state is State.QUEUED
    finally:
        after_boot.close()


def test_a_lone_job_that_was_claimed_ahead_is_not_charged_for_the_death_of_its_worker(
    store: Store, clock: Clock
) -> None:
    id = add(store, clock.now, max_attempts=1)
    [lease] = store.claim("w1", {"default": 1}, ahead=True, now=clock.now)
    store.extend("w1", {lease.id: []}, now=clock.now)
    assert store.sweep(now=clock.advance(30)) == Swept(requeued=1)
    job = store.get(id, now=clock.now)
    assert (job.state, job.attempts, job.crashes) == (State.QUEUED, 0, 1)

    # A suspect is run at once, whatever the worker says: now it is charged.
    store.claim("w1", {"default": 1}, ahead=True, now=clock.now)
    assert store.sweep(now=clock.advance(30)) == Swept(finished=1)
    assert store.get(id, now=clock.now).state is State.FAILED


def test_a_job_that_was_claimed_ahead_and_reported_started_is_charged(
    store: Store, clock: Clock
) -> None:
    id = add(store, clock.now)
    [lease] = store.claim("w1", {"default": 1}, ahead=True, now=clock.now)
    store.extend("w1", {lease.id: [id]}, now=clock.now)
    store.sweep(now=clock.advance(30))
    assert store.get(id, now=clock.now).attempts == 1
