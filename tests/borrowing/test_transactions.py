"""In the caller's transaction, through every library: all or nothing, and never our COMMIT."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta, timezone

import psycopg.rows
import pytest

from tenure.errors import InvalidInput, JobNotFound, LeaseLost
from tenure.rules.codec import encode
from tenure.rules.job import Json, State, Unique, Until
from tenure.rules.lifecycle import fail, release, retry, snooze, succeed
from tenure.store import LANDED
from tests.borrowing.libraries import Caller, named
from tests.support.plain import Plain
from tests.support.rules import rule
from tests.support.stores import Clock
from tests.support.work import ERROR, add, ids_of, job, running, settle, take, take_one
from tests.support.zombies import FINISHED, RUNNING, SETTLEMENTS, Raise


def payments(caller: Caller) -> int:
    """How many rows the caller has, as everybody sees it."""
    caller.begin()
    [(count,)] = caller.rows("select count(*) from payment")
    caller.rollback()
    return int(count)


def stored(caller: Caller) -> set[int]:
    """The jobs that are there for everybody."""
    return {job.id for job in caller.store.list_jobs().jobs}


# enqueue


def test_a_job_is_there_when_the_caller_has_committed(caller: Caller, clock: Clock) -> None:
    caller.begin()
    caller.pay()
    answers = caller.store.enqueue(
        [job(), job(delay_seconds=5), job(unique=Unique(key="k"))], on=caller.on, now=clock.now
    )
    assert stored(caller) == set(), "it was committed by Tenure"
    caller.commit()
    assert stored(caller) == {answer.id for answer in answers}
    assert payments(caller) == 1
    assert len(take(caller.store, clock.now)) == 2


def test_no_job_is_there_when_the_caller_has_rolled_back(caller: Caller, clock: Clock) -> None:
    caller.begin()
    caller.pay()
    caller.store.enqueue([job(unique=Unique(key="k"))] * 3, on=caller.on, now=clock.now)
    caller.rollback()
    assert stored(caller) == set()
    assert payments(caller) == 0
    assert add(caller.store, clock.now, unique=Unique(key="k"))


def test_a_transaction_may_begin_with_the_job(caller: Caller, clock: Clock) -> None:
    """Drivers that begin with the first statement have not begun when it is ours."""
    for end in (caller.rollback, caller.commit):
        caller.begin()
        caller.store.enqueue([job()], on=caller.on, now=clock.now)
        caller.pay()
        assert stored(caller) == set(), "it was committed by Tenure"
        end()
    assert len(stored(caller)) == payments(caller) == 1


def test_a_job_is_gone_with_its_savepoint(caller: Caller, clock: Clock) -> None:
    caller.begin()
    caller.pay()
    [kept] = caller.store.enqueue([job()], on=caller.on, now=clock.now)
    caller.savepoint()
    caller.pay()
    caller.store.enqueue([job(unique=Unique(key="k"))], on=caller.on, now=clock.now)
    caller.to_savepoint()
    [again] = caller.store.enqueue([job(unique=Unique(key="k"))], on=caller.on, now=clock.now)
    assert again.created
    caller.commit()
    assert stored(caller) == {kept.id, again.id}
    assert payments(caller) == 1


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_savepoint_that_was_released_shares_the_fate_of_the_transaction(
    caller: Caller, clock: Clock, outcome: str
) -> None:
    caller.begin()
    caller.pay()
    caller.savepoint()
    [answer] = caller.store.enqueue([job()], on=caller.on, now=clock.now)
    caller.release()
    getattr(caller, outcome)()
    assert stored(caller) == ({answer.id} if outcome == "commit" else set())
    assert payments(caller) == (outcome == "commit")


def test_a_savepoint_may_come_first(caller: Caller, clock: Clock) -> None:
    """In SQLAlchemy's own hands RELEASE of the first savepoint commits on SQLite: see the docs."""
    caller.begin()
    caller.savepoint()
    caller.pay()
    caller.store.enqueue([job()], on=caller.on, now=clock.now)
    caller.release()
    caller.rollback()
    assert len(stored(caller)) == payments(caller)


