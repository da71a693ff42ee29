"""Results through the worker and the client: waiting for them, checkpoints, tenants."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tenure import Retry, Running, State, Tenure
from tenure.errors import JobFailed, JobNotFound
from tenure.rules.codec import encode
from tenure.rules.lifecycle import succeed
from tenure.store.colours import Operation
from tenure.store.look import jobs as look
from tenure.store.proxy import StoreProxy
from tenure.worker.environment import Environment
from tests.statements.support import at_once, statement
from tests.worker.support import PATIENCE_SECONDS, working


@statement(58)
def test_a_result_that_lands_while_somebody_begins_to_wait_is_not_missed(app: Tenure) -> None:
    """The job is finished right after the waiter has looked and before it rests."""

    @app.task()
    async def work() -> str:
        return "never run"

    handle = work.enqueue()
    looks: list[State] = []

    class Racing(StoreProxy):
        """Finishes the job between the first look and the rest that follows."""

        def run(self, operation: Operation[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            found = self._store.run(operation, *args, **kwargs)
            if operation is look.get:
                looks.append(found.state)
                if len(looks) == 1:
                    [lease] = self._store.claim("w1", {"default": 1})
                    self._store.settle("w1", [succeed(lease.jobs[0], encode("landed"))])
            return found

    app._store = Racing(app.whole_store, Environment())
    job = app.wait(handle.id, timeout_seconds=PATIENCE_SECONDS)
    assert job.result == '"landed"'
    assert looks == [State.QUEUED, State.SUCCEEDED]


@statement(58, 52)
def test_everybody_who_waits_gets_the_whole_result_whenever_they_begin(app: Tenure) -> None:
    """Before the job runs, while it runs, and after it has finished."""
    release = threading.Event()
    whole = ["a long result"] * 1000

    @app.task()
    def work() -> list[str]:
        release.wait(PATIENCE_SECONDS)
        return whole

    handle = work.enqueue()
    waiting = [lambda: handle.wait(timeout_seconds=PATIENCE_SECONDS) for _ in range(4)]
    with working(app):

        def let_go() -> list[str]:
            release.set()
            return whole

        assert at_once([*waiting, let_go, *waiting]) == [whole] * 9
        assert handle.wait(timeout_seconds=0) == whole


@statement(56)
def test_a_checkpoint_is_what_the_next_attempt_goes_on_from(app: Tenure) -> None:
    """It survives the attempt that saved it; one that cannot be understood fails loudly instead of
    letting the job begin anew."""

    @app.task()
    def counting(job: Running) -> list[int]:
        done = job.load(list[int]) or []
        job.save([*done, job.token])
        if len(done) < 2:
            raise Retry(after_seconds=0)
        return [*done, job.token]

    @app.task(max_attempts=1)
    def confused(job: Running) -> None:
        job.save("a word")
        job.load(list[int])

    with working(app):
        assert counting.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) == [1, 2, 3]
        with pytest.raises(JobFailed, match="PayloadInvalid"):
            confused.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)


@statement(68, 70)
def test_a_worker_runs_each_job_inside_its_tenant(app: Tenure, shared_url: str) -> None:
    """One worker, jobs of three owners back to back. What a handler enqueues belongs to its tenant,
    what it sees is its tenant's, and to enqueue for another is refused."""
    seen: dict[str, set[str]] = {}

    @app.task()
    def child(job: Running) -> str:
        return f"a child of {job.tenant}"

    @app.task(max_attempts=1)
    def parent(job: Running, *, stray: bool = False) -> int:
        seen[job.tenant] = {each.tenant for each in app.list_jobs().jobs}
        return (child.options(tenant="somebody-else") if stray else child).enqueue().id

    with working(app, thread_slots=1), _clients(shared_url) as clients:
        handles = {
            name: parent.options(tenant=name).enqueue() for name in ["acme", "", "zeta", "acme"]
        }
        ids = {
            name: handle.wait(timeout_seconds=PATIENCE_SECONDS) for name, handle in handles.items()
        }
        for name, id in ids.items():
            job = app.wait(id, timeout_seconds=PATIENCE_SECONDS)
            assert (job.tenant, job.result) == (name, f'"a child of {name}"')
        assert clients["acme"].get(ids["acme"]).state is State.SUCCEEDED
        with pytest.raises(JobNotFound):
            clients["acme"].get(ids["zeta"])
        with pytest.raises(JobFailed, match="TenantMismatch"):
            parent.options(tenant="acme").enqueue(stray=True).wait(timeout_seconds=PATIENCE_SECONDS)
    assert seen["acme"] <= {"acme", ""}
    assert seen["zeta"] <= {"zeta", ""}


@contextmanager
def _clients(url: str) -> Iterator[dict[str, Tenure]]:
    with Tenure(url, tenant="acme") as acme, Tenure(url, tenant="zeta") as zeta:
        yield {"acme": acme, "zeta": zeta}
