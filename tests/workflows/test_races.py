"""Races in workflows, as fixed orders of events and as many threads that settle at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import psycopg
import pytest

from tenure.errors import KeyTaken
from tenure.rules.claim import Claimed
from tenure.rules.graph import OnFailure, Outcome
from tenure.rules.job import Json, State
from tenure.rules.lifecycle import succeed
from tenure.store import LANDED, Store, open_store
from tenure.store.jobs import settle as settling
from tenure.store.jobs.settle import BUSY
from tenure.store.postgres.session import TIMEOUT_TRIES
from tenure.store.postgres.tx import PostgresTx
from tenure.store.session import Tx
from tenure.store.workflows import stop
from tenure.store.workflows.stop import stop_workflow
from tests.support.audit import audit
from tests.support.flows import failing, flow, more, states
from tests.support.patience import PATIENCE_SECONDS
from tests.support.work import job


@pytest.fixture
def store(pg_migrated_url: str) -> Iterator[Store]:
    """On PostgreSQL: SQLite has one writer."""
    with open_store(pg_migrated_url) as opened:
        yield opened
    audit(pg_migrated_url)


@pytest.fixture
def other(pg_migrated_url: str) -> Iterator[psycopg.Connection]:
    """Somebody else's connection, whose transaction is held open."""
    with psycopg.connect(pg_migrated_url) as connection:
        yield connection


def take(store: Store, worker: str = "w1", most: int = 100) -> dict[str, Claimed]:
    """All that can be had, by the name of the node."""
    return {
        job.task.removeprefix("app."): job
        for lease in store.claim(worker, {"default": most})
        for job in lease.jobs
    }


class Late(threading.Thread):
    """Does something that has to wait for somebody."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._act = act
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._act()
        except BaseException as error:  # noqa: BLE001 - told by `end`
            self.error = error

    def end(self) -> None:
        """It must come to its end now."""
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def waits_for_a_lock(other: psycopg.Connection, url: str) -> None:
    """Return when somebody waits for this transaction."""
    with psycopg.connect(url, autocommit=True) as looking:
        while not looking.execute(
            "select 1 from pg_stat_activity where %s = any (pg_blocking_pids(pid))",
            [other.info.backend_pid],
        ).fetchone():
            pass


def test_the_last_two_parents_end_at_the_same_instant(
    store: Store, other: psycopg.Connection, pg_migrated_url: str
) -> None:
    """Neither sees the other's end before it has locked the child: it is freed once, not never."""
    run = store.enqueue_workflow(flow({"a": (), "b": (), "c": ("a", "b")}))
    held = take(store)
    store.settle("w1", [succeed(held["a"])], on=other)
    late = Late(lambda: store.settle("w1", [succeed(held["b"])]))
    waits_for_a_lock(other, pg_migrated_url)
    other.commit()
    late.end()
    child = take(store)
    assert list(child) == ["c"]
    assert take(store) == {}
    store.settle("w1", [succeed(child["c"])])
    assert store.get_workflow(run.id).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("finaliser", [None, "fin"])
def test_the_last_two_nodes_end_at_the_same_instant(
    store: Store, other: psycopg.Connection, pg_migrated_url: str, finaliser: str | None
) -> None:
    run = store.enqueue_workflow(flow({"a": (), "b": ()}, finaliser=finaliser))
    held = take(store)
    store.settle("w1", [succeed(held["a"])], on=other)
    late = Late(lambda: store.settle("w1", [succeed(held["b"])]))
    waits_for_a_lock(other, pg_migrated_url)
    other.commit()
    late.end()
    for final in take(store).values():
        store.settle("w1", [succeed(final)])
    seen = store.get_workflow(run.id)
    assert (seen.outcome, seen.finished) == (Outcome.SUCCEEDED, 2 + (finaliser is not None))