def test_many_jobs_fit_into_one_call(caller: Caller, clock: Clock) -> None:
    caller.begin()
    answers = caller.store.enqueue([job() for _ in range(1500)], on=caller.on, now=clock.now)
    caller.commit()
    assert ids_of(take(caller.store, clock.now, 2000)) == [answer.id for answer in answers]


def test_several_calls_share_one_transaction(caller: Caller, clock: Clock) -> None:
    add(caller.store, clock.now)
    claimed = take_one(caller.store, clock.now)
    caller.begin()
    ids = []
    for _ in range(5):
        caller.pay()
        ids += [answer.id for answer in caller.store.enqueue([job()] * 2, on=caller.on)]
    [answer] = caller.store.settle("w1", [succeed(claimed)], on=caller.on, now=clock.now)
    assert answer == LANDED
    caller.pay()
    caller.commit()
    assert stored(caller) == {*ids, claimed.id}
    assert payments(caller) == 6


def test_a_key_that_is_held_is_told(caller: Caller, clock: Clock) -> None:
    holder = add(caller.store, clock.now, unique=Unique(key="k"))
    caller.begin()
    [same, other] = caller.store.enqueue(
        [job(unique=Unique(key="k")), job(unique=Unique(key="k"), args=encode(1))],
        on=caller.on,
        now=clock.now,
    )
    [first] = caller.store.enqueue([job(unique=Unique(key="new"))], on=caller.on, now=clock.now)
    [second] = caller.store.enqueue([job(unique=Unique(key="new"))], on=caller.on, now=clock.now)
    caller.commit()
    assert (same.id, same.created, same.same_args) == (holder, False, True)
    assert (other.id, other.created, other.same_args) == (holder, False, False)
    assert (first.created, second.created, second.id) == (True, False, first.id)


def test_a_key_whose_period_is_over_is_free(caller: Caller, clock: Clock) -> None:
    unique = Unique(key="k", until=Until.PERIOD, period_seconds=60)
    old = add(caller.store, clock.now, unique=unique)
    settle(caller.store, clock.now, succeed(take_one(caller.store, clock.now)))
    clock.advance(61)
    caller.begin()
    [answer] = caller.store.enqueue([job(unique=unique)], on=caller.on, now=clock.now)
    caller.commit()
    assert answer.created
    assert answer.id != old


def test_children_wait_for_parents_wherever_those_are(caller: Caller, clock: Clock) -> None:
    finished = add(caller.store, clock.now)
    settle(caller.store, clock.now, succeed(take_one(caller.store, clock.now)))
    live = add(caller.store, clock.now)
    caller.begin()
    [parent] = caller.store.enqueue([job()], on=caller.on, now=clock.now)
    [free, waiting] = caller.store.enqueue(
        [job(parents=(finished,)), job(parents=(finished, live, parent.id))],
        on=caller.on,
        now=clock.now,
    )
    caller.commit()
    assert caller.store.get(free.id).state is State.QUEUED
    assert caller.store.get(waiting.id).state is State.WAITING
    assert set(ids_of(take(caller.store, clock.now))) == {live, parent.id, free.id}


def test_a_parent_that_does_not_exist_is_an_error(caller: Caller, clock: Clock) -> None:
    caller.begin()
    caller.pay()
    with pytest.raises(JobNotFound, match="parent 999999"):
        caller.store.enqueue([job(parents=(999_999,))], on=caller.on, now=clock.now)
    caller.rollback()
    assert stored(caller) == set()
    assert payments(caller) == 0


ODD = "%s %% %(now)s :now $1 ? ' '' \" \\ \\n \t\n\r ünï ☃ 𝄞 日本 {} null \u2028"
KEY = "%s %% %(now)s :now $1 ? ' '' \" \\ \\n ünï ☃ 日本"
EAST = timezone(timedelta(hours=5, minutes=30))


