"""The happy path, and the end of a store, in every style."""

import asyncio

import pytest

from tenure.errors import TenureError
from tenure.rules.codec import encode
from tenure.rules.job import NewJob, State
from tenure.rules.lifecycle import succeed
from tenure.store import LANDED, Store, open_async_store, open_store
from tests.support.stores import Clock
from tests.support.work import job


def test_a_job_goes_from_enqueue_to_history(store: Store, clock: Clock) -> None:
    [added] = store.enqueue([NewJob(task="app.send", args=encode({"to": "me"}))], now=clock.now)
    [lease] = store.claim("w1", {"default": 10}, now=clock.advance(1))
    [claimed] = lease.jobs
    assert (claimed.id, claimed.token, claimed.args) == (added.id, 1, '{"to":"me"}')
    answers = store.settle(
        "w1", [succeed(claimed, encode({"ok": True}))], done_leases=[lease.id], now=clock.advance(1)
    )
    assert answers == [LANDED]
    finished = store.get(added.id, now=clock.now)
    assert (finished.state, finished.result_json, finished.attempts) == (
        State.SUCCEEDED,
        '{"ok":true}',
        1,
    )
    assert finished.finished_at == clock.now
    assert [event.kind for event in store.timeline(added.id)] == [
        "enqueued",
        "claimed",
        "succeeded",
    ]


def test_a_store_closed_twice_stays_closed_and_says_so(store_url: str, style: str) -> None:
    async def asynchronously() -> None:
        store = open_async_store(store_url)
        await store.enqueue([job()])
        await store.close()
        await store.close()
        with pytest.raises(TenureError, match="closed; open another one"):
            await store.enqueue([job()])
        with pytest.raises(TenureError, match="closed; open another one"):
            await store.settle("w1", [])

    if style.endswith("async"):
        asyncio.run(asynchronously())
        return
    store = open_store(store_url)
    store.enqueue([job()])
    store.close()
    store.close()
    with pytest.raises(TenureError, match="closed; open another one"):
        store.enqueue([job()])
    with pytest.raises(TenureError, match="closed; open another one"):
        store.settle("w1", [])
