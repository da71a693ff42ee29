"""SQLite files of other programs, new files, and which file a job is in."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path

import pytest

from tenure import Task, Tenure, Worker
from tenure.errors import SchemaMissing
from tests.support.working import working


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A database of another program."""
    file = tmp_path / "django.sqlite3"
    with sqlite3.connect(file) as connection:
        connection.execute("create table customer (name text)")
    connection.close()
    return file


def app_on(file: Path | str) -> tuple[Tenure, Task[[], None]]:
    app = Tenure(f"sqlite:///{file}")

    @app.task(name="work")
    def work() -> None: ...

    return app, work


def tables(file: Path) -> int:
    with sqlite3.connect(file) as connection:
        [(count,)] = connection.execute("select count(*) from sqlite_master where type = 'table'")
    connection.close()
    return int(count)


def test_a_file_of_another_program_is_refused_and_stays_as_it_is(other: Path) -> None:
    before = other.read_bytes()
    app, work = app_on(other)
    message = "belongs to another program: it has 1 table and .* call app.migrate"
    with pytest.raises(SchemaMissing, match=message):
        work.enqueue()
    with pytest.raises(SchemaMissing, match=message):
        asyncio.run(work.enqueue_async())
    with pytest.raises(SchemaMissing, match=message):
        Worker(app).run()
    assert other.read_bytes() == before
    assert [file.name for file in other.parent.iterdir()] == [other.name]


def test_a_file_is_shared_on_purpose(other: Path, tmp_path: Path) -> None:
    app, work = app_on(other)
    with app:
        app.migrate()
        work.enqueue()
    assert tables(other) > 2
    second = tmp_path / "second.sqlite3"
    with sqlite3.connect(second) as connection:
        connection.execute("create table customer (name text)")
    connection.close()
    app, work = app_on(second)

    async def main() -> None:
        async with app:
            await app.migrate_async()
            await work.enqueue_async()

    asyncio.run(main())
    assert tables(second) > 2


def created(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "tenure.client" and record.levelno == logging.WARNING
    ]


def test_a_client_that_creates_a_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        app, work = app_on("jobs.db")
        with app:
            id = work.enqueue().id
            assert f"no worker is alive: start one on {tmp_path}/jobs.db" in app.why(id)
    assert created(caplog) == [f"created {tmp_path}/jobs.db, because there was no such file"]


def test_a_file_that_is_created_on_purpose_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, _ = app_on(tmp_path / "migrated.db")
    with app:
        app.migrate()
    app, work = app_on(tmp_path / "worker.db")
    with app:
        with working(app):
            pass
        work.enqueue()
    assert created(caplog) == []
