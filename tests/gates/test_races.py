"""Races at gates, as fixed orders of events: transactions are held open before their COMMIT."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from tenure.rules.claim import Claimed
from tenure.rules.gates import Limits
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import succeed
from tenure.store import Store, open_store
from tenure.store.postgres.floors import LineFloors
from tests.support.audit import audit
from tests.support.patience import until

GATES = {"one": Limits(max_running=1), "each": Limits(max_running=1, keyed=True)}


@pytest.fixture
def store(pg_migrated_url: str) -> Iterator[Store]:
    """A store with two gates, on PostgreSQL: SQLite has one writer."""
    with open_store(pg_migrated_url) as opened:
        opened.declare_gates(GATES)
        yield opened
    audit(pg_migrated_url)


@pytest.fixture
def other(pg_migrated_url: str) -> Iterator[psycopg.Connection]:
    """Somebody else's connection."""
    with psycopg.connect(pg_migrated_url) as connection:
        yield connection


def add(store: Store, gate: str | None, *, on: object | None = None) -> int:
    """One job; its key at the gate is always the same."""
    key = None if gate is None else "k"
    [added] = store.enqueue([NewJob(task="t", gate=gate, gate_key=key)], on=on)
    return added.id


def take(store: Store) -> list[Claimed]:
    """All that can be had."""
    return [job for lease in store.claim("w1", {"default": 100}) for job in lease.jobs]


def somebody_waits_for(other: psycopg.Connection) -> bool:
    """Does somebody wait for a lock that this connection has?"""
    waits = "select from pg_locks where pg_backend_pid() = any (pg_blocking_pids(pid))"
    return other.execute(waits).fetchone() is not None


@pytest.mark.parametrize("gate", GATES)
def test_a_ticket_that_comes_while_a_place_is_being_freed_is_not_forgotten(
    store: Store, other: psycopg.Connection, gate: str
) -> None:
    """The settlement is not committed when the ticket comes, and a claim finds the gate full.

    If the settlement wrote a turn only when it saw somebody wait, nobody would look any more.
    """
    add(store, gate)
    [holder] = take(store)
    store.settle("w1", [succeed(holder, None, 0.1)], on=other)
    late = add(store, gate)
    assert take(store) == []
    other.commit()
    assert [job.id for job in take(store)] == [late]


@pytest.mark.parametrize("gate", GATES)
def test_a_settlement_that_is_rolled_back_frees_nothing(
    store: Store, other: psycopg.Connection, gate: str
) -> None:
    add(store, gate)
    late = add(store, gate)
    [holder] = take(store)
    store.settle("w1", [succeed(holder, None, 0.1)], on=other)
    other.rollback()
    assert take(store) == []
    store.settle("w1", [succeed(holder, None, 0.1)])
    assert [job.id for job in take(store)] == [late]


@pytest.mark.parametrize("gate", GATES)
def test_an_enqueue_that_is_not_committed_holds_up_nobody(
    store: Store, other: psycopg.Connection, gate: str
) -> None:
    open_one = add(store, gate, on=other)
    first = add(store, gate)
    [holder] = take(store)
    assert holder.id == first
    store.settle("w1", [succeed(holder, None, 0.1)])
    other.commit()
    assert [job.id for job in take(store)] == [open_one]


def test_a_ticket_below_where_a_claim_left_off_is_found_at_once(
    store: Store, other: psycopg.Connection
) -> None:
    """Its position was drawn before those of many jobs that have passed; it is committed later."""
    store.declare_gates({"fair": Limits()})
    late = add(store, "fair", on=other)
    store.enqueue([NewJob(task="t", gate="fair", gate_key="k")] * LineFloors.MANY)
    assert len(take(store)) == LineFloors.MANY
    other.commit()
    assert [job.id for job in take(store)] == [late]


def test_a_gate_that_somebody_has_locked_is_left_for_later(
    store: Store, other: psycopg.Connection
) -> None:
    """Other gates, and jobs without one, go on."""
    closed, free, plain = add(store, "one"), add(store, "each"), add(store, None)
    other.execute("select from tenure.gate where name = 'one' for update")
    assert {job.id for job in take(store) + take(store)} == {free, plain}
    other.commit()
    assert [job.id for job in take(store)] == [closed]


def test_many_claims_at_once_keep_the_limit(store: Store, pg_migrated_url: str) -> None:
    store.declare_gates({"three": Limits(max_running=3)})
    store.enqueue([NewJob(task="t", gate="three")] * 50)
    got: list[Claimed] = []
    barrier = threading.Barrier(8)

    def claim(name: str) -> None:
        with open_store(pg_migrated_url) as mine:
            barrier.wait()
            for _ in range(10):
                for lease in mine.claim(name, {"default": 2}):
                    got.extend(lease.jobs)

    threads = [threading.Thread(target=claim, args=(f"w{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len({job.id for job in got}) == 3


def test_what_is_set_by_hand_while_a_worker_starts_stays(
    store: Store, other: psycopg.Connection
) -> None:
    """The worker has read what was declared before the operator commits."""
    other.execute("update tenure.gate set max_running = 3, by_hand = true where name = 'one'")
    starting = threading.Thread(target=store.declare_gates, args=({"one": Limits(max_running=20)},))
    starting.start()
    until(lambda: somebody_waits_for(other), "the worker waits for the gate")
    other.commit()
    starting.join()
    [seen] = store.gates(name="one")
    assert (seen.limits.max_running, seen.by_hand) == (3, True)
    assert seen.declared == Limits(max_running=20)


def test_no_claim_at_a_gate_is_older_than_a_pause(store: Store, other: psycopg.Connection) -> None:
    """`pause` waits for a claim that looked whether the queue is paused, and took the lock."""
    add(store, "one")
    other.execute(
        "with locked as (insert into tenure.gated select * from tenure.gated where false)"
        " select from tenure.queue"
    )
    paused = threading.Event()

    def pause() -> None:
        store.pause("default")
        paused.set()

    thread = threading.Thread(target=pause)
    thread.start()
    assert not paused.wait(0.3)
    other.commit()
    thread.join()
    assert paused.is_set()
    assert take(store) == []
