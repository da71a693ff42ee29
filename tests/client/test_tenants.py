"""Tenants, and what a handler's children inherit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest

from tenure import Handle, State, Tenure, current
from tenure.errors import (
    ConfigError,
    JobNotFound,
    TenantMismatch,
    TenureError,
    WorkflowNotFound,
)
from tenure.store import AsyncStore, Store
from tenure.testing import drain
from tests.support.working import working


@pytest.fixture
def acme(app: Tenure, url: str) -> Iterator[Tenure]:
    """The same jobs, as one tenant sees them."""
    with Tenure(url, tenant="acme") as scoped:
        scoped.include(app)
        yield scoped


def test_what_a_tenant_enqueues_is_stamped(app: Tenure, acme: Tenure) -> None:
    @acme.task()
    def work() -> None: ...

    assert app.get(work.enqueue().id).tenant == "acme"
    assert app.get(work.options(tenant="acme").enqueue().id).tenant == "acme"
    with pytest.raises(TenantMismatch, match="cannot enqueue for 'umbrella'"):
        work.options(tenant="umbrella").enqueue()
    assert len(app.list_jobs().jobs) == 2


def test_a_tenant_sees_and_changes_only_its_own(app: Tenure, acme: Tenure) -> None:
    @app.task()
    def work() -> None: ...

    mine = work.options(tenant="acme").enqueue()
    theirs = work.options(tenant="umbrella").enqueue()
    common = work.enqueue()
    assert {job.id for job in acme.list_jobs().jobs} == {mine.id, common.id}
    assert acme.get(common.id).tenant == ""  # to be read
    for operation in (acme.cancel, acme.hold, acme.replay, acme.delete):
        for other in (theirs, common):
            with pytest.raises(JobNotFound):
                operation(other.id)
    for look in (acme.get, acme.why, acme.wait, acme.timeline, acme.progress, acme.steps):
        with pytest.raises(JobNotFound):
            look(theirs.id)
    assert acme.cancel(mine.id) is State.CANCELLED


def test_what_concerns_all_is_not_for_a_tenant(acme: Tenure) -> None:
    for operation in (
        lambda: acme.pause("default"),
        lambda: acme.resume("default"),
        acme.prune,
        acme.workers,
        acme.oldest_ready,
    ):
        with pytest.raises(TenantMismatch):
            operation()


def _reachable(start: object) -> Iterator[tuple[str, object]]:
    """Every public attribute of an object, and those of the objects of Tenure that it leads to."""
    seen: set[int] = set()
    todo = [("acme", start)]
    while todo:
        path, here = todo.pop()
        if id(here) in seen or isinstance(here, type | ModuleType):
            continue
        seen.add(id(here))
        yield path, here
        if not type(here).__module__.startswith("tenure."):
            continue
        for name in dir(here):
            if not name.startswith("_"):
                with suppress(TenureError, RuntimeError):  # refused, or only on an event loop
                    todo.append((f"{path}.{name}", getattr(here, name)))


def test_a_bound_application_leads_to_no_store_of_others(app: Tenure, acme: Tenure) -> None:
    """Seen failing with `whole_store` open to all: the foreign job was read."""

    @acme.task()
    def work() -> None: ...

    @app.task(name="theirs")
    def foreign_work() -> None: ...

    foreign = foreign_work.options(tenant="umbrella").enqueue()
    handle = work.enqueue()
    flow = acme.workflow("flow")
    flow.add(work.call())
    objects = [acme, acme.store, handle, flow, flow.enqueue(), acme.schedules, work, work.call()]

    async def get(store: Store | AsyncStore) -> None:
        answer = store.get(foreign.id)
        if isinstance(answer, Awaitable):
            await answer

    async def look() -> set[str]:
        found = [
            (path, store) for each in objects for path, store in _reachable(each)
            if isinstance(store, Store | AsyncStore)
        ]  # fmt: skip
        for _, store in found:
            with pytest.raises(TenantMismatch):
                store.for_tenant("umbrella")
            with pytest.raises(JobNotFound):
                await get(store)
        await acme.close_loop()
        return {path.rpartition(".")[2] for path, _ in found}

    assert {"store", "async_store"} <= asyncio.run(look())
    for leave in (lambda: acme.whole_store, lambda: acme.whole_async_store):
        with pytest.raises(TenantMismatch, match="concerns all tenants"):
            leave()
    with pytest.raises(AttributeError):
        acme.tenant = "umbrella"  # type: ignore[misc]
    other = acme.workflow("flow", tenant="umbrella")
    other.add(work.call())
    with pytest.raises(TenantMismatch):
        other.enqueue()
    with pytest.raises(TenantMismatch):
        acme.schedules.add("s", work.options(tenant="umbrella").call(), cron="@daily")
    with pytest.raises(WorkflowNotFound):
        acme.workflow_run(foreign.id).wait(timeout_seconds=1)
    with pytest.raises(JobNotFound):
        acme.handle(work, foreign.id).wait(timeout_seconds=1)


def test_a_worker_serves_all_tenants(acme: Tenure) -> None:
    with pytest.raises(ConfigError, match="a worker serves all tenants"), working(acme):
        pass


def test_children_inherit_tenant_and_trace(app: Tenure) -> None:
    children: dict[str, Handle[None]] = {}

    @app.task()
    def child() -> None: ...

    @app.task()
    def in_a_thread() -> None:
        children["plain"] = child.enqueue()
        children["own metadata"] = child.options(metadata={"a": 1}).enqueue()
        children["own trace"] = child.options(metadata={"trace": "new"}).enqueue()
        [children["batch"]] = app.enqueue_many([child.call()])

    @app.task()
    async def in_a_coroutine() -> None:
        children["async"] = await child.enqueue_async()

    metadata = {"trace": {"id": "4bf9"}, "user": "ada"}
    for parent in (in_a_thread, in_a_coroutine):
        parent.options(tenant="acme", metadata=metadata).enqueue()
    drain(app)

    def told(name: str) -> tuple[str, Any]:
        job = app.get(children[name].id)
        return job.tenant, json.loads(job.metadata_json or "null")

    trace = {"trace": {"id": "4bf9"}}
    assert told("plain") == told("batch") == told("async") == ("acme", trace)
    assert told("own metadata") == ("acme", trace | {"a": 1})
    assert told("own trace") == ("acme", {"trace": "new"})


def test_children_of_a_global_job_are_global_unless_they_say_so(app: Tenure) -> None:
    children: list[Handle[None]] = []

    @app.task()
    def child() -> None: ...

    @app.task()
    def parent() -> None:
        children.append(child.enqueue())
        children.append(child.options(tenant="umbrella").enqueue())

    parent.enqueue()
    drain(app)
    assert [app.get(handle.id).tenant for handle in children] == ["", "umbrella"]
    assert [app.get(handle.id).metadata for handle in children] == [{}, {}]


def test_a_handler_cannot_step_out_of_its_tenant(app: Tenure, url: str) -> None:
    @app.task()
    def work() -> None: ...

    refusals: list[str] = []
    theirs = work.options(tenant="umbrella").enqueue()
    common = work.enqueue()
    with Tenure(url, tenant="umbrella") as umbrella:

        @app.task()
        def nosy() -> None:
            for attempt in (
                lambda: work.options(tenant="umbrella").enqueue(),
                lambda: work.options(tenant="").enqueue(),
                lambda: app.get(theirs.id),
                lambda: app.cancel(common.id),
                lambda: umbrella.get(theirs.id),
            ):
                try:
                    attempt()
                except (TenantMismatch, JobNotFound) as error:
                    refusals.append(type(error).__name__)

        with working(app):
            nosy.options(tenant="acme").enqueue().wait(timeout_seconds=30)
    assert refusals == [
        "TenantMismatch", "TenantMismatch", "JobNotFound", "JobNotFound", "TenantMismatch",
    ]  # fmt: skip


def test_the_current_job_is_known_only_where_it_runs(app: Tenure) -> None:
    seen: list[int | None] = []

    @app.task()
    def work() -> None:
        job = current()
        seen.append(None if job is None else job.id)

    with working(app):
        handle = work.enqueue()
        handle.wait(timeout_seconds=30)
        assert current() is None
    assert seen == [handle.id]
