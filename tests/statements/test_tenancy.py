"""Tenancy: statements 67 to 70."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tenure.errors import ConfigError, InvalidName, JobNotFound, TenantMismatch
from tenure.rules.codec import encode
from tenure.rules.job import NewJob, Unique
from tenure.rules.lifecycle import succeed
from tenure.store import Store
from tests.statements.support import Database, add, claim_jobs, defect, new_jobs, running, statement
from tests.support.stores import Clock


@statement(67)
def test_what_a_tenant_enqueues_carries_its_name(store: Store, database: Database) -> None:
    """Stamped when it is written; a job of another tenant is refused and nothing of the batch is
    stored."""
    acme = store.for_tenant("acme")
    ids = [answer.id for answer in acme.enqueue([*new_jobs(1), *new_jobs(1, tenant="acme")])]
    assert database.rows("select id, tenant from tenure.job order by id") == [
        (id, "acme") for id in ids
    ]
    with pytest.raises(TenantMismatch, match="'umbrella'"):
        acme.enqueue([*new_jobs(1), *new_jobs(1, tenant="umbrella")])
    assert database.count("job") == 2


@statement(68)
def test_one_worker_serves_all_tenants_and_each_sees_its_own_results(
    store: Store, clock: Clock
) -> None:
    """Jobs of several tenants come out of one line, each with its tenant on it; a result is
    visible in its tenant's scope and in no other."""
    acme, umbrella = store.for_tenant("acme"), store.for_tenant("umbrella")
    ours, theirs = add(acme, clock)[0], add(umbrella, clock)[0]
    jobs = claim_jobs(store, clock)
    assert [(job.id, job.tenant) for job in jobs] == [(ours, "acme"), (theirs, "umbrella")]
    store.settle("w1", [succeed(job, encode(job.tenant)) for job in jobs], now=clock.now)
    assert acme.get(ours).result == '"acme"'
    assert umbrella.get(theirs).result == '"umbrella"'
    for scope, id in ((acme, theirs), (umbrella, ours)):
        with pytest.raises(JobNotFound):
            scope.get(id)
    assert [job.id for job in acme.list_jobs().jobs] == [ours]


@statement(69)
@pytest.mark.parametrize(
    ("tenant", "error"), [("", ConfigError), ("a\x00b", InvalidName), (None, InvalidName)]
)
def test_a_scope_that_cannot_be_established_is_an_error(
    store: Store, tenant: str, error: type[Exception]
) -> None:
    """No tenant, or none that can be written down, never means the shared scope."""
    with pytest.raises(error):
        store.for_tenant(tenant)


@statement(70)
def test_the_tenant_is_fixed_when_the_job_is_enqueued(store: Store, clock: Clock) -> None:
    """Whoever claims, retries or replays it later, under whatever scope: it stays what it was. A
    store without a scope takes the tenant that the job names."""
    [id] = add(store, clock, tenant="acme")
    [other] = add(store, clock)
    job, _ = claim_jobs(store, clock)
    assert (job.id, job.tenant) == (id, "acme")
    store.settle("w1", [succeed(job)], now=clock.now)
    store.for_tenant("acme").replay(id, now=clock.now)
    assert (store.get(id).tenant, store.get(other).tenant) == ("acme", "")


@defect("J-4")
def test_a_tenant_changes_nothing_of_anybody_elses(
    store: Store, clock: Clock, database: Database
) -> None:
    """By id, every operation on a job answers as if it were not there; by key, nothing is shared.
    A global job may be read, not changed."""
    done = running(store, clock, tenant="umbrella")
    store.settle("w1", [succeed(done, encode("secret"))], now=clock.now)
    held = running(store, clock, tenant="umbrella")
    theirs = add(store, clock, tenant="umbrella")[0]
    shared = add(store, clock)[0]
    [waiting] = add(store, clock, tenant="umbrella", delay_seconds=60)
    acme = store.for_tenant("acme")
    before = database.snapshot()
    calls: list[Callable[[int], object]] = [
        acme.cancel,
        acme.hold,
        acme.unhold,
        acme.replay,
        acme.delete,
        partial(acme.move, priority=1),
    ]
    for id in (done.id, held.id, theirs, waiting, shared):
        for call in calls:
            with pytest.raises(JobNotFound):
                call(id)
    for id in (done.id, held.id, theirs, waiting):
        for look in (acme.get, acme.timeline, acme.progress):
            with pytest.raises(JobNotFound):
                look(id)
    assert acme.get(shared).id == shared
    assert database.snapshot() == before


def test_a_tenant_counts_its_own_jobs_and_global_ones(store: Store, clock: Clock) -> None:
    add(store, clock, 2, tenant="acme")
    add(store, clock, 3, tenant="umbrella")
    add(store, clock, 4)
    counts = {count.tenant: count.jobs for count in store.for_tenant("acme").count_live()}
    assert counts == {"acme": 2, "": 4}


def test_a_parent_must_be_of_the_same_tenant(store: Store, clock: Clock) -> None:
    """A workflow does not cross tenants: the other's job does not exist for this one."""
    [parent] = add(store, clock, tenant="umbrella")
    child = NewJob(task="app.child", parents=(parent,), unique=Unique(key="k"))
    with pytest.raises(JobNotFound):
        store.for_tenant("acme").enqueue([child])
    assert store.for_tenant("acme").list_jobs().jobs == ()
