"""Deadlines, as tasks, calls and workers see them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tenure import State, Tenure
from tenure.errors import InvalidInput
from tenure.worker.upkeep import upkeep
from tests.worker.support import ended, eventually, working

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def test_a_late_job_is_skipped_and_its_handler_never_runs(app: Tenure) -> None:
    ran: list[int] = []

    @app.task()
    async def work(n: int) -> None:
        ran.append(n)

    late = work.options(expires_at=LONG_AGO).enqueue(1)
    in_time = work.options(start_within_seconds=3600).enqueue(2)
    with working(app):
        assert ended(app, in_time.id).state is State.SUCCEEDED
        assert ended(app, late.id).reason == "expired"
    assert app.get(late.id).state is State.SKIPPED
    assert ran == [2]


def test_a_worker_ends_late_jobs_of_queues_that_no_worker_serves(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "EXPIRE_SECONDS", 0.05)

    @app.task(queue="other")
    async def work() -> None:
        pass

    handle = work.options(expires_at=LONG_AGO).enqueue()
    with working(app, {"default": 0}):
        eventually(lambda: app.get(handle.id).state is State.SKIPPED)


def test_a_task_has_defaults_and_a_call_has_the_last_word(app: Tenure) -> None:
    @app.task(start_within_seconds=60, finish_within_seconds=timedelta(hours=1))
    async def work() -> None:
        pass

    usual = app.get(work.enqueue().id)
    assert usual.start_by == usual.created_at + timedelta(seconds=60)
    assert usual.finish_by == usual.created_at + timedelta(hours=1)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    other = app.get(work.options(expires_at=at, finish_within_seconds=5).enqueue().id)
    assert other.start_by == at
    assert other.finish_by == other.created_at + timedelta(seconds=5)


def test_a_task_refuses_bad_deadlines(app: Tenure) -> None:
    for name in ("start_within_seconds", "finish_within_seconds"):
        with pytest.raises(InvalidInput, match=name):
            app.task(**{name: -1})  # type: ignore[arg-type]


def test_async_calls_have_them_too(app: Tenure) -> None:
    @app.task()
    async def work() -> None:
        pass

    async def main() -> int:
        return (await work.options(start_within_seconds=5).enqueue_async()).id

    assert app.get(asyncio.run(main())).start_by is not None
