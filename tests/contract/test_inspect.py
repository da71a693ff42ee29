"""What everybody may look at: one job, lists of jobs, counts, the age of the oldest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import pytest

from tenure.errors import InvalidInput
from tenure.rules.gates import Limits
from tenure.rules.job import FINAL_STATES, LIVE_STATES, Job, State, WorkerInfo
from tenure.rules.lifecycle import fail, retry, skip, succeed
from tenure.store import Count, OldestReady, Store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, TASK, add, add_many, run, settle, take, take_one


def crowd(store: Store, clock: Clock) -> dict[State, set[int]]:
    """Some jobs in every state, on two queues, of two tasks."""
    now = clock.now
    found: dict[State, set[int]] = {state: set() for state in State}
    for n in range(3):
        options: dict[str, Any] = {"queue": "ab"[n % 2], "task": f"app.{'xy'[n // 2]}"}
        line = {"worker": "w1", "queue": options["queue"]}
        add(store, now, **options)
        found[State.SUCCEEDED].add(run(store, now, succeed, **line).id)
        add(store, now, **options)
        found[State.FAILED].add(run(store, now, lambda job: fail(job, ERROR), **line).id)
        add(store, now, **options)
        found[State.SKIPPED].add(run(store, now, skip, **line).id)
        cancelled = add(store, now, **options)
        store.cancel(cancelled, now=now)
        found[State.CANCELLED].add(cancelled)
        add(store, now, **options)
        running = take_one(store, now, **line).id
        found[State.RUNNING].add(running)
        found[State.WAITING].add(add(store, now, parents=(running,), **options))
        found[State.SCHEDULED].add(add(store, now, delay_seconds=60, **options))
        held = add(store, now, **options)
        store.hold(held, now=now)
        found[State.QUEUED].add(held)
    for queue in "ab":
        found[State.QUEUED].add(add(store, now, queue=queue))
    return found


def listed(store: Store, limit: int = 100, **filters: Any) -> list[Job]:
    """All pages."""
    jobs: list[Job] = []
    after = None
    for _ in range(200):
        page = store.list_jobs(limit=limit, after=after, **filters)
        assert len(page.jobs) <= limit
        assert page.next is None or page.next != after
        jobs += page.jobs
        after = page.next
        if after is None:
            return jobs
    raise AssertionError("the list does not end")


@pytest.mark.parametrize("scan_rows", [4, 10_000], ids=["short walks", "one walk"])
def test_every_filter_finds_its_jobs_once_in_order(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, scan_rows: int
) -> None:
    """Live and finished jobs lie in two tables and come as one list, whatever a page may scan."""
    monkeypatch.setattr("tenure.store.look.find.SCAN_ROWS", scan_rows)
    found = crowd(store, clock)
    everything = {id for ids in found.values() for id in ids}
    choices: list[Collection[State]] = [
        *({state} for state in State),
        LIVE_STATES,
        FINAL_STATES,
        {State.FAILED, State.QUEUED},
        {State.FAILED, State.SKIPPED, State.RUNNING},
        {State.SUCCEEDED, State.SCHEDULED},
    ]
    for limit in (1, 3, 7, 100):
        all_jobs = [job.id for job in listed(store, limit)]
        assert all_jobs == sorted(everything, reverse=True)
        for states in choices:
            expected = sorted({id for state in states for id in found[state]}, reverse=True)
            jobs = listed(store, limit, states=states)
            assert [job.id for job in jobs] == expected
            assert {job.state for job in jobs} == set(states)


def test_filters_combine(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.store.look.find.SCAN_ROWS", 5)
    crowd(store, clock)
    jobs = listed(store)
    for queue in ("a", "b", "nowhere"):
        for task in ("app.x", "app.y", "app.none"):
            for states in (None, {State.FAILED}, {State.QUEUED, State.SUCCEEDED}):
                expected = [
                    job
                    for job in jobs
                    if job.queue == queue
                    and job.task == task
                    and (states is None or job.state in states)
                ]
                assert listed(store, 2, queue=queue, task=task, states=states) == expected


def test_a_page_with_few_matches_is_bounded_and_goes_on(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.store.look.find.SCAN_ROWS", 10)
    rare = add(store, clock.now, task="app.rare")
    add_many(store, clock.now, 25)
    page = store.list_jobs(task="app.rare", limit=5)
    assert page.jobs == ()
    assert page.next is not None
    assert [job.id for job in listed(store, 5, task="app.rare")] == [rare]


def test_a_listed_job_is_the_job_itself(store: Store, clock: Clock) -> None:
    crowd(store, clock)
    assert all(job == store.get(job.id) for job in listed(store))


def test_a_list_that_makes_no_sense_is_refused(store: Store) -> None:
    wrong: list[dict[str, Any]] = [
        {"limit": 0},
        {"limit": 1001},
        {"states": []},
        {"queue": "no spaces"},
        {"task": ""},
    ]
    for options in wrong:
        with pytest.raises(InvalidInput):
            store.list_jobs(**options)


def test_an_empty_store_has_an_empty_list(store: Store) -> None:
    page = store.list_jobs()
    assert (page.jobs, page.next) == ((), None)


def test_counts_equal_a_recount(store: Store, clock: Clock) -> None:
    crowd(store, clock)
    jobs = listed(store)
    recount = Counter((job.queue, job.task, job.state, job.tenant) for job in jobs)
    counts = [
        *store.count_live(now=clock.now),
        *store.count_finished(clock.now, clock.now + timedelta(seconds=1)),
    ]
    assert {(c.queue, c.task, c.state, c.tenant): c.jobs for c in counts} == recount


def test_finished_jobs_are_counted_by_the_time_they_finished(store: Store, clock: Clock) -> None:
    start = clock.now
    add_many(store, clock.now, 3)
    for _ in range(3):
        run(store, clock.advance(10), succeed)

    def between(first: float, last: float) -> int:
        span = (start + timedelta(seconds=first), start + timedelta(seconds=last))
        return sum(count.jobs for count in store.count_finished(*span))

    assert between(0, 10) == 0
    assert between(10, 20) == 1
    assert between(10, 30.000_001) == 3
    assert store.count_finished(start, clock.now) == [
        Count("default", "app.work", State.SUCCEEDED, "", 2)
    ]
    with pytest.raises(InvalidInput):
        store.count_finished(start.replace(tzinfo=None), clock.now)


def test_the_oldest_ready_job_of_each_queue(store: Store, clock: Clock) -> None:
    assert store.oldest_ready(now=clock.now) == []
    first = clock.now
    add(store, clock.now, priority=5)
    add(store, clock.advance(10), priority=-5)
    add(store, clock.now, queue="other")
    add(store, clock.now, queue="later", delay_seconds=60)
    second = clock.now
    assert store.oldest_ready(now=clock.advance(2.5)) == [
        OldestReady("default", first, 12.5),
        OldestReady("other", second, 2.5),
    ]


def test_a_job_that_came_back_is_as_old_as_its_position(store: Store, clock: Clock) -> None:
    add(store, clock.now)
    claimed = take_one(store, clock.now)
    settle(store, clock.advance(100), retry(claimed, ERROR, 0))
    [oldest] = store.oldest_ready(now=clock.advance(1))
    assert oldest.age_seconds == 1.0


def test_plain_sql_shows_every_job_with_its_state(store: Store, plain: Plain, clock: Clock) -> None:
    found = crowd(store, clock)
    rows = plain.rows("select id, cast(state as text), queue, task from tenure.jobs")
    assert {(id, state) for id, state, _, _ in rows} == {
        (id, state.value) for state, ids in found.items() for id in ids
    }
    holding = plain.rows("select job_id, worker from tenure.holding")
    assert {(id, "w1") for id in found[State.RUNNING]} == set(holding)


def test_plain_sql_tells_where_a_job_is(store: Store, plain: Plain, clock: Clock) -> None:
    """Its worker, the deadline of its lease, its attempts, tenant and notes."""
    id = add(store, clock.now, tenant="acme")
    where = (
        "select cast(state as text), worker, expires_at, attempts, tenant, notes ->> 'loss'"
        f" from tenure.jobs where id = {id}"
    )
    assert plain.rows(where) == [("queued", None, None, 0, "acme", None)]
    job = take_one(store, clock.advance(1), lease_seconds=30)
    store.annotate("w1", [(job, {"loss": "low"})], now=clock.now)
    [(state, worker, expires_at, *rest)] = plain.rows(where)
    assert (state, worker, rest) == ("running", "w1", [0, "acme", "low"])
    assert utc(expires_at) == clock.now + timedelta(seconds=30)
    settle(store, clock.now, succeed(job))
    assert plain.rows(where) == [("succeeded", "w1", None, 1, "acme", "low")]


def test_plain_sql_shows_times_that_people_can_read(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """In UTC, to the microsecond, on both databases."""
    clock.advance(0.000_007)
    later = add(store, clock.now, delay_seconds=3600)
    first = clock.now
    done = add(store, clock.now)
    job = take_one(store, clock.advance(1))
    store.settle("w1", [succeed(job)], now=clock.advance(1))
    times = (
        "select created_at, queued_at, due_at, claimed_at, finished_at from tenure.jobs where id ="
    )
    [shown] = plain.rows(f"{times} {done}")
    assert [at and utc(at) for at in shown] == [
        first, first, None, first + timedelta(seconds=1), first + timedelta(seconds=2)
    ]  # fmt: skip
    [(created, _, due, *_)] = plain.rows(f"{times} {later}")
    assert (utc(created), utc(due)) == (first, first + timedelta(hours=1))


def utc(shown: object) -> datetime:
    """A time as the view shows it: a text on SQLite."""
    if isinstance(shown, str):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", shown)
        return datetime.fromisoformat(shown)
    assert isinstance(shown, datetime)
    return shown


def test_what_waits_for_a_worker_is_told_with_its_time(store: Store, clock: Clock) -> None:
    nothing = store.health_facts(now=clock.now)
    assert (nothing.due_seconds, nothing.expired_seconds) == (-1.0, -1.0)
    assert (nothing.leases, nothing.tasks, nothing.gates) == ((), (), ())
    store.declare_gates({"door": Limits(max_running=1)}, now=clock.now)
    due = add(store, clock.now, delay_seconds=10)
    add(store, clock.now, task="app.other", queue="other")
    gated = add(store, clock.now, gate="door", queue="gates")
    add(store, clock.now, gate="door", queue="gates")
    store.announce(WorkerInfo(name="w1", host="here", pid=1), now=clock.now)
    add(store, clock.now)
    take(store, clock.now, lease_seconds=30)
    clock.advance(20)
    facts = store.health_facts(now=clock.now)
    assert (facts.due_seconds, facts.due_job) == (10.0, due)
    assert facts.expired_seconds == -10.0
    assert [(each.worker, each.seen_seconds) for each in facts.leases] == [("w1", 20.0)]
    assert [(each.queue, each.task) for each in facts.tasks] == [
        ("gates", TASK), ("other", "app.other"),  # the job in the queue `default` runs
    ]  # fmt: skip
    [head] = facts.gates
    assert (head.queue, head.job_id, head.age_seconds, head.may_pass) == (
        "gates", gated, 20.0, True,
    )  # fmt: skip
    clock.advance(20)
    late = store.health_facts(now=clock.now)
    assert (late.expired_seconds, late.expired_worker, late.leases) == (10.0, "w1", ())


def test_the_schema_is_complete(store: Store) -> None:
    assert store.missing_tables() == []
