"""Replace beside a claim that is under way, on PostgreSQL: each as a fixed order of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenure.rules.codec import encode
from tenure.rules.job import Enqueued, NewJob, Replace, Unique
from tenure.rules.lifecycle import succeed
from tenure.store import LANDED, Store
from tenure.store.jobs.claim import claim
from tenure.store.jobs.settle import settle as settle_jobs
from tenure.store.postgres.tx import PostgresTx
from tests.contract.conftest import Begin, BlockedBy
from tests.support.races import Background
from tests.support.stores import Clock
from tests.support.work import TASK, add, settle, take_one

UNIQUE = Unique(key="k", on_conflict=Replace())
NEW = NewJob(task=TASK, args=encode({"n": 2}), unique=UNIQUE)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_replacement_waits_for_a_claim_in_flight(
    pg: Store, clock: Clock, begin: Begin, blocked_by: BlockedBy, ends: str
) -> None:
    """If the claim lands, its job is not changed; if it is undone, the job is."""
    id = add(pg, clock.now, args=encode({"n": 1}), unique=UNIQUE)
    first = begin()
    [lease] = first.do(claim, "w1", {"default": 1}, now=clock.now)
    replacing = Background(lambda: pg.enqueue([NEW], now=clock.now))
    blocked_by(first)
    getattr(first, ends)()
    undone = ends == "rollback"
    [answer] = replacing.result()
    assert answer == Enqueued(id, created=False, same_args=undone, replaced=undone)
    if undone:
        assert take_one(pg, clock.now).args == '{"n":2}'
    else:
        assert settle(pg, clock.now, succeed(lease.jobs[0])) == [LANDED]
        assert pg.get(id).args == {"n": 1}


def test_a_holder_that_ends_meanwhile_lets_the_new_job_in(
    pg: Store, clock: Clock, begin: Begin, blocked_by: BlockedBy
) -> None:
    """The new arguments are not lost."""

    id = add(pg, clock.now, args=encode({"n": 1}), unique=UNIQUE)
    held = take_one(pg, clock.now)
    first = begin()
    first.do(settle_jobs, "w1", [succeed(held)], now=clock.now)
    replacing = Background(lambda: pg.enqueue([NEW], now=clock.now))
    blocked_by(first)
    first.commit()
    [answer] = replacing.result()
    assert answer.created
    assert answer.id != id
    assert take_one(pg, clock.now).args == '{"n":2}'


def watch(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[str], None] = lambda _: None
) -> list[tuple[object, str]]:
    """Which transaction runs which statement? `before` is called before each one."""
    seen: list[tuple[object, str]] = []
    real = PostgresTx.fetch

    async def fetch(tx: PostgresTx, statement: str, **params: object) -> list[Any]:
        seen.append((tx, statement))
        before(statement)
        return await real(tx, statement, **params)

    monkeypatch.setattr(PostgresTx, "fetch", fetch)
    return seen


def test_no_key_is_taken_with_jobs_locked(
    pg: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen failing: a batch had a job locked and waited for a key, whose new owner waited for the
    job."""
    waits = add(pg, clock.now, priority=9, unique=Unique(key="j"))
    ends = add(pg, clock.now, args=encode({"n": 1}), unique=UNIQUE)
    held = take_one(pg, clock.now)
    assert held.id == ends
    locked: list[str] = []

    def end(statement: str) -> None:
        if statement == "lock_job":
            locked.append(statement)
            if len(locked) == 2:
                settle(pg, clock.now, succeed(held))

    seen = watch(monkeypatch, end)
    other = NewJob(task=TASK, args=encode(3), unique=Unique(key="j", on_conflict=Replace()))
    new, replaced = pg.enqueue([NEW, other], now=clock.now)
    assert new.created
    assert replaced == Enqueued(waits, created=False, replaced=True)
    names: dict[object, list[str]] = {}
    for tx, statement in seen:
        names.setdefault(tx, []).append(statement)
    orders = [done for done in names.values() if "lock_job" in done]
    assert len(orders) == 2, "it has begun again"
    assert all("take_keys" not in done[done.index("lock_job") :] for done in orders)


def test_no_key_is_taken_out_of_order(
    pg: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is given back between the refusal and the look is not taken behind a later one.

    Seen failing: two such calls waited for each other.
    """
    add(pg, clock.now, unique=Unique(key="a"))
    held = take_one(pg, clock.now)
    given_back: list[bool] = []

    def give_back(statement: str) -> None:
        if statement == "key_holders" and not given_back:
            given_back.append(True)
            settle(pg, clock.now, succeed(held))

    seen = watch(monkeypatch, give_back)
    jobs = [NewJob(task=TASK, unique=Unique(key=key)) for key in "ab"]
    answers = pg.enqueue(jobs, now=clock.now)
    assert [answer.created for answer in answers] == [True, True]
    first, second = (tx for tx, statement in seen if statement == "take_keys")
    assert first is not second
