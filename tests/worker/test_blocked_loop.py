"""Handlers that block the event loop past their timeout, while the database is away or comes back.

Their attempts are ended by the heartbeat's thread. What it cannot write, the loop writes later.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from tenure import State, Tenure
from tenure.errors import StoreUnavailable
from tenure.store import Store
from tenure.worker.environment import Environment
from tests.worker.support import PATIENCE_SECONDS, Lines, eventually, process_of, working
from tests.worker.test_timeouts import timed_out


class Outage(Environment):
    """The heartbeat's store refuses these calls. The loop's store is well."""

    def __init__(self) -> None:
        self.refused = {"settle"}
        self.tried = threading.Event()

    def wrap(self, store: Store) -> Store:
        outage = self

        class Away:
            def __getattr__(self, name: str) -> Any:
                return self.refuse if name in outage.refused else getattr(store, name)

            def refuse(self, *_: object, **__: object) -> None:
                outage.tried.set()
                raise StoreUnavailable("away")

        return cast(Store, Away())


@pytest.mark.slow
def test_a_handler_that_lost_its_job_while_it_blocked_the_loop_is_stopped_and_forgotten(
    app: Tenure, lines: Lines
) -> None:
    """Its end was taken and could not be written; then the lease was given up."""
    outage, go_on, ends = Outage(), threading.Event(), []

    @app.task(queue="gpu", timeout_seconds=0.05, max_attempts=1)
    async def blocks() -> None:
        go_on.wait(PATIENCE_SECONDS)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    with working(
        app,
        {"gpu": 1},
        environment=outage,
        lease_seconds=0.5,
        heartbeat_seconds=0.05,
        kill_seconds=0.05,
    ) as worker:
        handle = blocks.enqueue()
        assert outage.tried.wait(PATIENCE_SECONDS)
        outage.refused.add("extend")
        process = process_of(worker)
        eventually(
            lambda: all(lease.given_up for lease in list(process.leased_jobs.leases.values()))
        )
        go_on.set()
        eventually(lambda: lines.with_text("ended after it was given up; not recorded"))
        assert ends == ["cancelled"]
        assert not process.watchlist.stuck
        assert not process.intake.is_stuck()
        outage.refused.clear()
        eventually(lambda: app.get(handle.id).state.final)


def test_clean_up_that_blocks_the_loop_after_a_timeout_keeps_nothing(app: Tenure) -> None:
    cleaning, go_on = threading.Event(), threading.Event()

    @app.task(timeout_seconds=0.05, max_attempts=1)
    async def cleans_up() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaning.set()
            go_on.wait(PATIENCE_SECONDS)

    with working(app, heartbeat_seconds=0.05, kill_seconds=0.05):
        handle = cleans_up.enqueue()
        assert cleaning.wait(PATIENCE_SECONDS)
        timed_out(app, handle.id)
        go_on.set()


def test_what_the_heartbeat_could_not_write_is_written_before_the_worker_ends(app: Tenure) -> None:
    outage, go_on = Outage(), threading.Event()

    @app.task(timeout_seconds=0.05, max_attempts=1)
    async def blocks() -> None:
        go_on.wait(PATIENCE_SECONDS)

    with working(app, environment=outage, heartbeat_seconds=0.05, kill_seconds=0.05) as worker:
        handle = blocks.enqueue()
        assert outage.tried.wait(PATIENCE_SECONDS)
        assert app.get(handle.id).state is State.RUNNING
        worker.stop()
        go_on.set()
    timed_out(app, handle.id)


def test_a_handler_that_blocks_the_loop_is_reported_while_it_does(
    app: Tenure, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.stopping.loop_watch.BLOCKED_SECONDS", 0.05)
    go_on = threading.Event()

    @app.task(name="blocks")
    async def blocks() -> None:
        assert go_on.wait(PATIENCE_SECONDS)

    with working(app):
        handle = blocks.enqueue()
        told = f"job {handle.id} of blocks"
        eventually(lambda: len(lines.with_text("has blocked the event loop")) >= 2)
        go_on.set()
        handle.wait(timeout_seconds=PATIENCE_SECONDS)
    for line in lines.with_text("has blocked the event loop"):
        assert told in line
        assert "in blocks\n    assert go_on.wait" in line
        assert "asyncio" not in line.partition("\n")[2]


def test_a_block_is_reported_long_before_the_next_heartbeat(
    app: Tenure, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was idle when its last heartbeat was sent."""
    monkeypatch.setattr("tenure.worker.stopping.loop_watch.BLOCKED_SECONDS", 0.05)
    go_on = threading.Event()

    @app.task(name="blocks")
    async def blocks() -> None:
        assert go_on.wait(PATIENCE_SECONDS)

    hours = 36_000.0
    with working(app, heartbeat_seconds=hours, lease_seconds=3 * hours):
        eventually(app.workers)  # the first heartbeat
        handle = blocks.enqueue()
        eventually(lambda: lines.with_text(f"job {handle.id} of blocks"))
        go_on.set()
        handle.wait(timeout_seconds=PATIENCE_SECONDS)
    assert lines.with_text("has blocked the event loop")


def test_handlers_that_wait_are_not_reported(
    app: Tenure, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if the machine is too slow for the loop to tick in time."""
    monkeypatch.setattr("tenure.worker.stopping.loop_watch.BLOCKED_SECONDS", 0.05)

    @app.task()
    async def waits() -> None:
        await asyncio.sleep(0.3)

    with working(app):
        waits.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
    assert not [line for line in lines.with_text("of ") if "in waits" in line]
