"""Declare a task, enqueue a job, run a worker, get the result."""

import asyncio

from tenure import State, Tenure, Worker
from tests.support.working import working


def test_a_job_runs_and_its_result_comes_back(app: Tenure) -> None:
    @app.task()
    def greet(name: str) -> str:
        return f"hello {name}"

    handle = greet.enqueue("Ada")
    with working(app):
        assert handle.wait(timeout_seconds=30) == "hello Ada"
    assert greet.fn("Ada") == "hello Ada"  # the function itself, without a job


def test_the_same_from_async_code(app: Tenure) -> None:
    @app.task()
    async def greet(name: str) -> str:
        return f"hello {name}"

    async def main() -> None:
        async with app, Worker(app):
            handle = await greet.enqueue_async("Ada")
            assert await handle.wait_async(timeout_seconds=30) == "hello Ada"

    asyncio.run(main())


def test_a_job_waits_in_the_database_until_a_worker_comes(app: Tenure) -> None:
    @app.task()
    def greet(name: str) -> str:
        return f"hello {name}"

    job_id = greet.enqueue("Ada").id
    app.close()  # this process may end now

    assert app.get(job_id).state is State.QUEUED
    with working(app):
        assert app.handle(greet, job_id).wait(timeout_seconds=30) == "hello Ada"
    assert app.get(job_id).state is State.SUCCEEDED
