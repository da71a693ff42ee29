"""How callers name a job: by its id, a handle or a job record; every other type is refused."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from tenure import Job, State, Tenure
from tenure.errors import InvalidInput, JobNotFound
from tenure.testing import run_job
from tenure.workflow import WorkflowRun

NAMES = (
    "get", "wait", "why", "timeline", "progress", "steps", "workflow_of", "hold", "unhold",
    "cancel", "replay", "delete", "move",
)  # fmt: skip
WRONG: list[Any] = ["17", "", b"17", 17.0, True, None, [17], object()]


@pytest.fixture
def app(url: str) -> Tenure:
    app = Tenure(url)
    app.migrate()

    @app.task(name="work")
    def work() -> int:
        return 17

    return app


def test_an_id_of_a_wrong_type_is_refused(app: Tenure) -> None:
    with app:
        for wrong in WRONG:
            for name in NAMES:
                more = {"priority": 3} if name == "move" else {}
                with pytest.raises(InvalidInput, match="the id of a job must be a whole number, "):
                    getattr(app, name)(wrong, **more)
            with pytest.raises(InvalidInput, match="the id of a job must be a whole number, not "):
                app.handle(next(iter(app)), wrong)


def test_an_id_of_a_wrong_type_is_refused_in_async_code(app: Tenure) -> None:
    async def main() -> None:
        async with app:
            for name in NAMES:
                more = {"priority": 3} if name == "move" else {}
                with pytest.raises(InvalidInput, match=r"not '17'; convert it with int"):
                    await getattr(app, f"{name}_async")("17", **more)

    asyncio.run(main())


@pytest.mark.parametrize("wrong", ["3", None, 3.0, True])
def test_the_id_of_a_workflow_is_checked_too(app: Tenure, wrong: Any) -> None:
    with app:
        with pytest.raises(InvalidInput, match="the id of a workflow must be a whole number"):
            app.workflow_run(wrong)
        with pytest.raises(InvalidInput, match="the id of a workflow must be a whole number"):
            app.store.cancel_workflow(wrong)
        with pytest.raises(InvalidInput, match="the id of a workflow must be a whole number"):
            app.store.get_workflow(wrong)


def test_a_workflow_is_not_a_job(app: Tenure) -> None:
    with app:
        flow = app.workflow("one")
        flow.add(next(iter(app)).call())
        run: Any = flow.enqueue()
        with pytest.raises(InvalidInput, match="the id of a job must be a whole number"):
            app.cancel(run)


def test_a_whole_number_that_is_no_id_is_not_found(app: Tenure) -> None:
    with app:
        for id in (0, -1, 404, 2**70):
            with pytest.raises(JobNotFound):
                app.get(id)


def test_a_handle_and_a_job_stand_for_their_id(app: Tenure) -> None:
    with app:
        work = next(iter(app))
        handle = work.enqueue()
        job = app.get(handle)
        assert job.id == handle.id
        for reference in (handle, job, job.id):
            assert app.why(reference) == app.why(job.id)
            assert app.timeline(reference)
            assert app.steps(reference) == []
            assert app.hold(reference)
            assert app.unhold(reference)
            assert app.move(reference, priority=3)
        assert run_job(app, handle).result_json == "17"
        assert app.handle(work, job).wait(timeout_seconds=60) == 17
        assert app.wait(handle, timeout_seconds=60).state is State.SUCCEEDED
        assert app.replay(handle)
        assert app.cancel(job) is State.CANCELLED
        app.delete(handle)
        with pytest.raises(JobNotFound):
            app.get(job)


def test_a_handle_stands_for_its_id_in_async_code(app: Tenure) -> None:
    async def main() -> None:
        async with app:
            handle = await next(iter(app)).enqueue_async()
            job: Job = await app.get_async(handle)
            assert await app.why_async(job) == await app.why_async(job.id)
            assert await app.cancel_async(handle) is State.CANCELLED

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Tenure, WorkflowRun])
def test_no_method_shows_a_parameter_that_callers_do_not_have(kind: type[Any]) -> None:
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            params = list(inspect.signature(method).parameters)
            assert params[0] == "self", name
            assert not {"at", "tx", "scope"} & set(params), name
