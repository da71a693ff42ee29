"""A synchronous call in async code is reported: once for each line, and nowhere else."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tenure import Task, Tenure, blocking
from tests.support.working import working


@pytest.fixture
def work(app: Tenure) -> Task[[], None]:
    @app.task(name="work")
    async def work() -> None: ...

    return work


@pytest.fixture(autouse=True)
def _nothing_was_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "_told", set())


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The calls that were reported."""
    return [
        record.getMessage().partition(" (")[0]
        for record in caplog.records
        if "blocks the event loop" in record.getMessage()
    ]


def blocks(name: str) -> str:
    return f"{name}() blocks the event loop; use 'await ...{name}_async()'"


def test_each_line_is_reported_once(
    app: Tenure, work: Task[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        handle, *_ = [work.enqueue() for _ in range(3)]
        app.why(handle.id)
        app.get(handle.id)
        handle.status()
        app.enqueue_many([work.call()])
        app.schedules.list()

    asyncio.run(main())
    names = ("enqueue", "why", "get", "status", "enqueue_many", "list")
    assert told(caplog) == [blocks(name) for name in names]
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert "test_blocking.py, line " in caplog.text


def test_other_calls_are_not_reported(
    app: Tenure, work: Task[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        handle = await work.enqueue_async()
        await asyncio.to_thread(work.enqueue)
        await handle.status_async()
        await app.why_async(handle.id)

    asyncio.run(main())
    app.why(work.enqueue().id)
    assert told(caplog) == []


def test_a_handler_is_reported_too(app: Tenure, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="grandchild")
    def grandchild() -> None: ...

    @app.task(name="child")
    def child() -> None:
        grandchild.enqueue()

    @app.task(name="parent")
    async def parent() -> None:
        child.enqueue()

    with working(app):
        parent.enqueue().wait(timeout_seconds=60)
    assert told(caplog) == [blocks("enqueue")]
