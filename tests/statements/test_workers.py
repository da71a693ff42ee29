"""What workers rely on in the engine: statements 61, 64 and 65."""

from __future__ import annotations

import pytest

from tenure.errors import InvalidName
from tenure.rules.codec import encode
from tenure.rules.job import NewJob, State
from tenure.rules.lifecycle import release, succeed
from tenure.rules.retry import Fixed, dump_policy, load_policy
from tenure.store import LANDED, Store
from tests.statements.conftest import Opener
from tests.statements.support import add, claim_jobs, statement
from tests.support.stores import Clock


@statement(61)
def test_what_a_worker_gives_back_is_claimable_at_once_and_uncharged(
    store: Store, clock: Clock
) -> None:
    """At shutdown claimed jobs go back: no attempt used, no crash on record, no wait."""
    add(store, clock, 3, max_attempts=1)
    jobs = claim_jobs(store, clock)
    lease = jobs[0].lease_id
    answers = store.settle("w1", [release(job) for job in jobs], done_leases=[lease], now=clock.now)
    assert answers == [LANDED] * 3
    again = claim_jobs(store, clock, "w2")
    assert [(job.id, job.token, job.attempts, job.crashes) for job in again] == [
        (job.id, 2, 0, 0) for job in jobs
    ]
    assert len({job.lease_id for job in again}) == 1


@statement(64)
def test_a_job_carries_all_that_a_fresh_process_needs(open_shared: Opener) -> None:
    """Task, arguments, tenant, limits and retry policy come with the claim, resolved when the job
    was enqueued; nothing is looked up in the process that enqueued it."""
    with open_shared() as writer:
        writer.enqueue(
            [
                NewJob(
                    task="app.train", args=encode({"rate": 0.1}), tenant="acme", max_attempts=7,
                    timeout_seconds=90.0, retry=dump_policy(Fixed(3.0)), metadata=encode({"a": 1}),
                )
            ]
        )  # fmt: skip
    [lease] = open_shared().claim("w1", {"default": 1})
    [job] = lease.jobs
    assert (job.task, job.args, job.tenant) == ("app.train", '{"rate":0.1}', "acme")
    assert (job.attempts, job.max_attempts, job.timeout_seconds) == (0, 7, 90.0)
    assert (load_policy(job.retry), job.metadata) == (Fixed(3.0), '{"a":1}')


@statement(65)
@pytest.mark.parametrize("name", ["", " ", "\t", "two words"])
def test_a_blank_worker_name_never_owns_anything(store: Store, clock: Clock, name: str) -> None:
    """The engine takes no blank for a name, so whoever configures workers must make one up."""
    [id] = add(store, clock)
    with pytest.raises(InvalidName):
        store.claim(name, {"default": 1}, now=clock.now)
    [job] = claim_jobs(store, clock)
    with pytest.raises(InvalidName):
        store.settle(name, [succeed(job)], now=clock.now)
    with pytest.raises(InvalidName):
        store.extend(name, {job.lease_id: []}, now=clock.now)
    assert store.get(id).state is State.RUNNING
