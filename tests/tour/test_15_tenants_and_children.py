"""Jobs belong to a tenant, and what a handler enqueues belongs to the same one."""

import pytest

from tenure import Handle, Tenure, current
from tenure.errors import JobFailed, JobNotFound
from tests.support.working import working


def test_an_application_of_one_tenant_sees_its_own_jobs(app: Tenure, url: str) -> None:
    @app.task()
    def report() -> str:
        job = current()  # the running job, wherever the code is
        assert job is not None
        return job.tenant

    with Tenure(url, tenant="acme") as acme, Tenure(url, tenant="umbrella") as umbrella:
        [handle] = acme.enqueue_many([report.call()])
        assert acme.get(handle.id).tenant == "acme"
        with pytest.raises(JobNotFound):
            umbrella.get(handle.id)
        with working(app):  # a worker serves all tenants
            assert handle.wait(timeout_seconds=30) == "acme"


def test_children_inherit_the_tenant_and_the_trace(app: Tenure) -> None:
    children: list[Handle[None]] = []

    @app.task()
    def child() -> None: ...

    @app.task()
    def parent() -> None:
        children.append(child.enqueue())

    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    with working(app):
        parent.options(tenant="acme", metadata={"trace": trace, "more": 1}).enqueue().wait(
            timeout_seconds=30
        )
    job = app.get(children[0].id)
    assert job.tenant == "acme"
    assert job.metadata == {
        "trace": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    }


def test_a_handler_cannot_reach_another_tenant(app: Tenure) -> None:
    @app.task()
    def child() -> None: ...

    @app.task(max_attempts=1)
    def parent() -> None:
        child.options(tenant="umbrella").enqueue()

    with working(app):
        handle = parent.options(tenant="acme").enqueue()
        with pytest.raises(JobFailed, match="cannot enqueue for tenant 'umbrella'"):
            handle.wait(timeout_seconds=30)
