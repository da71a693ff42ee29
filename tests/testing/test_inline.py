"""Every job runs before `enqueue` returns."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tenure import Running, State, Tenure
from tenure.errors import InvalidInput
from tenure.testing import drain, inline


def test_a_job_has_run_when_enqueue_returns(url: str) -> None:
    app = Tenure()
    ran: list[str] = []

    @app.task(name="parent")
    def parent() -> int:
        child.enqueue()
        ran.append("parent")
        return 1

    @app.task(name="child")
    async def child() -> None:
        ran.append("child")

    with inline(app, url=url) as clock:
        assert parent.enqueue().wait(timeout_seconds=0) == 1
        assert ran == ["parent", "child"]
        handles = app.enqueue_many([parent.call(), parent.call()])
        assert [each.wait(timeout_seconds=0) for each in handles] == [1, 1]
        later = child.options(delay_seconds=60).enqueue()
        assert app.get(later.id).state is State.SCHEDULED
        clock.advance(60)
        drain(app)
        assert app.get(later.id).state is State.SUCCEEDED


def test_the_same_on_an_event_loop(url: str) -> None:
    app = Tenure()

    @app.task(name="parent")
    async def parent() -> int:
        await child.enqueue_async()
        return 1

    @app.task(name="child")
    def child() -> None: ...

    async def test() -> None:
        handle = await parent.enqueue_async()
        assert await handle.wait_async(timeout_seconds=0) == 1
        assert [job.state for job in (await app.list_jobs_async()).jobs] == ["succeeded"] * 2
        with pytest.raises(InvalidInput, match="enqueue_async"):
            child.enqueue()

    with inline(app, url=url):
        asyncio.run(test())


def test_what_a_handler_raises_comes_out_of_enqueue(url: str) -> None:
    app = Tenure()

    @app.task(name="broken", max_attempts=1)
    def broken(job: Running) -> None:
        raise LookupError(f"in {job.id}")

    with inline(app, url=url), pytest.raises(LookupError, match="in 1"):
        broken.enqueue()
    with inline(app, url=url, raise_errors=False):
        handle = broken.enqueue()
        assert app.get(handle.id).state is State.FAILED


def test_in_a_transaction_of_the_callers_own_nothing_runs(pg_migrated_url: str) -> None:
    app = Tenure()

    @app.task(name="send")
    def send() -> None: ...

    with inline(app, url=pg_migrated_url), psycopg.connect(pg_migrated_url) as connection:
        handle = send.options(on=connection).enqueue()
        connection.commit()
        assert app.get(handle.id).state is State.QUEUED
        assert [job.id for job in drain(app)] == [handle.id]
