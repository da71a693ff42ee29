"""`complete(on=...)` in a handler that a test runs."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tenure import JobEvent, Running, State, Tenure
from tenure.errors import JobFailed
from tenure.testing import drain, drain_async, frozen


def test_a_handler_completes_its_job_in_a_transaction_of_its_own(pg_migrated_url: str) -> None:
    app = Tenure()
    kinds: list[str] = []

    @app.listen
    def listen(event: JobEvent) -> None:
        kinds.append(event.kind)

    @app.task(name="book", max_attempts=1)
    def book(job: Running, commit: bool) -> None:
        with psycopg.connect(app.url) as connection:
            job.progress(1.0)
            job.complete({"booked": job.id}, on=connection)
            if not commit:
                connection.rollback()

    with frozen(app, url=pg_migrated_url):
        good = book.enqueue(True)
        [job] = drain(app)
        assert (job.id, job.result_json) == (good.id, '{"booked":1}')
        assert kinds == ["started", "succeeded"]
        bad = book.enqueue(False)
        with pytest.raises(JobFailed, match="its transaction was not committed"):
            drain(app)
        assert app.get(bad.id).reason == "not committed"


def test_the_same_on_an_event_loop_beside_the_applications_own_tables(tmp_path: Path) -> None:
    import asyncio
    import sqlite3

    app = Tenure()
    file = tmp_path / "shop.db"

    @app.task(name="book")
    async def book(job: Running) -> None:
        connection = sqlite3.connect(file)
        try:
            connection.execute("begin immediate")
            await job.complete_async(on=connection)
            connection.commit()
        finally:
            connection.close()

    async def test() -> None:
        handle = await book.enqueue_async()
        [job] = await drain_async(app)
        assert (job.id, job.state) == (handle.id, State.SUCCEEDED)

    with frozen(app, url=f"sqlite:///{file}?driver=sqlite3&allow_affected_sqlite=1"):
        app.migrate()
        asyncio.run(test())