def test_what_a_job_carries_arrives_to_the_letter(caller: Caller, clock: Clock) -> None:
    args = encode({"text": ODD, "long": "ü" * 200_000, "n": [1, 2.5, None, True, 2**60]})
    metadata = encode({"trace": ODD, ODD: "key"})
    due_at = datetime(2026, 7, 1, 1, 2, 3, 456_789, tzinfo=EAST)
    caller.begin()
    [answer] = caller.store.enqueue(
        [
            job(
                args=args, metadata=metadata, due_at=due_at, queue="q-1", priority=-7,
                max_attempts=3, timeout_seconds=1.5, tenant="ténant",
                unique=Unique(key=KEY, scope="scope"),
            )
        ],
        on=caller.on,
        now=clock.now,
    )  # fmt: skip
    [same] = caller.store.enqueue(
        [job(args=args, tenant="ténant", unique=Unique(key=KEY, scope="scope"))],
        on=caller.on,
        now=clock.now,
    )
    caller.commit()
    assert (same.id, same.same_args) == (answer.id, True)
    found = caller.store.get(answer.id)
    assert (found.args_json, found.metadata_json) == (args.decode(), metadata.decode())
    assert (found.due_at, found.created_at) == (due_at, clock.now)
    assert (found.queue, found.priority, found.max_attempts) == ("q-1", -7, 3)
    assert (found.timeout_seconds, found.tenant) == (1.5, "ténant")


def test_the_clock_of_the_database_counts_without_now(caller: Caller) -> None:
    before = datetime.now(EAST) - timedelta(seconds=1)
    caller.begin()
    [answer] = caller.store.enqueue([job(delay_seconds=3600)], on=caller.on)
    caller.commit()
    found = caller.store.get(answer.id)
    assert before < found.created_at < before + timedelta(minutes=5)
    assert found.due_at == found.created_at + timedelta(hours=1)


# settle


def test_a_completion_commits_with_the_callers_rows(caller: Caller, clock: Clock) -> None:
    add(caller.store, clock.now, unique=Unique(key="k"))
    claimed = take_one(caller.store, clock.now)
    caller.begin()
    caller.pay()
    result = encode({"said": ODD})
    [answer] = caller.store.settle("w1", [succeed(claimed, result)], on=caller.on, now=clock.now)
    assert answer == LANDED
    assert caller.store.get(claimed.id).state is State.RUNNING, "it was committed by Tenure"
    caller.commit()
    found = caller.store.get(claimed.id)
    assert (found.state, found.result_json, found.finished_at) == (
        State.SUCCEEDED, result.decode(), clock.now,
    )  # fmt: skip
    assert payments(caller) == 1
    assert add(caller.store, clock.now, unique=Unique(key="k"))


@pytest.mark.parametrize("how", ["rollback", "savepoint"])
def test_a_completion_vanishes_with_the_callers_rows(
    caller: Caller, clock: Clock, how: str
) -> None:
    add(caller.store, clock.now)
    claimed = take_one(caller.store, clock.now)
    caller.begin()
    if how == "savepoint":
        caller.rows("delete from payment")
        caller.savepoint()
    caller.pay()
    caller.store.settle("w1", [succeed(claimed)], on=caller.on, now=clock.now)
    if how == "savepoint":
        caller.to_savepoint()
        caller.commit()
    else:
        caller.rollback()
    assert caller.store.get(claimed.id).state is State.RUNNING
    assert payments(caller) == 0
    assert settle(caller.store, clock.now, retry(claimed, ERROR, 0)) == [LANDED]


def test_a_stale_completion_raises_so_that_both_roll_back(caller: Caller, clock: Clock) -> None:
    add(caller.store, clock.now)
    claimed = take_one(caller.store, clock.now)
    caller.store.sweep(now=clock.advance(31))
    for end in (succeed(claimed), fail(claimed, ERROR)):
        caller.begin()
        caller.pay()
        with pytest.raises(LeaseLost, match=f"job {claimed.id} "):
            caller.store.settle("w1", [end], on=caller.on, now=clock.now)
        caller.rollback()
    assert payments(caller) == 0
    assert caller.store.get(claimed.id).state is State.QUEUED


def test_every_other_way_to_end_an_attempt_works_too(caller: Caller, clock: Clock) -> None:
    for _ in range(4):
        add(caller.store, clock.now, max_attempts=2)
    first, second, third, last = take(caller.store, clock.now)
    ends = [
        retry(first, ERROR, 60),
        snooze(second, 30),
        release(third),
        fail(last, encode({"type": "E", "message": ODD})),
    ]
    caller.begin()
    assert caller.store.settle("w1", ends, on=caller.on, now=clock.now) == [LANDED] * 4
    caller.commit()
    states = [caller.store.get(each.id).state for each in (first, second, third, last)]
    assert states == [State.SCHEDULED, State.SCHEDULED, State.QUEUED, State.FAILED]
    assert caller.store.get(first.id).due_at == clock.now + timedelta(seconds=60)
    retried = caller.store.timeline(first.id)[-1]
    assert (retried.kind, retried.at) == ("retried", clock.now)