def test_settlements_of_inner_nodes_do_not_wait_for_each_other(
    store: Store, other: psycopg.Connection
) -> None:
    """A transaction that has ended a node, and is not committed, holds up no other branch."""
    parents: dict[str, tuple[str, ...]] = {"a": (), "b": (), "after-a": ("a",), "after-b": ("b",)}
    store.enqueue_workflow(flow({**parents, "join": ("after-a", "after-b")}))
    held = take(store)
    store.settle("w1", [succeed(held["a"])], on=other)
    [answer] = store.settle("w1", [succeed(held["b"])])
    assert answer.landed
    assert list(take(store)) == ["after-b"]
    other.commit()


@pytest.mark.parametrize("patient", [True, False])
@pytest.mark.parametrize("locked", ["child", "grandchild", "workflow"])
def test_who_needs_a_row_that_somebody_sits_on_holds_up_nobody_else(
    other: psycopg.Connection, pg_migrated_url: str, locked: str, patient: bool
) -> None:
    """Its answer is that it is busy, and it lands when it is sent again."""
    with open_store(pg_migrated_url, give_up_seconds=0.2) as store:
        parents: dict[str, tuple[str, ...]] = {"a": (), "b": (), "c": ("a", "b"), "d": ("c",)}
        run = store.enqueue_workflow(flow(parents))
        others = [f"x{n}" for n in range(9)]
        store.enqueue([job(task=f"app.{name}") for name in others])
        held = take(store)
        end = succeed if locked == "child" else failing
        if locked == "grandchild":
            store.settle("w1", [succeed(held["a"])])
            other.execute("select from tenure.job where id = %s for update", [run.nodes[3]])
        elif locked == "workflow":
            other.execute("select from tenure.workflow where id = %s for update", [run.id])
        else:
            store.settle("w1", [succeed(held["a"])], on=other)
        batch = [succeed(held[name]) for name in others]
        batch.insert(4, end(held["b"]))
        answers = store.settle("w1", batch, patient=patient)
        assert answers == [LANDED] * 4 + [BUSY] + [LANDED] * 5
        other.rollback()
        assert store.settle("w1", batch) == [LANDED] * 10


def test_a_value_that_is_refused_beside_a_locked_row_holds_up_nobody_else(
    other: psycopg.Connection, pg_migrated_url: str
) -> None:
    with open_store(pg_migrated_url, give_up_seconds=0.2) as store:
        with psycopg.connect(pg_migrated_url, autocommit=True) as plain:
            plain.execute("alter table tenure.history add check (result::text not like '%bad%')")
        store.enqueue([job(task=f"app.{name}") for name in ("a", "b", "c")])
        held = take(store)
        other.execute("select from tenure.job where id = %s for update", [held["a"].id])
        batch = [succeed(held["a"]), succeed(held["b"], Json(b'"bad"')), succeed(held["c"])]
        busy, refused, landed = store.settle("w1", batch)
        other.rollback()
        assert (busy, landed) == (BUSY, LANDED)
        assert "refused" in str(refused.error)


def count_tries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many transactions a settlement takes."""
    tries: list[int] = []
    run = settling.run_finishing

    def counted(*args: Any) -> Any:
        tries.append(1)
        return run(*args)

    monkeypatch.setattr(settling, "run_finishing", counted)
    return tries


def test_all_who_need_a_locked_workflow_step_aside_together(
    other: psycopg.Connection, pg_migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To wait for its row once for each of them would hold up all others."""
    with open_store(pg_migrated_url, give_up_seconds=0.2) as store:
        names = [f"n{number}" for number in range(40)]
        run = store.enqueue_workflow(flow(dict.fromkeys(names, ())))
        store.enqueue([job(task="app.x")])
        held = take(store)
        other.execute("select from tenure.workflow where id = %s for update", [run.id])
        tries = count_tries(monkeypatch)
        ends = [(succeed if n % 2 else failing)(held[name]) for n, name in enumerate(names)]
        batch = [*ends, succeed(held["x"])]
        assert store.settle("w1", batch, patient=False) == [BUSY] * 40 + [LANDED]
        assert len(tries) == 1
        other.rollback()
        assert store.settle("w1", batch) == [LANDED] * 41


