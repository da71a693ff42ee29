"""Tenancy: a scoped store stamps, sees and touches its own jobs; global ones are read-only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tenure.errors import InvalidInput, JobNotFound, TenantMismatch, WorkflowNotFound
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.job import NewStep, State
from tenure.rules.lifecycle import fail, succeed
from tenure.store import Store
from tenure.store.api import Operations, operation
from tenure.store.workflows.look import has_ended
from tests.support.flows import added, more, take_named
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, add, ids_of, job, run, take


@pytest.fixture
def a(store: Store) -> Store:
    return store.for_tenant("a")


@pytest.fixture
def b(store: Store) -> Store:
    return store.for_tenant("b")


def test_a_scoped_store_stamps_all_that_it_enqueues(a: Store, store: Store, clock: Clock) -> None:
    own, named = (answer.id for answer in a.enqueue([job(), job(tenant="a")], now=clock.now))
    assert [store.get(id).tenant for id in (own, named)] == ["a", "a"]
    assert [claimed.tenant for claimed in take(store, clock.now)] == ["a", "a"]


def test_a_job_of_another_tenant_is_refused_with_the_whole_batch(
    a: Store, plain: Plain, clock: Clock
) -> None:
    with pytest.raises(TenantMismatch):
        a.enqueue([job(), job(tenant="b")], now=clock.now)
    assert plain.table("job") == []


@pytest.mark.parametrize("tenant", ["", "x" * 201, "new\nline", "nul\0", None])
def test_a_scope_that_cannot_be_is_an_error_and_no_fall_back(store: Store, tenant: str) -> None:
    with pytest.raises(InvalidInput):
        store.for_tenant(tenant)


def test_a_scoped_store_cannot_become_that_of_another_tenant(
    a: Store, b: Store, clock: Clock
) -> None:
    """Seen failing with the check taken away: it gave the jobs of the other tenant."""
    foreign = add(b, clock.now)
    with pytest.raises(TenantMismatch, match="works for tenant 'a' alone, not for 'b'"):
        a.for_tenant("b")
    with pytest.raises(InvalidInput):
        a.for_tenant("")
    again = a.for_tenant("a")
    with pytest.raises(JobNotFound):
        again.get(foreign)
    assert again.get(add(a, clock.now)).tenant == "a"


def test_tenants_with_odd_names_are_kept_apart(store: Store, clock: Clock) -> None:
    names = ["a b", "ä", "a'b", "%", "_", "\\", "A", "a", "日本"]
    ids = {name: add(store.for_tenant(name), clock.now) for name in names}
    for name in names:
        seen = store.for_tenant(name).list_jobs().jobs
        assert [(job.id, job.tenant) for job in seen] == [(ids[name], name)]


def test_a_scoped_store_sees_its_own_jobs_and_global_ones(
    a: Store, b: Store, store: Store, clock: Clock
) -> None:
    own, foreign, shared = add(a, clock.now), add(b, clock.now), add(store, clock.now)
    done = add(b, clock.now, queue="done")
    run(store, clock.now, lambda job: fail(job, ERROR), queue="done")
    assert {job.id for job in a.list_jobs().jobs} == {own, shared}
    assert a.get(own).tenant == "a"
    assert a.get(shared).tenant == ""
    assert {job.id for job in store.list_jobs().jobs} == {own, foreign, shared, done}
    for id in (foreign, done):
        for look in (a.get, a.timeline, a.progress):
            with pytest.raises(JobNotFound):
                look(id)
    assert a.list_jobs(states=[State.FAILED]).jobs == ()
    assert [job.id for job in b.list_jobs(states=[State.FAILED]).jobs] == [done]


def test_counts_are_of_ones_own_and_global_jobs(
    a: Store, b: Store, store: Store, clock: Clock
) -> None:
    start = clock.now
    for tenant in (a, b, b, store):
        add(tenant, clock.now)
        add(tenant, clock.now, queue="done")
        run(store, clock.now, succeed, queue="done")
    end = clock.advance(1)
    assert {count.tenant: count.jobs for count in a.count_live()} == {"a": 1, "": 1}
    assert {count.tenant: count.jobs for count in b.count_live()} == {"b": 2, "": 1}
    finished = {count.tenant: count.jobs for count in b.count_finished(start, end)}
    assert finished == {"b": 2, "": 1}
    assert sum(count.jobs for count in store.count_live()) == 4


def test_a_scoped_store_touches_neither_foreign_nor_global_jobs(
    a: Store, b: Store, store: Store, plain: Plain, clock: Clock
) -> None:
    live = [add(b, clock.now), add(store, clock.now)]
    done = [add(b, clock.now, queue="done"), add(store, clock.now, queue="done")]
    for _ in done:
        run(store, clock.now, succeed, queue="done")
    before = plain.everything()
    touches: list[Callable[[int], object]] = [
        a.cancel, a.hold, a.unhold, a.replay, a.delete, lambda job_id: a.move(job_id, priority=1),
    ]  # fmt: skip
    for touch in touches:
        for id in live + done:
            with pytest.raises(JobNotFound):
                touch(id)
    assert plain.everything() == before


def test_a_scoped_store_operates_on_its_own_jobs(a: Store, store: Store, clock: Clock) -> None:
    id = add(a, clock.now)
    assert a.hold(id, now=clock.now)
    assert a.unhold(id, now=clock.now)
    assert a.move(id, priority=3, now=clock.now)
    assert a.cancel(id, now=clock.now) is State.CANCELLED
    assert a.replay(id, now=clock.now)
    assert ids_of(take(store, clock.now)) == [id]


def test_a_parent_must_be_of_the_same_tenant(
    a: Store, b: Store, store: Store, plain: Plain, clock: Clock
) -> None:
    own, foreign, shared = add(a, clock.now), add(b, clock.now), add(store, clock.now)
    before = plain.everything()
    for parent in (foreign, shared):
        with pytest.raises(JobNotFound):
            a.enqueue([job(parents=(own, parent))], now=clock.now)
    assert plain.everything() == before
    assert a.get(add(a, clock.now, parents=(own,))).state is State.WAITING


def test_what_concerns_all_tenants_is_not_for_a_scoped_store(
    a: Store, b: Store, store: Store, plain: Plain, clock: Clock
) -> None:
    """A claim would hand out foreign jobs, a prune remove them, a pause stop them."""
    add(b, clock.now)
    add(b, clock.now, queue="done")
    run(store, clock.now, succeed, queue="done")
    before = plain.everything()
    later = clock.advance(1e8)
    calls: list[Callable[[], object]] = [
        lambda: a.claim("w1", {"default": 1}, now=later),
        lambda: a.prune(now=later),
        lambda: a.pause("default", now=later),
        lambda: a.resume("default", now=later),
        lambda: a.oldest_ready(now=later),
    ]
    for call in calls:
        with pytest.raises(TenantMismatch):
            call()
    assert plain.everything() == before


class Foreign(NamedTuple):
    """What another tenant has: a job that runs, one that has ended, and a workflow with both."""

    running: Claimed
    done: int
    workflow: int


BY_ID: dict[str, Callable[[Any, Foreign], object]] = {
    "get": lambda b, of: b.get(of.done),
    "timeline": lambda b, of: b.timeline(of.done),
    "progress": lambda b, of: b.progress(of.running.id),
    "attempts": lambda b, of: b.attempts(of.running.id),
    "annotate": lambda b, of: b.annotate("w1", [(of.running, {"loss": 0.5})]),
    "start_once": lambda b, of: b.start_once("w1", of.running),
    "steps": lambda b, of: b.steps(of.running.id),
    "parent_ends": lambda b, of: b.parent_ends(of.running.id),
    "why": lambda b, of: b.why(of.done),
    "gate_wait": lambda b, of: b.gate_wait(of.running.id),
    "cancel": lambda b, of: b.cancel(of.running.id),
    "hold": lambda b, of: b.hold(of.running.id),
    "unhold": lambda b, of: b.unhold(of.running.id),
    "move": lambda b, of: b.move(of.running.id, priority=1),
    "replay": lambda b, of: b.replay(of.done),
    "delete": lambda b, of: b.delete(of.done),
    "settle": lambda b, of: b.settle("w1", [succeed(of.running)]),
    "report_progress": lambda b, of: b.report_progress("w1", [(of.running, 0.5, "half")]),
    "save_checkpoint": lambda b, of: b.save_checkpoint("w1", of.running, encode(1)),
    "record_step": lambda b, of: b.record_step("w1", of.running, NewStep("s", "f", encode(1))),
    "grow_workflow": lambda b, of: b.grow_workflow("w1", of.running, [more("x")]),
    "extend": lambda b, of: b.extend("w1", [of.running.lease_id], lease_seconds=60),
    "get_workflow": lambda b, of: b.get_workflow(of.workflow),
    "has_ended": lambda b, of: b.run(has_ended, of.workflow),
    "list_nodes": lambda b, of: b.list_nodes(of.workflow),
    "node_named": lambda b, of: b.node_named(of.workflow, "a"),
    "cancel_workflow": lambda b, of: b.cancel_workflow(of.workflow),
    "pause_workflow": lambda b, of: b.pause_workflow(of.workflow),
    "resume_workflow": lambda b, of: b.resume_workflow(of.workflow),
}


@pytest.fixture
def foreign(a: Store, store: Store, clock: Clock) -> Foreign:
    workflow = added(a, clock.now, {"a": (), "b": ("a",), "c": ("b",)})
    parent = take_named(store, clock.now)["a"]
    store.settle("w1", [succeed(parent, encode("secret"))], now=clock.now)
    return Foreign(take_named(store, clock.now)["b"], parent.id, workflow.id)


@pytest.mark.parametrize("operation", BY_ID)
def test_by_its_id_nothing_of_another_tenant_is_read_or_changed(
    b: Store, foreign: Foreign, plain: Plain, operation: str
) -> None:
    before = plain.everything()
    with pytest.raises((JobNotFound, WorkflowNotFound, TenantMismatch)):
        BY_ID[operation](b, foreign)
    assert plain.everything() == before


def test_which_workflow_a_job_of_another_tenant_belongs_to_is_not_told(
    a: Store, b: Store, foreign: Foreign
) -> None:
    assert a.workflow_of(foreign.done) == (foreign.workflow, "a")
    assert b.workflow_of(foreign.done) is None


def test_a_tenant_reads_the_ends_of_its_own_parents_and_of_global_ones(
    a: Store, store: Store, foreign: Foreign, clock: Clock
) -> None:
    assert [end.result_json for end in a.parent_ends(foreign.running.id)] == [
        encode("secret").decode()
    ]
    parent = add(store, clock.now)
    child = add(store, clock.now, parents=(parent,))
    assert [end.id for end in a.parent_ends(child)] == [parent]


def test_no_operation_that_takes_an_id_is_left_out() -> None:
    ids = {"id", "job", "reports", "settlements", "lease_ids", "leases", "notes"}
    operations = {
        name for name, each in vars(Operations).items()
        if isinstance(each, operation) and ids & inspect.signature(each.body).parameters.keys()
    }  # fmt: skip
    others = {"workflow_of", "edit_schedule"}  # tested above; it takes a new job
    assert operations - BY_ID.keys() == others
