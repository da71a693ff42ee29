"""A call that is refused leaves nothing in the caller's transaction, which goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenure.errors import InvalidInput, JobNotFound, KeyTaken, LeaseLost
from tenure.rules.graph import NewNode, NewWorkflow
from tenure.rules.job import Json, State, Unique
from tenure.rules.lifecycle import fail, succeed
from tests.borrowing.libraries import Caller, named
from tests.support.stores import Clock
from tests.support.work import ERROR, add, job, take, take_one


def refused(caller: Caller, error: type[Exception], call: Callable[[], object]) -> None:
    """The caller catches the error, and commits what is theirs."""
    caller.begin()
    caller.pay()
    with pytest.raises(error):
        call()
    caller.pay()
    caller.commit()
    caller.begin()
    assert [tuple(row) for row in caller.rows("select count(*) from payment")] == [(2,)]
    caller.rollback()


def test_a_refused_enqueue(caller: Caller, clock: Clock) -> None:
    jobs = [job(unique=Unique(key="k")), job(parents=(999_999,))]
    refused(caller, JobNotFound, lambda: caller.store.enqueue(jobs, on=caller.on, now=clock.now))
    assert caller.store.list_jobs().jobs == ()
    assert add(caller.store, clock.now, unique=Unique(key="k"))


def test_a_refused_workflow(caller: Caller, clock: Clock) -> None:
    holder = add(caller.store, clock.now, unique=Unique(key="held"))

    def flow(*keys: str) -> NewWorkflow:
        nodes = [NewNode(name=key, job=job(unique=Unique(key=key))) for key in keys]
        return NewWorkflow(name="f", key="today", nodes=tuple(nodes))

    refused(
        caller,
        KeyTaken,
        lambda: caller.store.enqueue_workflow(flow("free", "held"), on=caller.on, now=clock.now),
    )
    assert [each.id for each in caller.store.list_jobs().jobs] == [holder]
    assert caller.store.list_workflows() == []
    assert caller.store.enqueue_workflow(flow("free"), now=clock.now).created


@pytest.mark.parametrize("end", [succeed, lambda claimed: fail(claimed, ERROR)])
def test_a_stale_settlement_beside_a_good_one(caller: Caller, clock: Clock, end: Any) -> None:
    add(caller.store, clock.now)
    stale = take_one(caller.store, clock.now, lease_seconds=1)
    parent = add(caller.store, clock.now, unique=Unique(key="k"), queue="other")
    child = add(caller.store, clock.now, parents=(parent,))
    good = take_one(caller.store, clock.now, queue="other")
    caller.store.sweep(now=clock.advance(2))
    refused(
        caller,
        LeaseLost,
        lambda: caller.store.settle("w1", [end(good), end(stale)], on=caller.on, now=clock.now),
    )
    states = [caller.store.get(id).state for id in (stale.id, parent, child)]
    assert states == [State.QUEUED, State.RUNNING, State.WAITING]


def test_data_that_the_database_refuses(caller: Caller, clock: Clock) -> None:
    add(caller.store, clock.now)
    claimed = take_one(caller.store, clock.now)
    end = succeed(claimed, Json(b"not json"))
    refused(
        caller,
        InvalidInput,
        lambda: caller.store.settle("w1", [end], on=caller.on, now=clock.now),
    )
    assert caller.store.get(claimed.id).state is State.RUNNING


def test_what_came_before_in_the_same_transaction_stays(caller: Caller, clock: Clock) -> None:
    caller.begin()
    caller.savepoint()
    caller.pay()
    [first] = caller.store.enqueue([job()], on=caller.on, now=clock.now)
    with pytest.raises(JobNotFound):
        caller.store.enqueue([job(parents=(999_999,))], on=caller.on, now=clock.now)
    caller.release()
    [second, third] = caller.store.enqueue([job()] * 2, on=caller.on, now=clock.now)
    caller.commit()
    assert [each.id for each in take(caller.store, clock.now)] == [first.id, second.id, third.id]


@named("psycopg", "asyncpg", "Session-psycopg2")
def test_one_job_without_parents_needs_no_savepoint(caller: Caller, clock: Clock) -> None:
    """PostgreSQL slows down when a transaction has many savepoints in which it writes."""
    caller.begin()
    caller.pay()
    for each in (job(), job(unique=Unique(key="k")), job(gate="door")):
        caller.store.enqueue([each], on=caller.on, now=clock.now)
    [(several,)] = caller.rows("select count(distinct xmin::text) from tenure.job")
    [(ours,)] = caller.rows("select count(*) from tenure.job where xmin::text = "
                            "(select xmin::text from payment limit 1)")  # fmt: skip
    caller.commit()
    assert (several, ours) == (1, 3)
