"""Statistics: what processes have counted is written once, added up, and read for any time."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tenure.errors import InvalidInput, TenantMismatch
from tenure.rules.gates import Limits
from tenure.rules.graph import NewNode, NewWorkflow
from tenure.rules.lifecycle import fail, retry, succeed
from tenure.rules.statistics import BUCKETS, Counted, Statistics
from tenure.store import Store
from tests.support.counting import counted
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, TASK, add, add_many, expire, job, settle, take, take_one

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def one(outcome: str = "succeeded", wait: float = 0.2, run: float = 2.0) -> list[Counted]:
    return counted(("default", TASK, outcome, wait, run))


def totals(store: Store, clock: Clock, hours: float = 24.0) -> dict[str, int]:
    """The counts by outcome."""
    found = store.statistics(
        clock.now - timedelta(hours=hours), clock.now + HOUR, by=(), now=clock.now
    )
    return dict(found[0].counts) if found else {}


def spans(plain: Plain) -> list[tuple[int, int]]:
    """How many rows there are of each length, and how many ends they count."""
    return plain.rows(
        "select span, cast(sum(ends) as integer) from tenure.statistic group by span order by span"
    )


def test_a_row_is_written_once(store: Store, clock: Clock) -> None:
    for _ in range(3):
        store.add_statistics("p", one(), at=clock.now)
    assert totals(store, clock) == {"succeeded": 1}
    store.add_statistics("p", one(), at=clock.advance(10))
    store.add_statistics("other", one(), at=clock.now)
    assert totals(store, clock) == {"succeeded": 3}
    store.add_statistics("p", [], at=clock.now)
    assert totals(store, clock) == {"succeeded": 3}


def test_what_is_read(store: Store, clock: Clock) -> None:
    rows = counted(
        ("mail", "send", "succeeded", 0.3, 1.5),
        ("mail", "send", "succeeded", 0.3, 1.5),
        ("mail", "send", "failed", 0.3, 100.0),
        ("mail", "read", "succeeded", 0.001, 0.001),
        ("other", "send", "retried", 50_000.0, 0.001),
    )
    store.add_statistics("p", rows, at=clock.now)
    since, until = clock.now, clock.now + timedelta(seconds=30)

    def look(**options: object) -> list[Statistics]:
        return store.statistics(since, until, now=clock.now, **options)  # type: ignore[arg-type]

    by_both = look()
    assert [(s.queue, s.task, dict(s.counts)) for s in by_both] == [
        ("mail", "read", {"succeeded": 1}),
        ("mail", "send", {"succeeded": 2, "failed": 1}),
        ("other", "send", {"retried": 1}),
    ]
    send = by_both[1]
    assert (send.since, send.seconds, send.outcome) == (since, 30.0, None)
    assert (send.finished, send.per_second) == (3, 0.1)
    assert send.failure_ratio == pytest.approx(1 / 3)
    assert send.wait.seconds == pytest.approx(0.9)
    assert send.run.seconds == pytest.approx(103.0)
    assert send.run.p50 is not None
    assert 1.0 < send.run.p50 <= 2.5
    assert send.run.p95 is not None
    assert 60.0 < send.run.p95 <= 300.0
    assert by_both[2].wait.counts[-1] == 1
    assert [(s.queue, s.task) for s in look(by="queue")] == [("mail", None), ("other", None)]
    assert [(s.task, s.outcome) for s in look(by=("task", "outcome"), queue="mail")] == [
        ("read", "succeeded"), ("send", "failed"), ("send", "succeeded"),
    ]  # fmt: skip
    [whole] = look(by=())
    assert (whole.run.count, whole.finished) == (5, 4)
    assert [s.queue for s in look(task="read")] == ["mail"]
    assert look(queue="none") == []


def test_a_time_is_cut_into_stretches(store: Store, clock: Clock) -> None:
    since = clock.now
    for _ in range(3):
        store.add_statistics("p", one(), at=clock.now)
        store.add_statistics("q", one("failed"), at=clock.now)
        clock.advance(60)
    clock.advance(60)
    store.add_statistics("p", one(), at=clock.now)
    until = clock.advance(30)
    found = store.statistics(since, until, by=(), every_seconds=60, now=clock.now)
    assert [((s.since - since).total_seconds(), s.seconds, s.finished) for s in found] == [
        (0.0, 60.0, 2), (60.0, 60.0, 2), (120.0, 60.0, 2), (240.0, 30.0, 1),
    ]  # fmt: skip
    later = store.statistics(since + timedelta(seconds=70), until, by=(), now=clock.now)
    assert [s.finished for s in later] == [3]


def test_a_row_that_reaches_into_the_time_counts(store: Store, clock: Clock) -> None:
    store.add_statistics("p", one(), at=clock.now)
    at = clock.now
    second = timedelta(seconds=1)

    def finished(since: datetime, until: datetime) -> int:
        return sum(s.finished for s in store.statistics(since, until, now=clock.now))

    assert finished(at + 9 * second, at + 20 * second) == 1
    assert finished(at + 10 * second, at + 20 * second) == 0
    assert finished(at - 20 * second, at) == 0
    assert finished(at - 20 * second, at + second) == 1


def test_prune_adds_up_to_hours_and_days(store: Store, plain: Plain, clock: Clock) -> None:
    clock.now = clock.now.replace(hour=12, minute=0, second=0, microsecond=0)
    noon = clock.now
    for n in range(30):
        store.add_statistics(f"p{n % 3}", one(run=0.001 if n % 2 else 20.0), at=clock.advance(240))
    store.add_statistics("p", [Counted("default", TASK, "succeeded", 5)], at=clock.now)
    before = store.statistics(noon, clock.now + HOUR, now=clock.now)
    store.prune(now=clock.now)
    assert spans(plain) == [(10, 35)]

    clock.now = noon + timedelta(hours=3, minutes=59)
    store.prune(now=clock.now)
    assert spans(plain) == [(10, 35 - 14), (3600, 14)]
    clock.now = noon + timedelta(hours=6)
    store.prune(now=clock.now)
    assert spans(plain) == [(3600, 35)]
    assert plain.one("select count(*) from tenure.statistic") == 3
    after = store.statistics(noon, noon + timedelta(hours=3, minutes=1), now=clock.now)
    assert [(s.counts, s.wait.counts, s.run.counts) for s in after] == [
        (s.counts, s.wait.counts, s.run.counts) for s in before
    ]
    assert after[0].run.seconds == pytest.approx(before[0].run.seconds)

    late = counted(("default", TASK, "succeeded", 0.2, 0.001))  # from a worker that was cut off
    store.add_statistics("late", late, at=noon + timedelta(minutes=30))
    clock.now = noon + 16 * DAY
    store.prune(now=clock.now)
    assert spans(plain) == [(86_400, 36)]
    [day] = store.statistics(noon, clock.now, now=clock.now)
    assert (day.finished, day.run.count) == (36, 31)
    clock.now = noon + 402 * DAY
    store.prune(now=clock.now)
    assert spans(plain) == []


def test_prune_adds_up_in_small_steps(
    store: Store, plain: Plain, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.store.statistics.write.STEP_ROWS", 7)
    for n in range(20):
        store.add_statistics(f"p{n}", one(), at=clock.now)
    clock.advance(5 * 3600)
    store.prune(now=clock.now)
    assert spans(plain) == [(3600, 20)]
    assert plain.one("select count(*) from tenure.statistic") == 1


def test_ends_without_a_settlement_are_counted_with_them(store: Store, clock: Clock) -> None:
    several = add_many(store, clock.now, 2)
    store.cancel(add(store, clock.now), now=clock.now)
    store.cancel_many(several, now=clock.now)
    assert totals(store, clock) == {"cancelled": 3}


def test_a_crash_is_counted_and_so_is_the_end_that_it_brings(store: Store, clock: Clock) -> None:
    add(store, clock.now, max_attempts=2)
    take_one(store, clock.now)
    expire(store, clock)
    assert totals(store, clock) == {"crashed": 1}
    clock.advance(60)
    take_one(store, clock.now)
    expire(store, clock)
    assert totals(store, clock) == {"crashed": 1, "failed": 1}


def test_children_that_are_skipped_are_counted(store: Store, clock: Clock) -> None:
    parent = add(store, clock.now, queue="up", max_attempts=1)
    add_many(store, clock.now, 2, parents=(parent,), queue="down")
    settle(store, clock.now, fail(take_one(store, clock.now, queue="up"), ERROR))
    found = store.statistics(clock.now - HOUR, clock.now + HOUR, now=clock.now)
    assert [(s.queue, dict(s.counts)) for s in found] == [("down", {"skipped": 2})]
    assert found[0].run.count == 0
    late = add(store, clock.now, parents=(parent,), queue="late")
    assert store.get(late, now=clock.now).state == "skipped"
    found = store.statistics(clock.now - HOUR, clock.now + HOUR, queue="late", now=clock.now)
    assert [dict(s.counts) for s in found] == [{"skipped": 1}]


def test_jobs_of_a_workflow_that_is_cancelled_are_counted(store: Store, clock: Clock) -> None:
    nodes = [NewNode(name=name, job=job()) for name in "abc"]
    added = store.enqueue_workflow(NewWorkflow(name="flow", nodes=tuple(nodes)), now=clock.now)
    store.cancel_workflow(added.id, now=clock.now)
    assert totals(store, clock) == {"cancelled": 3}


def test_a_claim_that_meets_a_cancel_request_counts(store: Store, clock: Clock) -> None:
    add(store, clock.now)
    claimed = take_one(store, clock.now)
    store.cancel(claimed.id, now=clock.now)
    [answer] = settle(store, clock.now, retry(claimed, ERROR, 0))
    assert answer.landed
    assert answer.became == "cancelled"
    assert totals(store, clock) == {}, "the worker counts what it settles"


def test_settlements_are_left_to_the_worker(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 3)
    first, second, third = take(store, clock.now)
    settle(store, clock.now, succeed(first), fail(second, ERROR), retry(third, ERROR, 0))
    assert totals(store, clock) == {}


def test_bad_input(store: Store, clock: Clock) -> None:
    at = clock.now
    for rows, why in [
        ([Counted("q", "t", "lost", 1)], "outcome must be one of"),
        ([Counted("q", "t", "failed", 1, waits=[1], runs=[1])], "buckets"),
        ([Counted("q", "t", "failed", 1, waits=[0] * BUCKETS)], "buckets"),
        ([Counted("q", "t", "failed", 1)] * 2, "twice"),
        (["x"], "list of Counted"),
        (7, "list of Counted"),
    ]:
        with pytest.raises(InvalidInput, match=why):
            store.add_statistics("p", rows, at=at)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="by must be"):
        store.statistics(by=("colour",), now=at)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="since must be before until"):
        store.statistics(at, at, now=at)
    with pytest.raises(InvalidInput, match="every_seconds must be at least 864"):
        store.statistics(at - 10 * DAY, at, every_seconds=10, now=at)
    with pytest.raises(InvalidInput):
        store.statistics(datetime(2026, 1, 1), now=at)  # noqa: DTZ001


def test_a_tenant_does_not_see_what_concerns_all(store: Store, clock: Clock) -> None:
    tenant = store.for_tenant("acme")
    for call in (tenant.statistics, tenant.depth, tenant.sample_depth):
        with pytest.raises(TenantMismatch):
            call(now=clock.now)
    with pytest.raises(TenantMismatch):
        tenant.add_statistics("p", [], at=clock.now)


# --- the number of live jobs ----------------------------------------------------------------------


def depths(store: Store, clock: Clock) -> dict[tuple[str, str], int]:
    found = store.depth(now=clock.now)
    return {} if found is None else {(d.queue, d.state): d.jobs for d in found.queues}


def test_the_depth_is_that_of_the_last_sample(store: Store, clock: Clock) -> None:
    assert store.depth(now=clock.now) is None
    began = clock.now
    add_many(store, clock.now, 4)
    clock.advance(5)
    assert store.sample_depth(now=clock.now)
    sampled_at = clock.now
    add_many(store, clock.now, 3)
    assert not store.sample_depth(now=clock.advance(9.9))
    found = store.depth(now=clock.now)
    assert found is not None
    assert (found.sampled_at, found.took_seconds) == (sampled_at, 0.0)
    assert found.age_seconds == pytest.approx(9.9)
    assert [(d.queue, d.state, d.jobs, d.oldest_at) for d in found.queues] == [
        ("default", "queued", 4, began)
    ]
    assert store.sample_depth(now=clock.advance(0.1))
    assert depths(store, clock) == {("default", "queued"): 7}
    add(store, clock.now)
    assert store.sample_depth(force=True, now=clock.now)
    assert depths(store, clock) == {("default", "queued"): 8}


def test_the_depth_of_each_state_equals_a_recount(store: Store, clock: Clock) -> None:
    store.declare_gates({"g": Limits(max_running=1)})
    add_many(store, clock.now, 3, gate="g", queue="gated")
    add_many(store, clock.now, 2, delay_seconds=60.0)
    held = add_many(store, clock.now, 5)
    store.hold(held[0], now=clock.now)
    add_many(store, clock.now, 2, parents=(held[1],), queue="later")
    take(store, clock.now, 2)
    take(store, clock.now, queue="gated")
    store.sample_depth(force=True, now=clock.now)
    recount = {(c.queue, str(c.state)): c.jobs for c in store.count_live(now=clock.now)}
    assert depths(store, clock) == recount
    assert set(recount.values()) > {2}


def test_a_sample_of_nothing_is_a_sample(store: Store, clock: Clock) -> None:
    assert store.sample_depth(now=clock.now)
    found = store.depth(now=clock.now)
    assert found is not None
    assert found.queues == ()
    add(store, clock.now)
    store.sample_depth(force=True, now=clock.now)
    store.cancel(1, now=clock.now)
    store.sample_depth(force=True, now=clock.now)
    assert depths(store, clock) == {}
