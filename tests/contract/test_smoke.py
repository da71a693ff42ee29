"""The happy path, in every style."""

from tenure.rules.codec import encode
from tenure.rules.job import NewJob, State
from tenure.rules.lifecycle import succeed
from tenure.store import LANDED, Store
from tests.support.stores import Clock


def test_a_job_goes_from_enqueue_to_history(store: Store, clock: Clock) -> None:
    [added] = store.enqueue([NewJob(task="app.send", args=encode({"to": "me"}))], now=clock.now)
    [lease] = store.claim("w1", {"default": 10}, now=clock.advance(1))
    [job] = lease.jobs
    assert (job.id, job.token, job.args) == (added.id, 1, '{"to":"me"}')
    answers = store.settle(
        "w1", [succeed(job, encode({"ok": True}))], done_leases=[lease.id], now=clock.advance(1)
    )
    assert answers == [LANDED]
    finished = store.get(added.id, now=clock.now)
    assert (finished.state, finished.result, finished.attempts) == (
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
