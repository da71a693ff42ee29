"""Changes of many jobs whose COMMIT got no reply: the repeat changes nothing twice, and tells the
same."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.rules.job import State, Unique
from tenure.rules.lifecycle import fail
from tenure.store import Changes, Store
from tests.faults.test_unanswered import landed_or_not
from tests.support.audit import audit
from tests.support.proxy import Proxy
from tests.support.stores import Clock
from tests.support.work import ERROR, add, settle, take

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "cancel_many": ({"reason": "enough"}, "insert into tenure.history"),
    "hold_many": ({}, "tenure.event"),
    "unhold_many": ({}, "tenure.event"),
    "move_many": ({"priority": 7}, "tenure.event"),
    "replay_many": ({}, "tenure.event"),
    "delete_many": ({}, "delete from tenure.history"),
}


def lay(store: Store, clock: Clock, call: str) -> tuple[list[int], Changes]:
    """Jobs, and what the call tells of them."""
    now = clock.now
    if call in ("replay_many", "delete_many"):
        ids = [add(store, now, unique=Unique(key="a")), add(store, now)]
        settle(store, now, *(fail(held, ERROR, "error") for held in take(store, now)))
        live = add(store, now)
        if call == "replay_many":
            return [*ids, live], Changes(tuple(ids), {live: "already live"})
        message = f"job {live} is not finished; cancel it first"
        return [*ids, live], Changes(tuple(ids), {}, {live: message})
    running = add(store, now)
    take(store, now)
    ids = [add(store, now), add(store, now, delay_seconds=60)]
    if call == "cancel_many":
        return [running, *ids], Changes((running, *ids), {}, {}, (running,))
    if call == "unhold_many":
        store.hold_many(ids, now=now)
        return [running, *ids], Changes(tuple(ids), {running: "not held"})
    if call == "move_many":
        return [running, *ids], Changes(tuple(ids), {running: "running"})
    return [running, *ids], Changes((running, *ids))


@landed_or_not
@pytest.mark.parametrize("call", CASES)
def test_many_jobs_are_changed_once(
    far: Store, near: Store, proxy: Proxy, clock: Clock, pg_migrated_url: str,
    call: str, landed: bool,
) -> None:  # fmt: skip
    options, statement = CASES[call]
    ids, told = lay(near, clock, call)
    tokens = {id: near.get(id).token for id in ids}
    far.paused_queues()
    cut = proxy.cut_commit(statement, landed=landed)

    assert getattr(far, call)(ids, **options, now=clock.now) == told

    assert cut.done
    if call != "delete_many":
        for id in told.changed:
            job = near.get(id)
            kinds = [event.kind for event in near.timeline(id)]
            assert all(kinds.count(kind) == 1 for kind in ("held", "moved", "replayed", "unheld")
                       if kind in kinds)  # fmt: skip
            gets_ticket = call in ("unhold_many", "move_many", "replay_many")
            assert job.token == tokens[id] + gets_ticket
            if call == "cancel_many" and id not in told.asked:
                assert (job.state, job.reason) == (State.CANCELLED, "enough")
    audit(pg_migrated_url)
