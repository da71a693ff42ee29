"""Time: an explicit `now` drives everything; without one, the database's clock does."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest

from tenure.errors import OutOfRange
from tenure.rules.job import State, Unique, Until
from tenure.rules.lifecycle import snooze, succeed
from tenure.store import Store, Swept, open_store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import add, job, settle, take, take_one


def test_a_now_without_a_time_zone_is_refused_everywhere(
    store: Store, plain: Plain, clock: Clock
) -> None:
    id = add(store, clock.now)
    claimed = take_one(store, clock.now)
    before = plain.everything()
    naive = clock.now.replace(tzinfo=None)
    calls: list[Callable[[], object]] = [
        lambda: store.enqueue([job()], now=naive),
        lambda: store.claim("w1", {"default": 1}, now=naive),
        lambda: store.extend("w1", {claimed.lease_id: []}, now=naive),
        lambda: store.settle("w1", [succeed(claimed)], now=naive),
        lambda: store.report_progress("w1", [(claimed, 0.5, None)], now=naive),
        lambda: store.promote(now=naive),
        lambda: store.sweep(now=naive),
        lambda: store.cancel(id, now=naive),
        lambda: store.hold(id, now=naive),
        lambda: store.move(id, priority=1, now=naive),
        lambda: store.pause("default", now=naive),
        lambda: store.prune(now=naive),
        lambda: store.get(id, now=naive),
        lambda: store.list_jobs(now=naive),
        lambda: store.oldest_ready(now=naive),
    ]
    for call in calls:
        with pytest.raises(OutOfRange, match="time zone"):
            call()
    assert plain.everything() == before


def test_a_now_of_another_time_zone_is_the_same_moment(store: Store, clock: Clock) -> None:
    elsewhere = clock.now.astimezone(timezone(timedelta(hours=-9, minutes=-30)))
    id = add(store, elsewhere)
    assert store.get(id).created_at == clock.now
    assert store.get(id).created_at.utcoffset() == timedelta(0)


def test_an_explicit_now_drives_everything(store: Store, plain: Plain) -> None:
    """A day in the life of a job, in another century: no clock but the given one is read."""
    now = datetime(2101, 7, 1, tzinfo=UTC)
    unique = Unique(key="k", until=Until.PERIOD, period_seconds=3600)
    id = add(store, now, delay_seconds=60, unique=unique)
    assert store.promote(now=now + timedelta(seconds=59)) == 0
    assert store.promote(now=now + timedelta(seconds=60)) == 1
    claimed_at = now + timedelta(seconds=70)
    claimed = take_one(store, claimed_at)
    assert (
        store.extend("w1", {claimed.lease_id: []}, now=claimed_at + timedelta(seconds=5)).lost == ()
    )
    assert store.sweep(now=claimed_at + timedelta(seconds=34)) == Swept()
    settle(store, claimed_at + timedelta(seconds=34), snooze(claimed, 10))
    assert store.get(id).due_at == claimed_at + timedelta(seconds=44)
    store.promote(now=claimed_at + timedelta(seconds=44))
    claimed = take_one(store, claimed_at + timedelta(seconds=50))
    finished_at = claimed_at + timedelta(seconds=51)
    settle(store, finished_at, succeed(claimed))
    done = store.get(id)
    assert (done.created_at, done.finished_at) == (now, finished_at)
    assert not store.enqueue([job(unique=unique)], now=finished_at)[0].created
    assert store.prune(now=finished_at + timedelta(days=8)) == 1
    assert plain.table("unique_key") == []


def test_the_clock_of_the_database_is_the_default(store: Store) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)
    [answer] = store.enqueue([job()])
    [lease] = store.claim("w1", {"default": 1}, lease_seconds=60)
    store.settle("w1", [succeed(lease.jobs[0])])
    after = datetime.now(UTC) + timedelta(seconds=2)
    done = store.get(answer.id)
    assert done.claimed_at is not None
    assert done.finished_at is not None
    times = [before, done.created_at, done.claimed_at, done.finished_at, after]
    assert all(first <= second for first, second in pairwise(times))
    assert lease.expires_at - lease.claimed_at == timedelta(seconds=60)


def test_times_are_kept_to_the_microsecond(store: Store) -> None:
    now = datetime(2026, 3, 1, 12, 0, 0, 123_457, tzinfo=UTC)
    due = datetime(2026, 3, 1, 12, 0, 1, 999_999, tzinfo=UTC)
    stored = store.get(add(store, now, due_at=due))
    assert (stored.created_at, stored.due_at) == (now, due)


def test_the_far_ends_of_time_are_kept(store: Store, clock: Clock) -> None:
    far = datetime(9000, 1, 1, tzinfo=UTC)
    assert store.get(add(store, clock.now, due_at=far)).due_at == far
    hundred_years = 100 * 366 * 86_400.0
    stored = store.get(add(store, clock.now, delay_seconds=hundred_years))
    assert stored.due_at == clock.now + timedelta(seconds=hundred_years)


@pytest.mark.parametrize("jump_seconds", [-1e6, 1e6])
def test_a_jump_of_the_wall_clock_touches_no_lease(
    store: Store, style: str, monkeypatch: pytest.MonkeyPatch, jump_seconds: float
) -> None:
    if not style.startswith("sqlite"):
        pytest.skip("PostgreSQL judges leases by its own clock")
    real = time.time_ns
    [answer] = store.enqueue([job()])
    [lease] = store.claim("w1", {"default": 1}, lease_seconds=3600)
    monkeypatch.setattr(time, "time_ns", lambda: real() + int(jump_seconds * 1e9))
    assert store.sweep() == Swept()
    assert store.extend("w1", {lease.id: []}, lease_seconds=3600).lost == ()
    assert store.get(answer.id).state is State.RUNNING
    assert take(store, datetime.now(UTC)) == []
    monkeypatch.setattr(time, "time_ns", real)
    assert store.sweep() == Swept()


def test_on_postgres_times_come_from_the_clock_of_the_server(pg: Store, pg_plain: Plain) -> None:
    """No client's clock is read, so a host whose clock is wrong shortens no lease."""
    server_clock = "select clock_timestamp()"
    before = pg_plain.one(server_clock)
    now, later = pg.enqueue([job(), job(delay_seconds=3600)])
    [lease] = pg.claim("w1", {"default": 1}, lease_seconds=60)
    after = pg_plain.one(server_clock)
    assert before <= pg.get(now.id).created_at <= lease.claimed_at <= after
    assert lease.expires_at - lease.claimed_at == timedelta(seconds=60)
    due = pg.get(later.id).due_at
    assert due is not None
    assert before <= due - timedelta(hours=1) <= after


def test_a_session_in_another_time_zone_changes_nothing(pg_migrated_url: str, clock: Clock) -> None:
    """Due times and deadlines are moments; the zone of the session is the user's business."""
    zone = "&options=-c%20timezone%3DAsia/Kolkata"
    with open_store(pg_migrated_url + zone) as store:
        id = add(store, clock.now, delay_seconds=10)
        assert store.promote(now=clock.advance(9.9)) == 0
        assert store.promote(now=clock.advance(0.1)) == 1
        take_one(store, clock.now)
        assert store.get(id).claimed_at == clock.now
        assert store.sweep(now=clock.advance(29.9)) == Swept()
        assert store.sweep(now=clock.advance(0.1)) == Swept(requeued=1)