@pytest.mark.slow
def test_who_meets_locks_again_and_again_leaves_the_rest_for_later(
    other: psycopg.Connection, pg_migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them ends a child, and so needs the same grandchild."""
    with open_store(pg_migrated_url, give_up_seconds=0.2) as store:
        above = store.enqueue([job(task=f"app.n{number}") for number in range(40)])
        between = store.enqueue([job(parents=(parent.id,)) for parent in above])
        [last] = store.enqueue([job(parents=tuple(child.id for child in between))])
        held = take(store)
        other.execute("select from tenure.job where id = %s for update", [last.id])
        tries = count_tries(monkeypatch)
        batch = [failing(each) for each in held.values()]
        assert store.settle("w1", batch, patient=False) == [BUSY] * 40
        assert len(tries) == settling.MAX_LOCKED
        other.rollback()
        assert store.settle("w1", batch) == [LANDED] * 40


def test_a_waiting_node_is_cancelled_while_its_parent_ends(
    store: Store, other: psycopg.Connection, pg_migrated_url: str
) -> None:
    """The end of the workflow must not wait for a parent that is already over."""
    run = store.enqueue_workflow(flow({"a": (), "b": ("a",)}))
    held = take(store)
    store.settle("w1", [succeed(held["a"])], on=other)
    late = Late(lambda: store.cancel(run.nodes[1]))
    waits_for_a_lock(other, pg_migrated_url)
    other.commit()
    late.end()
    assert states(store, run.id) == {"a": State.SUCCEEDED, "b": State.CANCELLED}
    assert store.get_workflow(run.id).outcome is Outcome.CANCELLED


def test_a_workflow_is_cancelled_while_a_node_ends_and_frees_others(
    store: Store, other: psycopg.Connection, pg_migrated_url: str
) -> None:
    run = store.enqueue_workflow(flow({"a": (), "b": ("a",), "c": ("b",)}))
    held = take(store)
    store.settle("w1", [succeed(held["a"])], on=other)
    late = Late(lambda: store.cancel_workflow(run.id))
    waits_for_a_lock(other, pg_migrated_url)
    other.commit()
    late.end()
    assert take(store) == {}
    assert store.get_workflow(run.id).outcome is Outcome.CANCELLED


def test_a_workflow_that_cannot_be_stopped_now_holds_up_no_other(
    other: psycopg.Connection, pg_migrated_url: str
) -> None:
    """Workers have died between a failure and the stop that follows it."""
    with open_store(pg_migrated_url, give_up_seconds=0.2) as store:
        runs = [
            store.enqueue_workflow(flow({"a": (), "b": ()}, on_failure=OnFailure.STOP))
            for _ in range(3)
        ]
        with psycopg.connect(pg_migrated_url, autocommit=True) as plain:
            plain.execute("update tenure.workflow set failed = true, stopping = true")
        other.execute("select from tenure.job where id = %s for update", [runs[0].nodes[1]])
        assert store.heal_workflows() == 2
        cancelled = {"a": State.CANCELLED, "b": State.CANCELLED}
        assert [states(store, run.id) == cancelled for run in runs] == [False, True, True]
        other.rollback()
        assert store.heal_workflows() == 1
        assert states(store, runs[0].id) == cancelled


def test_a_stop_that_has_to_wait_is_left_to_others_and_not_begun_by_every_failure(
    other: psycopg.Connection, pg_migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[int] = []
    waits: list[int] = []

    async def counted(tx: Tx, id: int, now: datetime | None) -> None:
        stops.append(id)
        await stop_workflow(tx, id, now)

    async def briefly(tx: PostgresTx) -> None:
        waits.append(1)
        await wait_briefly(tx)

    wait_briefly = PostgresTx.wait_briefly
    monkeypatch.setattr(PostgresTx, "wait_briefly", briefly)
    monkeypatch.setattr(stop, "stop_workflow", counted)
    with open_store(pg_migrated_url) as store:
        parents = dict.fromkeys("abcd", ())
        run = store.enqueue_workflow(flow(parents, on_failure=OnFailure.STOP))
        held = take(store)
        other.execute("select from tenure.job where id = %s for update", [run.nodes[3]])
        for name in "abc":
            assert store.settle("w1", [failing(held[name])]) == [LANDED]
        assert stops == [run.id] * TIMEOUT_TRIES
        assert len(waits) == len(stops)
        other.rollback()
        assert store.heal_workflows() == 1
        assert store.extend("w1", {held["d"].lease_id: []}).cancelled


def test_a_replay_whose_key_is_being_taken_says_so(
    store: Store, other: psycopg.Connection, pg_migrated_url: str
) -> None:
    """It has looked before the other one commits, and learns from the index that it was late."""
    keyed = flow({"a": ()}, key="today")
    run = store.enqueue_workflow(keyed)
    store.settle("w1", [succeed(take(store)["a"])])
    taker = store.enqueue_workflow(keyed, on=other)
    late = Late(lambda: store.replay(run.nodes[0]))
    waits_for_a_lock(other, pg_migrated_url)
    other.commit()
    with pytest.raises(KeyTaken, match=f"workflow {taker.id} holds the key"):
        late.end()
    assert store.get_workflow(run.id).outcome is Outcome.SUCCEEDED
    assert store.get(run.nodes[0]).state is State.SUCCEEDED


@pytest.mark.parametrize("act", ["cancel_workflow", "pause_workflow"])
def test_nodes_that_are_added_at_that_moment_are_not_forgotten(
    store: Store, other: psycopg.Connection, pg_migrated_url: str, act: str
) -> None:
    """Who adds has the adding job locked; who cancels looks again once it has that lock."""
    run = store.enqueue_workflow(flow({"a": (), "b": ("a",)}))
    held = take(store)
    other.execute("select 1 from tenure.job where id = %s for update", [held["a"].id])
    late = Late(lambda: getattr(store, act)(run.id))
    waits_for_a_lock(other, pg_migrated_url)
    other.commit()
    late.end()
    grown = store.grow_workflow("w1", held["a"], [more("x")])
    if act == "cancel_workflow":
        assert grown is None
    assert take(store) == {}
    store.settle("w1", [succeed(held["a"])])
    if act == "pause_workflow":
        store.resume_workflow(run.id)
    while held := take(store):
        store.settle("w1", [succeed(job) for job in held.values()])
    assert store.get_workflow(run.id).outcome is not None


@pytest.mark.parametrize("on_failure", OnFailure)
def test_many_workers_settle_one_wide_workflow(url: str, on_failure: OnFailure) -> None:
    """Four threads settle in small batches, and one node fails: all ends once."""
    width = 120
    parents: dict[str, tuple[str, ...]] = {f"n{n}": () for n in range(width)}
    parents |= {f"m{n}": (f"n{n}", f"n{(n + 1) % width}") for n in range(width)}
    with open_store(url) as store:
        run = store.enqueue_workflow(
            flow({**parents, "join": tuple(f"m{n}" for n in range(width))}, finaliser="fin",
                 on_failure=on_failure)
        )  # fmt: skip
        ran: list[str] = []

        def work(worker: str) -> None:
            while store.get_workflow(run.id).outcome is None:
                held = take(store, worker, 3)
                ran.extend(held)
                ends = [
                    failing(job) if name == "n7" else succeed(job) for name, job in held.items()
                ]
                if ends:
                    store.settle(worker, ends, done_leases=sorted({end.lease for end in ends}))

        threads = [Late(lambda n=n: work(f"w{n}")) for n in range(4)]  # type: ignore[misc]
        for thread in threads:
            thread.end()
        seen = store.get_workflow(run.id)
        assert len(ran) == len(set(ran))
        assert ran[-1] == "fin"
        assert (seen.outcome, seen.finished) == (Outcome.FAILED, 2 * width + 2)
        assert states(store, run.id)["join"] is not State.SUCCEEDED
