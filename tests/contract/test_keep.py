"""How long finished jobs are kept: the task says it, then the worker, then the default of prune."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tenure.errors import ClockDoubted, InvalidInput, JobNotFound, OutOfRange
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.graph import NewNode, NewWorkflow
from tenure.rules.job import Enqueued, NewStep, State, Unique, Until
from tenure.rules.lifecycle import Settlement, abort, fail, release, retry, skip, succeed
from tenure.rules.retention import Keep
from tenure.store import Store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, add, add_many, expire, job, run, settle, take, take_one

DAY_SECONDS = 86_400.0
End = Callable[[Claimed], Settlement]
OTHER_ENDS: list[End] = [lambda job: fail(job, ERROR), skip, abort]


def stored(plain: Plain) -> set[int]:
    return {row[0] for row in plain.rows("select id from tenure.jobs")}


def leftovers(plain: Plain) -> dict[str, int]:
    """How many rows there are in the tables that hang on jobs."""
    tables = ("job", "history", "event", "note", "step", "lease", "gate_hold")
    return {
        table: rows
        for table in tables
        if (rows := plain.one(f"select count(*) from tenure.{table}"))
    }


def end_next(store: Store, now: datetime, end: End, keep: dict[str, Keep] | None = None) -> None:
    claimed = take_one(store, now)
    [answer] = store.settle(
        "w1", [end(claimed)], done_leases=[claimed.lease_id], keep=keep, now=now
    )
    assert answer.landed


def test_a_job_is_kept_as_long_as_its_task_says(store: Store, plain: Plain, clock: Clock) -> None:
    longer, shorter, plain_one = (
        add(store, clock.now, keep_succeeded_seconds=100 * DAY_SECONDS),
        add(store, clock.now, keep_succeeded_seconds=60.0),
        add(store, clock.now),
    )
    settle(store, clock.now, *(succeed(each) for each in take(store, clock.now)))
    assert store.prune(now=clock.advance(59.9)) == 0
    assert store.prune(now=clock.advance(0.1)) == 1
    assert stored(plain) == {longer, plain_one}
    assert shorter not in stored(plain)
    assert store.prune(now=clock.advance(8 * DAY_SECONDS)) == 1
    assert stored(plain) == {longer}
    store.prune(succeeded_seconds=0, other_seconds=0, now=clock.now)
    assert stored(plain) == {longer}
    assert store.prune(now=clock.advance(92 * DAY_SECONDS)) == 1


@pytest.mark.parametrize("end", OTHER_ENDS)
def test_every_other_end_has_a_length_of_its_own(
    store: Store, plain: Plain, clock: Clock, end: End
) -> None:
    lengths = {"keep_succeeded_seconds": 0.0, "keep_other_seconds": 60.0}
    id = add(store, clock.now, **lengths)
    run(store, clock.now, end)
    assert store.prune(now=clock.advance(59)) == 0
    assert stored(plain) == {id}
    assert store.prune(now=clock.advance(1)) == 1


def test_what_is_kept_for_ever_never_goes(store: Store, plain: Plain, clock: Clock) -> None:
    good, bad = add_many(
        store, clock.now, 2, keep_succeeded_seconds=math.inf, keep_other_seconds=math.inf
    )
    run(store, clock.now, succeed)
    run(store, clock.now, lambda job: fail(job, ERROR))
    store.prune(now=clock.advance(90 * 365 * DAY_SECONDS))
    assert stored(plain) == {good, bad}


@pytest.mark.parametrize("end", [succeed, *OTHER_ENDS])
def test_a_job_that_is_not_kept_is_gone_with_its_end(
    store: Store, plain: Plain, clock: Clock, end: End
) -> None:
    lengths = {"keep_succeeded_seconds": 0, "keep_other_seconds": 0}
    id = add(store, clock.now, **lengths)
    run(store, clock.now, lambda job: retry(job, ERROR, 0))
    claimed = take_one(store, clock.now)
    store.save_checkpoint("w1", claimed, encode([1]), now=clock.now)
    store.record_step("w1", claimed, NewStep("one", "f", encode(1)), now=clock.now)
    assert [answer.landed for answer in settle(store, clock.now, end(claimed))] == [True]
    assert leftovers(plain) == {}
    with pytest.raises(JobNotFound):
        store.get(id)


def test_only_the_jobs_that_are_not_kept_go(store: Store, plain: Plain, clock: Clock) -> None:
    """A batch of both kinds: each job has one end, and stale settlements are told."""
    kept = add_many(store, clock.now, 3)
    gone = add_many(store, clock.now, 3, keep_succeeded_seconds=0)
    claimed = take(store, clock.now)
    [stale] = [each for each in claimed if each.id == gone[0]]
    store.settle("w1", [release(stale)], now=clock.now)
    answers = settle(store, clock.now, *(succeed(each) for each in claimed))
    assert [answer.landed for answer in answers] == [True] * 3 + [False] + [True] * 2
    assert stored(plain) == {*kept, gone[0]}
    assert store.get(gone[0]).state is State.QUEUED


def test_the_end_by_a_sweep_or_an_operator_keeps_to_the_task(
    store: Store, plain: Plain, clock: Clock
) -> None:
    add(store, clock.now, keep_other_seconds=0, max_attempts=1)
    cancelled = add(store, clock.now, keep_other_seconds=0, priority=5)
    take_one(store, clock.now)
    expire(store, clock)
    assert store.cancel(cancelled, now=clock.now) is State.CANCELLED
    assert leftovers(plain) == {}


def test_a_worker_says_it_for_jobs_that_do_not(store: Store, plain: Plain, clock: Clock) -> None:
    mine, its = add(store, clock.now), add(store, clock.now, keep_succeeded_seconds=1000)
    keep = {"default": Keep(succeeded_seconds=60)}
    for _ in range(2):
        end_next(store, clock.now, succeed, keep)
    failed = add(store, clock.now)
    end_next(store, clock.now, lambda job: fail(job, ERROR), keep)
    assert store.prune(now=clock.advance(60)) == 1
    assert stored(plain) == {its, failed}
    assert mine not in stored(plain)
    assert store.prune(now=clock.advance(940)) == 1


def test_a_worker_says_it_for_each_queue(store: Store, plain: Plain, clock: Clock) -> None:
    keep = {"a.b": Keep(0, math.inf), "5": Keep(math.inf, 0), "c": Keep()}
    kept = set()
    for queue in ("a.b", "5", "c"):
        for end in (succeed, skip):
            id = add(store, clock.now, queue=queue)
            claimed = take_one(store, clock.now, queue=queue)
            store.settle(
                "w1", [end(claimed)], done_leases=[claimed.lease_id], keep=keep, now=clock.now
            )
            if (queue, end) not in {("a.b", succeed), ("5", skip)}:
                kept.add(id)
    assert stored(plain) == kept
    store.prune(now=clock.advance(100 * DAY_SECONDS))
    assert len(stored(plain)) == 2


def test_a_sweep_of_a_worker_says_it_too(store: Store, plain: Plain, clock: Clock) -> None:
    add(store, clock.now, max_attempts=1)
    take_one(store, clock.now)
    assert store.sweep(keep={"default": Keep(other_seconds=0)}, now=clock.advance(31)).finished == 1
    assert leftovers(plain) == {}


@pytest.mark.parametrize("by", ["expire", "claim"])
def test_the_worker_also_says_it_of_jobs_that_were_not_started_in_time(
    store: Store, plain: Plain, clock: Clock, by: str
) -> None:
    add(store, clock.now, start_within_seconds=1)
    keep = {"default": Keep(other_seconds=0)}
    clock.advance(2)
    if by == "expire":
        assert store.expire(keep=keep, now=clock.now) == 1
    else:
        assert not store.claim("w1", {"default": 1}, keep=keep, now=clock.now)
    assert leftovers(plain) == {}


def test_a_replay_keeps_what_the_task_says(store: Store, plain: Plain, clock: Clock) -> None:
    one, many = add_many(store, clock.now, 2, keep_succeeded_seconds=0, keep_other_seconds=50)
    for _ in range(2):
        run(store, clock.now, lambda job: fail(job, ERROR))
    store.replay(one, now=clock.now)
    store.replay_many([many], now=clock.now)
    assert store.prune(now=clock.advance(100)) == 0
    settle(store, clock.now, *(succeed(each) for each in take(store, clock.now)))
    assert stored(plain) == set()


def test_the_children_of_a_job_that_is_not_kept_see_its_result(
    store: Store, plain: Plain, clock: Clock
) -> None:
    parent = add(store, clock.now, keep_succeeded_seconds=0)
    child = add(store, clock.now, parents=(parent,), keep_succeeded_seconds=0)
    run(store, clock.now, lambda job: succeed(job, encode(5)))
    assert store.prune(now=clock.advance(1)) == 0, "the child may want its result"
    [end] = store.parent_ends(child)
    assert (end.state, end.result) == (State.SUCCEEDED, 5)
    settle(store, clock.now, succeed(take_one(store, clock.now)))
    assert stored(plain) == {parent}
    assert store.prune(now=clock.now) == 1
    assert leftovers(plain) == {}


def test_a_child_that_is_skipped_is_not_kept_either(
    store: Store, plain: Plain, clock: Clock
) -> None:
    parent = add(store, clock.now)
    add(store, clock.now, parents=(parent,), keep_other_seconds=0)
    run(store, clock.now, lambda job: fail(job, ERROR))
    assert stored(plain) == {parent}
    assert plain.one("select count(*) from tenure.parent") == 0


def test_a_workflow_stays_as_long_as_one_of_its_jobs(
    store: Store, plain: Plain, clock: Clock
) -> None:
    nodes = (
        NewNode(name="a", job=job(keep_succeeded_seconds=0)),
        NewNode(name="b", job=job(keep_succeeded_seconds=20 * DAY_SECONDS), after=(0,)),
    )
    added = store.enqueue_workflow(NewWorkflow(name="flow", nodes=nodes), now=clock.now)
    for _ in nodes:
        run(store, clock.now, succeed)
    assert stored(plain) == set(added.nodes)
    assert store.prune(now=clock.advance(19 * DAY_SECONDS)) == 0
    assert store.prune(now=clock.advance(DAY_SECONDS)) == 2
    assert stored(plain) == set()


def test_the_keys_of_jobs_that_are_not_kept_behave_as_always(
    store: Store, plain: Plain, clock: Clock
) -> None:
    ends: list[tuple[Unique, bool]] = [
        (Unique(key="a"), True),
        (Unique(key="b", until=Until.STARTED), True),
        (Unique(key="c", until=Until.PERIOD, period_seconds=100), False),
        (Unique(key="d", until=Until.FOREVER), False),
    ]
    for unique, is_free in ends:
        id = add(store, clock.now, unique=unique, keep_succeeded_seconds=0)
        settle(store, clock.now, succeed(take_one(store, clock.now)))
        [again] = store.enqueue([job(unique=unique)], now=clock.now)
        assert again.created is is_free
        assert again.gone is not is_free
        assert (again.id == id) is not is_free
        store.cancel_many([each.id for each in store.list_jobs(states={State.QUEUED})])
    assert {row[0] for row in plain.rows("select key from tenure.unique_key")} == {"c", "d"}


def test_jobs_of_a_schedule_and_of_a_bulk_are_kept_alike(
    store: Store, plain: Plain, clock: Clock
) -> None:
    many = add_many(store, clock.now, 150, keep_succeeded_seconds=0, keep_other_seconds=7)
    rows = plain.rows("select keep_succeeded_seconds, keep_other_seconds from tenure.job")
    assert len(many) == 150
    assert set(rows) == {(0, 7)}
    settle(store, clock.now, *(succeed(each) for each in take(store, clock.now, 150)))
    assert leftovers(plain) == {}


@pytest.mark.parametrize("value", [-1, float("nan"), -math.inf, "1", True])
def test_a_length_that_is_none_is_refused(store: Store, clock: Clock, value: object) -> None:
    for name in ("keep_succeeded_seconds", "keep_other_seconds"):
        with pytest.raises(OutOfRange, match=name):
            add(store, clock.now, **{name: value})
    with pytest.raises(InvalidInput, match="keep must map"):
        store.settle("w1", [], keep={"default": 5}, now=clock.now)  # type: ignore[dict-item]


# --- when prune runs, and by which clock ----------------------------------------------------------


def set_clock(plain: Plain, trusted: datetime, doubted: datetime | None = None) -> None:
    """Pretend that the last prune was at this time."""

    def literal(at: datetime | None) -> str:
        if at is None:
            return "null"
        return f"'{at.isoformat()}'" if plain.is_postgres else str(int(at.timestamp() * 1e6))

    plain.rows("delete from tenure.prune_clock")
    plain.rows(
        "insert into tenure.prune_clock (one, trusted_at, doubted_at) "
        f"values (1, {literal(trusted)}, {literal(doubted)})"
    )


def old_job(store: Store) -> int:
    """A job that finished 100 days ago, by the real clock."""
    long_ago = datetime.now(UTC) - timedelta(days=100)
    id = add(store, long_ago)
    run(store, long_ago, succeed)
    return id


def test_a_prune_runs_only_when_it_is_due(store: Store, plain: Plain) -> None:
    id = old_job(store)
    set_clock(plain, datetime.now(UTC))
    assert store.prune(every_seconds=3600) == 0
    assert stored(plain) == {id}
    set_clock(plain, datetime.now(UTC) - timedelta(minutes=59))
    assert store.prune(every_seconds=3600) == 0
    set_clock(plain, datetime.now(UTC) - timedelta(minutes=61))
    store.prune(every_seconds=3600)
    assert stored(plain) == set()


def test_a_clock_that_has_jumped_ahead_deletes_nothing(store: Store, plain: Plain) -> None:
    id = old_job(store)
    set_clock(plain, datetime.now(UTC) - timedelta(days=20))
    for _ in range(3):
        with pytest.raises(ClockDoubted, match="20 days after the last prune"):
            store.prune()
    assert stored(plain) == {id}


def test_a_doubted_clock_is_trusted_after_a_day(store: Store, plain: Plain) -> None:
    old_job(store)
    now = datetime.now(UTC)
    set_clock(plain, now - timedelta(days=20), now - timedelta(days=1, minutes=1))
    store.prune()
    assert stored(plain) == set()
    assert plain.one("select count(*) from tenure.prune_clock where doubted_at is not null") == 0


def test_a_clock_that_is_years_ahead_waits_for_an_operator(store: Store, plain: Plain) -> None:
    id = old_job(store)
    now = datetime.now(UTC)
    set_clock(plain, now - timedelta(days=3650), now - timedelta(days=5))
    with pytest.raises(ClockDoubted, match=r"prune --force`$"):
        store.prune()
    assert stored(plain) == {id}
    store.prune(force=True)
    assert stored(plain) == set()
    store.prune()


def test_a_clock_that_was_set_back_is_trusted(store: Store, plain: Plain) -> None:
    old_job(store)
    set_clock(plain, datetime.now(UTC) + timedelta(days=3650))
    store.prune(every_seconds=3600)
    assert stored(plain) == set()


def test_an_enqueue_tells_that_the_holder_is_gone(store: Store, clock: Clock) -> None:
    unique = Unique(key="k", until=Until.FOREVER)
    id = add(store, clock.now, unique=unique)
    run(store, clock.now, succeed)
    store.prune(now=clock.advance(8 * DAY_SECONDS))
    [again] = store.enqueue([job(unique=unique)], now=clock.now)
    assert again == Enqueued(id, created=False, gone=True)
