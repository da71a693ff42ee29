"""promote: jobs whose time has come stand in line, in order, under the same token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tenure.rules.job import State
from tenure.rules.lifecycle import retry, snooze
from tenure.store import Store
from tests.support.plain import Plain, Row
from tests.support.stores import Clock
from tests.support.work import ERROR, add, add_many, ids_of, run, take


def test_jobs_are_promoted_in_the_order_of_their_due_times(store: Store, clock: Clock) -> None:
    late, early, middle = (add(store, clock.now, delay_seconds=s) for s in (30, 10, 20))
    same = add(store, clock.now, delay_seconds=20)
    assert store.promote(now=clock.advance(60)) == 4
    assert ids_of(take(store, clock.now)) == [early, middle, same, late]


def test_a_job_is_due_at_its_time_and_not_before(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, due_at=clock.now + timedelta(seconds=10))
    assert store.promote(now=clock.advance(9.999_999)) == 0
    assert store.get(id, now=clock.now).state is State.SCHEDULED
    assert store.promote(now=clock.advance(0.000_001)) == 1
    promoted = store.get(id, now=clock.now)
    assert (promoted.state, promoted.due_at) == (State.QUEUED, None)
    assert promoted.queued_at == clock.now
    assert store.promote(now=clock.now) == 0


def test_the_token_stays(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, delay_seconds=1)
    store.promote(now=clock.advance(1))
    assert store.get(id).token == 1
    run(store, clock.now, lambda job: retry(job, ERROR, 1))
    store.promote(now=clock.advance(1))
    assert store.get(id).token == 2


def test_a_promoted_job_stands_at_the_end_of_its_line_with_its_priority(
    store: Store, clock: Clock
) -> None:
    urgent = add(store, clock.now, delay_seconds=1, priority=-1)
    delayed = add(store, clock.now, delay_seconds=1)
    waiting = add(store, clock.now)
    store.promote(now=clock.advance(1))
    later = add(store, clock.now)
    assert ids_of(take(store, clock.now)) == [urgent, waiting, delayed, later]


def test_a_promotion_goes_page_by_page(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 25, delay_seconds=1)
    clock.advance(1)
    assert [store.promote(most=10, now=clock.now) for _ in range(4)] == [10, 10, 5, 0]
    assert ids_of(take(store, clock.now)) == ids


def test_tickets_written_meanwhile_keep_their_own_positions(store: Store, clock: Clock) -> None:
    """Permits only grow, whatever a promotion needed of them."""
    delayed = add_many(store, clock.now, 3, delay_seconds=1)
    store.promote(most=2, now=clock.advance(1))
    fresh = add(store, clock.now)
    store.promote(most=2, now=clock.now)
    assert ids_of(take(store, clock.now)) == [delayed[0], delayed[1], fresh, delayed[2]]


def test_a_job_cancelled_while_scheduled_is_not_promoted(
    store: Store, plain: Plain, clock: Clock
) -> None:
    id = add(store, clock.now, delay_seconds=1)
    assert store.cancel(id, now=clock.now) is State.CANCELLED
    assert plain.table("due") == []
    assert store.promote(now=clock.advance(1)) == 0


def test_a_job_moved_while_scheduled_is_promoted_at_its_new_time(
    store: Store, clock: Clock
) -> None:
    id = add(store, clock.now, delay_seconds=10)
    new_due = clock.now + timedelta(seconds=100)
    assert store.move(id, due_at=new_due, queue="other", now=clock.now)
    assert (store.get(id).due_at, store.get(id).token) == (new_due, 2)
    assert store.promote(now=clock.advance(99)) == 0
    assert store.promote(now=clock.advance(1)) == 1
    assert ids_of(take(store, clock.now, queue="other")) == [id]


def test_a_scheduled_job_may_be_moved_to_now(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, delay_seconds=3600)
    assert store.move(id, due_at=clock.now, now=clock.now)
    assert ids_of(take(store, clock.now)) == [id]


def test_a_job_held_while_scheduled_is_not_promoted(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, delay_seconds=10)
    assert store.hold(id, now=clock.now)
    assert store.promote(now=clock.advance(20)) == 0
    assert store.unhold(id, now=clock.now)
    assert ids_of(take(store, clock.now)) == [id]


def test_a_job_let_go_before_its_time_is_scheduled_again(store: Store, clock: Clock) -> None:
    due = clock.now + timedelta(seconds=10)
    id = add(store, clock.now, due_at=due)
    store.hold(id, now=clock.now)
    store.unhold(id, now=clock.advance(1))
    assert (store.get(id).state, store.get(id).due_at) == (State.SCHEDULED, due)
    assert store.promote(now=clock.advance(9)) == 1


def test_a_void_due_ticket_is_dropped(store: Store, plain: Plain, clock: Clock) -> None:
    id = add(store, clock.now, delay_seconds=1)
    run_at = plain.one("select due_at from tenure.due")
    plain.rows("insert into tenure.due (due_at, job_id, token) values (?, ?, ?)", run_at, 4711, 1)
    promoted = store.promote(now=clock.advance(1)) + store.promote(now=clock.now)
    assert promoted == 1
    assert plain.table("due") == []
    assert ids_of(take(store, clock.now)) == [id]


def test_a_retry_changes_state_due_time_and_ticket_together(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """At any time the job has one ticket: in `due` while it waits, in `ready` once it is due."""

    def tickets() -> list[list[Row]]:
        return [plain.table(name, ("job_id", "token")) for name in ("ready", "due")]

    id = add(store, clock.now)
    waiting = run(store, clock.now, lambda job: retry(job, ERROR, 10))
    assert (waiting.state, waiting.due_at) == (State.SCHEDULED, clock.now + timedelta(seconds=10))
    assert tickets() == [[], [(id, 2)]]
    assert take(store, clock.advance(10)) == []
    assert store.promote(now=clock.now) == 1
    assert tickets() == [[(id, 2)], []]
    assert ids_of(take(store, clock.now)) == [id]
    assert tickets() == [[], []]


def test_a_snoozed_job_comes_back_when_it_is_due(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    snoozed = run(store, clock.now, lambda job: snooze(job, 0.5))
    assert snoozed.due_at == clock.now + timedelta(seconds=0.5)
    store.promote(now=clock.advance(0.5))
    assert ids_of(take(store, clock.now)) == [id]


@pytest.mark.parametrize(
    "due", [datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC), datetime(2017, 1, 1, tzinfo=UTC)]
)
def test_a_job_is_due_at_the_far_side_of_a_leap(store: Store, due: datetime) -> None:
    """Of 32 bits, and of a second that no clock of a database has."""
    before = due - timedelta(seconds=2)
    id = add(store, before, due_at=due)
    after = add(store, before, delay_seconds=2.0**31)
    store.promote(now=due - timedelta(seconds=1))
    assert take(store, due - timedelta(seconds=1)) == []
    store.promote(now=due)
    assert ids_of(take(store, due)) == [id]
    assert store.get(after).due_at == before + timedelta(seconds=2**31)
    later = before + timedelta(seconds=2**31)
    store.promote(now=later)
    assert after in ids_of(take(store, later))