def test_a_completion_frees_children(caller: Caller, clock: Clock) -> None:
    parent = add(caller.store, clock.now)
    later = clock.now + timedelta(hours=1)
    now = add(caller.store, clock.now, parents=(parent,))
    due = add(caller.store, clock.now, parents=(parent,), due_at=later)
    claimed = take_one(caller.store, clock.now)
    caller.begin()
    caller.store.settle("w1", [succeed(claimed)], on=caller.on, now=clock.now)
    caller.commit()
    assert caller.store.get(now).state is State.QUEUED
    assert caller.store.get(due).due_at == later


def test_data_that_the_database_refuses_is_an_error_of_ours(caller: Caller, clock: Clock) -> None:
    add(caller.store, clock.now)
    claimed = take_one(caller.store, clock.now)
    caller.begin()
    with pytest.raises(InvalidInput, match="refused"):
        caller.store.settle(
            "w1", [succeed(claimed, Json(b"not json"))], on=caller.on, now=clock.now
        )
    caller.rollback()
    assert caller.store.get(claimed.id).state is State.RUNNING


@rule("read-back-not-in-callers")
def test_a_transaction_that_is_run_again_after_its_commit_is_undone(
    caller: Caller, clock: Clock
) -> None:
    """After a COMMIT without an answer the caller may run the transaction again. The first one
    counts; LANDED would let the caller's rows be committed a second time.

    Seen failing with the look at what has landed allowed there: the payment was there twice.
    """
    claimed = running(caller.store, clock.now)
    caller.begin()
    caller.pay()
    caller.store.settle("w1", [succeed(claimed)], on=caller.on, now=clock.now)
    caller.commit()
    caller.begin()
    caller.pay()
    with pytest.raises(LeaseLost):
        caller.store.settle("w1", [succeed(claimed)], on=caller.on, now=clock.now)
    caller.rollback()
    assert payments(caller) == 1


@named("psycopg", "psycopg-async", "sqlite3")
@pytest.mark.parametrize("zombie", RUNNING + FINISHED, ids=lambda make: make.__name__)
def test_a_zombie_settles_nothing(caller: Caller, url: str, clock: Clock, zombie: Raise) -> None:
    """However its attempt ended, its settlement raises, so that the caller's own rows are undone,
    too."""
    with Plain(url) as plain:
        worker, presented = zombie(caller.store, clock, plain, running)
        before = plain.everything()
        for outcome, settlement_of in SETTLEMENTS.items():
            caller.begin()
            caller.pay()
            with pytest.raises(LeaseLost, match=f"job {presented.id}"):
                caller.store.settle(worker, [settlement_of(presented)], on=caller.on, now=clock.now)
            caller.rollback()
            assert (outcome, plain.everything()) == (outcome, before)
        assert payments(caller) == 0
        plain.wipe()  # no audit of a job whose lease row was deleted


@named("psycopg", "psycopg-async", "sqlite3")
def test_a_tenants_store_stamps_in_the_callers_transaction_too(
    caller: Caller, clock: Clock
) -> None:
    caller.begin()
    [answer] = caller.store.for_tenant("t").enqueue([job()], on=caller.on, now=clock.now)
    caller.commit()
    assert caller.store.get(answer.id).tenant == "t"


@named("psycopg", "psycopg-async", "sqlite3")
def test_the_callers_row_factory_does_not_matter(caller: Caller, clock: Clock) -> None:
    def as_dict(cursor: sqlite3.Cursor, row: tuple[object, ...]) -> dict[str, object]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    caller.on.row_factory = as_dict if caller.driver == "sqlite3" else psycopg.rows.dict_row
    caller.begin()
    [answer] = caller.store.enqueue([job(unique=Unique(key="k"))], on=caller.on, now=clock.now)
    caller.commit()
    assert ids_of(take(caller.store, clock.now)) == [answer.id]
