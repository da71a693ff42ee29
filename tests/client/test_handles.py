"""What a handle tells of its job, and what it does to it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable

import pytest

import tenure
from tenure import Handle, Job, Progress, Running, State, Tenure
from tenure.errors import JobFailed, JobNotFound
from tests.support.patience import until
from tests.support.working import working

Ask = Callable[..., object]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, app: Tenure) -> Ask:
    """Calls a method of a handle in both styles."""

    def call(handle: Handle[object], name: str, *args: object) -> object:
        if request.param == "sync":
            return getattr(handle, name)(*args)

        async def run() -> object:
            try:
                return await getattr(handle, f"{name}_async")(*args)
            finally:
                await app.close_loop()

        return asyncio.run(run())

    return call


def test_a_handle_tells_of_its_job_from_the_queue_to_the_result(app: Tenure, ask: Ask) -> None:
    go_on = threading.Event()

    @app.task()
    def work(job: Running, times: int) -> list[int]:
        job.progress(0.5, "half")
        go_on.wait(60)
        return [7] * times

    handle = work.options(metadata={"by": "me"}).enqueue(2)
    assert ask(handle, "status") is State.QUEUED
    assert ask(handle, "progress") == Progress()
    assert ask(handle, "result", "not yet") == "not yet"
    with working(app):
        until(lambda: handle.progress().message == "half")
        go_on.set()
        handle.wait(timeout_seconds=60)
    assert ask(handle, "status") is State.SUCCEEDED
    assert ask(handle, "result", None) == [7, 7]
    job = ask(handle, "job")
    assert isinstance(job, Job)
    shown = json.loads(json.dumps(job.as_dict()))
    assert (shown["args"], shown["result"]) == ({"times": 2}, [7, 7])
    assert (shown["metadata"], shown["state"], shown["error"]) == ({"by": "me"}, "succeeded", None)


def test_a_handle_cancels_its_job(app: Tenure, ask: Ask) -> None:
    @app.task()
    def work() -> None: ...

    handle = work.enqueue()
    assert ask(handle, "cancel") is State.CANCELLED
    with pytest.raises(JobFailed, match="is cancelled"):
        ask(handle, "result", None)
    app.delete(handle)
    with pytest.raises(JobNotFound):
        ask(handle, "job")


def test_an_error_is_plain_values(app: Tenure) -> None:
    @app.task(max_attempts=1)
    def fails() -> None:
        raise ValueError("no such user")

    with working(app):
        handle = fails.enqueue()
        with pytest.raises(JobFailed):
            handle.wait(timeout_seconds=60)
    error = handle.job().as_dict()["error"]
    assert (error["type"], error["message"]) == ("ValueError", "no such user")


def test_a_number_that_python_does_not_read_stays_text(local: Tenure) -> None:
    @local.task()
    def work() -> None: ...

    job = work.enqueue().job()
    digits = "9" * 5000
    from msgspec.structs import replace

    assert replace(job, result_json=digits).as_dict()["result"] == digits


@pytest.mark.parametrize(
    "method",
    ["list_jobs", "progress", "steps", "timeline", "workers", "count_live", "oldest_ready",
     "paused_queues", "about", "gates", "gate_lines", "workflows"],
)  # fmt: skip
def test_every_record_that_a_client_returns_is_exported(method: str) -> None:
    """The annotation of the operation names it."""
    returned = getattr(Tenure, method).__annotations__["return"]
    kinds = getattr(returned, "__args__", (returned,))
    for kind in kinds:
        assert getattr(tenure, kind.__name__) is kind
