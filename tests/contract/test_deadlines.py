"""Deadlines: a job that was not started in time is skipped; `finish_by` is only looked at."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tenure.errors import InvalidInput, StoreFull, TenantMismatch
from tenure.rules.gates import Limits
from tenure.rules.job import State, Unique
from tenure.rules.lifecycle import EXPIRED, release, retry, succeed
from tenure.rules.limits import FAR_FUTURE
from tenure.rules.ticks import ScheduleTiming
from tenure.store import NewSchedule, Store
from tenure.store.jobs import claim
from tests.support.audit import check
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, add, expire, job, settle, take, take_one


def ended(store: Store, id: int) -> tuple[State, str | None, int]:
    seen = store.get(id)
    return seen.state, seen.reason, seen.attempts


SKIPPED = (State.SKIPPED, EXPIRED, 0)


def test_a_claim_skips_what_was_not_started_in_time_and_goes_on(
    store: Store, clock: Clock, plain: Plain
) -> None:
    late = [add(store, clock.now, start_within_seconds=10) for _ in range(3)]
    in_time = add(store, clock.now, start_within_seconds=11)
    plain_job = add(store, clock.now)
    clock.advance(11)
    assert [each.id for each in take(store, clock.now, 1)] == [in_time]
    assert [each.id for each in take(store, clock.now, 10)] == [plain_job]
    assert [ended(store, id) for id in late] == [SKIPPED] * 3
    check(plain)


def test_a_claim_that_meets_only_late_jobs_goes_on_at_once(store: Store, clock: Clock) -> None:
    late = [add(store, clock.now, start_within_seconds=1) for _ in range(5)]
    last = add(store, clock.now)
    assert take_one(store, clock.advance(2)).id == last
    assert {ended(store, id) for id in late} == {SKIPPED}


def test_a_time_is_as_good_as_seconds(store: Store, clock: Clock) -> None:
    at = clock.now + timedelta(seconds=5)
    first = add(store, clock.now, expires_at=at, finish_by=at)
    second = add(store, clock.now, start_within_seconds=5, finish_within_seconds=5)
    for id in (first, second):
        seen = store.get(id)
        assert (seen.start_by, seen.finish_by) == (at, at)
    [*page] = store.list_jobs().jobs
    assert {(each.start_by, each.finish_by) for each in page} == {(at, at)}


def test_seconds_count_from_the_due_time(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, delay_seconds=60, start_within_seconds=5, finish_within_seconds=9)
    seen = store.get(id)
    assert seen.start_by == clock.now + timedelta(seconds=65)
    assert seen.finish_by == clock.now + timedelta(seconds=69)
    store.promote(now=clock.advance(60))
    assert take_one(store, clock.advance(5)).id == id


def test_a_job_that_has_used_an_attempt_does_not_expire(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, start_within_seconds=5)
    settle(store, clock.now, retry(take_one(store, clock.now), ERROR, 0))
    assert store.expire(now=clock.advance(60)) == 0
    assert take_one(store, clock.now).id == id


def test_a_job_that_was_put_back_unstarted_does(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, start_within_seconds=5)
    settle(store, clock.now, release(take_one(store, clock.now)))
    assert take(store, clock.advance(60)) == []
    assert ended(store, id) == SKIPPED


def test_what_no_claim_meets_is_ended_by_upkeep(store: Store, clock: Clock, plain: Plain) -> None:
    """In each place where a job can stand. A running one goes on."""
    store.declare_gates({"g": Limits(max_running=1)}, now=clock.now)
    running = add(store, clock.now, start_within_seconds=10)
    claimed = take_one(store, clock.now, lease_seconds=600)
    parent = add(store, clock.now, queue="other")
    late = {
        "queued": add(store, clock.now, start_within_seconds=10),
        "gated": add(store, clock.now, start_within_seconds=10, gate="g"),
        "due": add(
            store, clock.now, expires_at=clock.now + timedelta(seconds=10), delay_seconds=99
        ),
        "waiting": add(store, clock.now, start_within_seconds=10, parents=(parent,)),
        "held": add(store, clock.now, start_within_seconds=10),
    }
    store.hold(late["held"], now=clock.now)
    later = add(store, clock.now, start_within_seconds=60)
    assert store.expire(now=clock.advance(10)) == 0, "it is not late at the very time"
    assert store.expire(now=clock.advance(1)) == len(late)
    for place, id in late.items():
        assert ended(store, id) == SKIPPED, place
    assert store.expire(now=clock.now) == 0
    assert store.get(later).state is State.QUEUED
    assert settle(store, clock.now, succeed(claimed))[0].landed
    assert store.get(running).state is State.SUCCEEDED
    check(plain)


def test_upkeep_walks_past_jobs_that_run(store: Store, clock: Clock) -> None:
    """However few it looks at in one transaction."""
    for _ in range(5):
        add(store, clock.now, start_within_seconds=1)
    assert len(take(store, clock.now, 5, lease_seconds=600)) == 5
    late = [add(store, clock.now, start_within_seconds=2) for _ in range(5)]
    assert store.expire(most=2, now=clock.advance(9)) == 5
    assert {ended(store, id) for id in late} == {SKIPPED}


@pytest.mark.parametrize("by_claim", [True, False])
def test_keys_children_and_gates_are_let_go(
    store: Store, clock: Clock, plain: Plain, by_claim: bool
) -> None:
    store.declare_gates({"g": Limits(max_running=1)}, now=clock.now)
    unique = Unique(key="k")
    id = add(store, clock.now, start_within_seconds=1, unique=unique, gate="g")
    child = add(store, clock.now, parents=(id,))
    clock.advance(2)
    if by_claim:
        assert take(store, clock.now) == []
    else:
        assert store.expire(now=clock.now) == 1
    assert ended(store, id) == SKIPPED
    assert ended(store, child) == (State.SKIPPED, "a parent did not succeed", 0)
    again = add(store, clock.now, unique=unique, gate="g")
    assert take_one(store, clock.now).id == again
    check(plain)


def test_if_the_end_cannot_be_written_the_job_is_not_handed_out_and_not_charged(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = add(store, clock.now, start_within_seconds=1)
    other = add(store, clock.now)
    clock.advance(2)

    async def full(*_: object, **__: object) -> None:
        raise StoreFull("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(claim, "_end", full)
        assert take_one(store, clock.now).id == other
    expire(store, clock)
    assert store.get(late).attempts == 0
    assert late not in [each.id for each in take(store, clock.now)]
    assert ended(store, late) == SKIPPED


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_deadlines_follow_a_job_that_is_moved_to_a_later_time(
    store: Store, clock: Clock, many: bool, held: bool
) -> None:
    """Seen failing: it was skipped before it was due."""
    ready = add(store, clock.now, start_within_seconds=60, finish_within_seconds=90)
    later = add(store, clock.now, start_within_seconds=60, delay_seconds=1800)
    plain_one = add(store, clock.now)
    ids = [ready, later, plain_one]
    if held:
        store.hold_many(ids, now=clock.now)

    def move(due_at: datetime) -> None:
        if many:
            store.move_many(ids, due_at=due_at, now=clock.now)
        for id in () if many else ids:
            store.move(id, due_at=due_at, now=clock.now)

    due_at = clock.advance(20) + timedelta(hours=1)
    move(due_at)
    expected = {
        ready: (due_at + timedelta(seconds=40), due_at + timedelta(seconds=70)),
        later: (due_at + timedelta(seconds=60), None),
        plain_one: (None, None),
    }
    assert {id: (store.get(id).start_by, store.get(id).finish_by) for id in ids} == expected
    assert store.expire(now=clock.advance(3600)) == 0
    move(clock.now - timedelta(seconds=1))
    assert {id: (store.get(id).start_by, store.get(id).finish_by) for id in ids} == expected


def test_no_deadline_moves_out_of_the_calendar(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, start_within_seconds=60)
    for _ in range(3):
        store.move(id, due_at=FAR_FUTURE, now=clock.now)
        store.move(id, due_at=clock.now, now=clock.now)
    assert store.get(id).start_by == FAR_FUTURE


def test_a_replay_has_all_the_time_to_start(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, start_within_seconds=1, finish_within_seconds=5)
    finish_by = store.get(id).finish_by
    store.expire(now=clock.advance(60))
    assert store.get(id).start_by is not None, "history shows it"
    assert store.replay(id, now=clock.now)
    seen = store.get(id)
    assert (seen.start_by, seen.finish_by) == (None, finish_by)
    assert take_one(store, clock.now).id == id


@pytest.mark.parametrize(("seconds", "met"), [(4, True), (5, True), (6, False)])
def test_finish_by_is_looked_at_and_nothing_else(
    store: Store, clock: Clock, seconds: float, met: bool
) -> None:
    id = add(store, clock.now, finish_within_seconds=5)
    claimed = take_one(store, clock.now)
    clock.advance(seconds)
    assert store.get(id).met_deadline is None
    assert store.expire(now=clock.now) == 0
    settle(store, clock.now, succeed(claimed))
    assert store.get(id).met_deadline is met
    assert ("; in time: by" if met else "; not in time: by") in store.why(id)


def test_a_job_that_did_not_succeed_has_not_met_its_deadline(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, finish_within_seconds=5)
    store.cancel(id, now=clock.now)
    assert store.get(id).met_deadline is False
    assert store.get(add(store, clock.now)).met_deadline is None


def test_why_tells_of_both(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, start_within_seconds=60, finish_within_seconds=120)
    said = store.why(id, now=clock.now)
    assert "it is skipped unless it starts by 2026-03-01 12:01:00 UTC" in said
    assert "it should finish: by 2026-03-01 12:02:00 UTC" in said
    store.expire(now=clock.advance(61))
    assert "(expired)" in store.why(id, now=clock.now)
    assert "unless" not in store.why(id, now=clock.now)


def test_a_schedule_gives_each_of_its_jobs_its_own_time(store: Store, clock: Clock) -> None:
    timing = ScheduleTiming(every_seconds=60.0)
    store.add_schedule(
        NewSchedule(name="s", timing=timing, job=job(start_within_seconds=7)), now=clock.now
    )
    store.fire(now=clock.advance(60))
    [fired] = store.list_jobs().jobs
    assert fired.start_by == fired.created_at + timedelta(seconds=7)
    at = clock.now
    for options in ({"expires_at": at}, {"finish_by": at}):
        with pytest.raises(InvalidInput, match="_within_seconds"):
            store.add_schedule(NewSchedule(name="t", timing=timing, job=job(**options)))


@pytest.mark.parametrize(
    "options",
    [
        {"expires_at": "tomorrow"},
        {"expires_at": datetime(2026, 1, 1)},  # noqa: DTZ001 - no zone
        {"start_within_seconds": -1},
        {"start_within_seconds": float("nan")},
        {"start_within_seconds": "5"},
        {"finish_by": 5},
        {"finish_within_seconds": -1},
    ],
)
def test_bad_deadlines_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        job(**options)


def test_one_of_both_forms(store: Store, clock: Clock) -> None:
    with pytest.raises(InvalidInput, match="expires_at or start_within_seconds, not both"):
        job(expires_at=clock.now, start_within_seconds=1)
    with pytest.raises(InvalidInput, match="finish_by or finish_within_seconds, not both"):
        job(finish_by=clock.now, finish_within_seconds=1)
    with pytest.raises(TenantMismatch):
        store.for_tenant("acme").expire()
    with pytest.raises(InvalidInput):
        store.expire(most=0)
