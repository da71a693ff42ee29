"""Settlements: in batches, one flush after the other, and no job holds up another."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tenure import Fixed, Running, State, Tenure
from tenure.worker.leases import LeasedJob
from tests.support.plain import Plain
from tests.worker.support import (
    PATIENCE_SECONDS,
    Lines,
    Watch,
    ended,
    eventually,
    kinds,
    listen,
    meddle,
    process_of,
    working,
)

on_postgres = pytest.mark.parametrize("url", ["postgres"], indirect=True)


class Slow(Watch):
    """A store that takes its time to settle."""

    async def settling(self, answers: Any, settlements: Any) -> Any:
        async def later() -> Any:
            await asyncio.sleep(0.05)
            return await answers

        return await super().settling(later(), settlements)


@pytest.mark.slow
def test_a_flush_starts_when_the_previous_one_has_returned(app: Tenure) -> None:
    watch = Slow()

    @app.task()
    async def quick(number: int) -> int:
        return number

    handles = app.enqueue_many([quick.call(n) for n in range(300)])
    with working(app, environment=watch, async_slots=20):
        for n, handle in enumerate(handles):
            assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == n
    assert watch.most_at_once == 1
    assert 2 <= len(watch.flushes) <= 150
    assert sum(map(len, watch.flushes)) == 300


def poison(url: str) -> None:
    """From now on the database refuses some results."""
    with Plain(url) as plain:
        if plain.is_postgres:
            plain.rows(
                "alter table tenure.history add constraint no_poison"
                " check (result is null or result::text not like '%poison%')"
            )
        else:
            plain.rows(
                "create trigger no_poison before insert on tenure.history"
                " when new.result like '%poison%' begin select raise(abort, 'no poison'); end"
            )


def test_a_row_that_the_database_refuses_fails_and_holds_up_no_other(
    app: Tenure, url: str, lines: Lines
) -> None:
    @app.task()
    async def says(word: str) -> str:
        return word

    app.count_live()
    poison(url)
    words = ["poison" if n % 10 == 3 else f"word {n}" for n in range(40)]
    handles = app.enqueue_many([says.call(word) for word in words])
    with working(app):
        for word, handle in zip(words, handles, strict=True):
            job = ended(app, handle.id)
            if word == "poison":
                assert (job.state, job.attempts) == (State.FAILED, 1)
                assert job.reason == "the store refused how it ended"
                assert "poison" in (job.error_json or "")
            else:
                assert (job.state, job.result_json) == (State.SUCCEEDED, json.dumps(word))
    assert lines.with_text("succeed was refused: the store refused it")
    assert not lines.with_text("poison")  # a refused row is not shown to everybody


@contextmanager
def locking(url: str, id: int) -> Iterator[psycopg.Connection[Any]]:
    """Somebody's transaction that has a job's row locked until the end of the block."""
    with psycopg.connect(url) as connection:
        connection.execute("select 1 from tenure.job where id = %s for update", [id])
        yield connection


@on_postgres
@pytest.mark.slow
def test_a_row_that_somebody_has_locked_holds_up_no_other(app: Tenure, url: str) -> None:
    go_on = threading.Event()
    started = threading.Event()

    @app.task()
    def locked() -> str:
        started.set()
        go_on.wait(60)
        return "done"

    @app.task()
    async def quick() -> None: ...

    with working(app, lease_seconds=30.0):
        handle = locked.enqueue()
        assert started.wait(PATIENCE_SECONDS)
        with locking(url, handle.id):
            go_on.set()
            for _ in range(3):  # the first may wait behind the locked one, for a while
                assert ended(app, quick.enqueue().id).state is State.SUCCEEDED
            waits = []
            for _ in range(20):
                began = time.monotonic()
                assert ended(app, quick.enqueue().id).state is State.SUCCEEDED
                waits.append(time.monotonic() - began)
            assert sorted(waits)[10] < 5.0, "half of them wait for a lock"
            assert app.get(handle.id).state is State.RUNNING
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "done"
    assert kinds(app, handle.id) == ["enqueued", "claimed", "succeeded"]


@on_postgres
@pytest.mark.slow
def test_a_completion_that_is_left_uncommitted_fails_when_its_lock_is_gone(
    app: Tenure, url: str
) -> None:
    left_open: list[psycopg.Connection[Any]] = []

    @app.task(max_attempts=2, retry=Fixed(0.01))
    def forgets_to_commit(job: Running) -> str:
        connection = psycopg.connect(url)
        job.complete("kept", on=connection)
        if job.attempt == 1:
            left_open.append(connection)
        else:
            connection.commit()
            connection.close()
        return "not kept"

    @app.task()
    async def quick() -> None: ...

    with working(app, lease_seconds=30.0):
        handle = forgets_to_commit.enqueue()
        eventually(lambda: left_open)
        for _ in range(5):
            assert ended(app, quick.enqueue().id).state is State.SUCCEEDED
        assert app.get(handle.id).state is State.RUNNING
        left_open[0].close()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "kept"
    [retried] = [event for event in app.timeline(handle.id) if event.kind == "retried"]
    assert "not committed" in (retried.detail or "")


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_completion_of_which_nothing_can_be_seen_is_let_go(
    app: Tenure, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an error that nobody foresaw. Its lease brings the job back, if it has not landed."""

    async def breaks(leased: LeasedJob, settlement: object) -> None:  # noqa: ARG001
        raise KeyError(leased.job.id)

    @app.task()
    def completes(job: Running) -> int:
        if job.attempt == 1:
            [leased] = process_of(worker).leased_jobs.all()
            leased.completed = True
        return job.attempt

    with working(app, lease_seconds=1.0) as worker:
        monkeypatch.setattr(process_of(worker).settler, "_confirmed", breaks)
        handle = completes.enqueue()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == 2
    assert lines.with_text("cannot see whether its completion was committed; given up")


def test_a_stale_settlement_is_reported_and_changes_nothing(
    app: Tenure, url: str, lines: Lines
) -> None:
    heard = listen(app)
    go_on = threading.Event()
    started = threading.Event()

    @app.task()
    def work() -> str:
        started.set()
        go_on.wait(60)
        return "late"

    with working(app, heartbeat_seconds=5, lease_seconds=60):
        handle = work.enqueue()
        assert started.wait(PATIENCE_SECONDS)
        meddle(url, "update tenure.job set token = token + 1")
        go_on.set()
        eventually(lambda: "stale" in heard.kinds(handle.id))
    assert heard.kinds(handle.id) == ["started", "stale"]
    assert app.get(handle.id).result is None
    assert lines.with_text("succeed was refused: the job is no longer ours")
