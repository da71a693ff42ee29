"""Replace beside a claim that is under way, on PostgreSQL: each as a fixed order of events."""

from __future__ import annotations

import pytest

from tenure.rules.codec import encode
from tenure.rules.job import Enqueued, NewJob, Replace, Unique
from tenure.rules.lifecycle import succeed
from tenure.store import LANDED, Store
from tenure.store.jobs.claim import claim
from tenure.store.jobs.settle import settle as settle_jobs
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
