"""The worker and its leases: heartbeats from the claim to the settlement, and their loss."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenure import Running, State, Tenure, Worker
from tenure.errors import ConfigError, LeaseLost, OutOfRange
from tests.statements.faulty import FaultyEnvironment
from tests.statements.support import defect, statement
from tests.worker.support import (
    FAST,
    PATIENCE_SECONDS,
    Script,
    eventually,
    is_gone,
    listen,
    working,
)

LEASE: dict[str, Any] = {"lease_seconds": 0.8, "heartbeat_seconds": 0.1}


@statement(18)
@pytest.mark.parametrize(
    ("lease_seconds", "heartbeat_seconds"), [(10.0, 5.0), (10.0, 6.0), (1.0, 10.0), (30.0, 15.0)]
)
def test_a_heartbeat_that_is_not_well_below_the_lease_is_refused(
    lease_seconds: float, heartbeat_seconds: float
) -> None:
    """Two heartbeats must fit into one lease, strictly, and into the lease of each queue."""
    app = Tenure("sqlite:///never-opened.db")
    with pytest.raises(ConfigError, match=r"two heartbeats .* must fit into one lease"):
        Worker(app, lease_seconds=lease_seconds, heartbeat_seconds=heartbeat_seconds)
    with pytest.raises(ConfigError, match=r"two heartbeats .* must fit into one lease"):
        Worker(
            app, {"gpu": 1},
            queue_lease_seconds={"gpu": lease_seconds}, heartbeat_seconds=heartbeat_seconds,
        )  # fmt: skip
    Worker(app, lease_seconds=lease_seconds, heartbeat_seconds=lease_seconds / 2 - 0.001)


@statement(18)
@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e300, 10**400, True])
def test_a_heartbeat_that_is_no_length_of_time_is_refused(seconds: float) -> None:
    """Zero, nonsense and numbers too large to double: refused when the worker is made."""
    app = Tenure("sqlite:///never-opened.db")
    with pytest.raises(OutOfRange):
        Worker(app, heartbeat_seconds=seconds)
    with pytest.raises(OutOfRange):
        Worker(app, lease_seconds=seconds)


@pytest.mark.slow
@statement(23)
def test_heartbeats_begin_with_the_claim_and_do_not_need_the_event_loop(app: Tenure) -> None:
    """Two jobs come with one claim. The first blocks the event loop for three leases, so that the
    second cannot start. Nobody can take either of them meanwhile."""
    taken = []

    def sweep_for_three_leases() -> None:
        end = time.monotonic() + 3 * LEASE["lease_seconds"]
        while time.monotonic() < end:
            swept = app.store.sweep()
            taken.append(swept.requeued + swept.finished)
            threading.Event().wait(0.02)

    @app.task()
    async def blocking() -> None:
        sweep_for_three_leases()

    @app.task()
    async def waiting() -> None: ...

    first, second = app.enqueue_many([blocking.call(), waiting.call()])
    with working(app, **LEASE):
        first.wait(timeout_seconds=PATIENCE_SECONDS)
        second.wait(timeout_seconds=PATIENCE_SECONDS)
    assert len(taken) > 10
    assert not any(taken)
    for handle in first, second:
        job = app.get(handle.id)
        assert (job.token, job.attempts, job.crashes) == (1, 1, 0)
    claimed = [app.timeline(handle.id)[1] for handle in (first, second)]
    assert claimed[0].at == claimed[1].at  # by one claim, so the second did wait


@pytest.mark.slow
@defect("J-2")
def test_heartbeats_go_on_until_the_settlement_has_landed(app: Tenure) -> None:
    """The handler has returned, and for three leases its result cannot be written. The job is still
    its worker's, and the result lands."""
    environment = FaultyEnvironment("settle")

    @app.task()
    async def quick() -> str:
        return "the only result"

    handle = quick.enqueue()
    with working(app, environment=environment, **LEASE):
        eventually(lambda: environment.failures["settle"])
        end = time.monotonic() + 3 * LEASE["lease_seconds"]
        while time.monotonic() < end:
            swept = app.store.sweep()
            assert swept.requeued + swept.finished == 0
            assert app.get(handle.id).state is State.RUNNING
            threading.Event().wait(0.02)
        environment.broken.clear()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "the only result"
    job = app.get(handle.id)
    assert (job.token, job.attempts, job.crashes) == (1, 1, 0)


@defect("J-9")
def test_an_aborted_worker_leaves_no_heartbeat_behind(app: Tenure) -> None:
    """Whoever aborts a worker in the middle of a job ends its heartbeats with it, so that the job
    comes back when the lease has ended."""
    started = threading.Event()

    @app.task()
    async def patient(job: Running) -> int:
        if job.token == 1:
            started.set()
            await asyncio.Event().wait()
        return job.token

    async def main() -> int:
        handle = await patient.enqueue_async()
        aborted = asyncio.create_task(Worker(app, **(FAST | LEASE)).serve())
        await asyncio.to_thread(started.wait, PATIENCE_SECONDS)
        aborted.cancel()
        await asyncio.wait([aborted])
        assert aborted.cancelled()
        left = [each.name for each in threading.enumerate() if each.name.startswith("tenure-")]
        assert not {"tenure-heartbeat", "tenure-bell"} & set(left)
        async with Worker(app, **FAST):
            return await handle.wait_async(timeout_seconds=PATIENCE_SECONDS)

    assert asyncio.run(main()) > 1


@defect("J-10")
@statement(21)
def test_a_worker_that_cannot_renew_stops_its_handlers_before_the_lease_ends(app: Tenure) -> None:
    """No heartbeat gets through. By its own clock, counted from before it sent the claim, the
    worker stops the handler while the lease still runs, and nothing of the attempt is recorded."""
    environment = FaultyEnvironment("extend")
    started_at: list[float] = []
    stopped_at: list[float] = []
    lease_seconds = 3.0

    @app.task()
    async def patient(job: Running) -> str:
        started_at.append(time.monotonic())
        if job.token == 1:
            try:
                await asyncio.Event().wait()
            finally:
                stopped_at.append(time.monotonic())
                assert job.lost
                environment.broken.clear()
        return f"token {job.token}"

    heard = listen(app)
    handle = patient.enqueue()
    with working(app, environment=environment, lease_seconds=lease_seconds, heartbeat_seconds=0.1):
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "token 2"
    claimed_at = max(at for at in environment.sent_at["claim"] if at < started_at[0])
    assert stopped_at[0] < claimed_at + lease_seconds
    assert heard.kinds(handle.id) == ["started", "lost", "started", "succeeded"]
    assert [event.kind for event in app.timeline(handle.id)] == [
        "enqueued", "claimed", "crashed", "claimed", "succeeded"
    ]  # fmt: skip


@statement(13, 21, 35)
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_handler_whose_lease_is_lost_is_told_so_and_changes_nothing(
    app: Tenure, kind: str
) -> None:
    """The handler is told by a flag, by `check` and by `save`; a coroutine is cancelled besides.
    What it then returns is not recorded, and its loss is no error that is tried again."""
    started = threading.Event()
    told: list[type[BaseException]] = []

    def go_on(job: Running) -> str:
        for call in (job.check, lambda: job.save("late")):
            with pytest.raises(LeaseLost) as refused:
                call()
            told.append(refused.type)
        return "the loser's result"

    @app.task(name="thread")
    def in_a_thread(job: Running) -> str:
        if job.token > 1:
            return "the winner's result"
        started.set()
        assert job.lost.wait(PATIENCE_SECONDS)
        return go_on(job)

    @app.task(name="async")
    async def on_the_loop(job: Running) -> str:
        if job.token > 1:
            return "the winner's result"
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append(asyncio.CancelledError)
        return go_on(job)

    handle = (in_a_thread if kind == "thread" else on_the_loop).enqueue()
    with working(app, lease_seconds=30.0, heartbeat_seconds=0.1):
        assert started.wait(PATIENCE_SECONDS)
        in_an_hour = datetime.now(UTC) + timedelta(hours=1)
        eventually(lambda: app.store.sweep(now=in_an_hour).requeued)  # a heartbeat may hold it
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "the winner's result"
        eventually(lambda: LeaseLost in told)
    assert told == [*([asyncio.CancelledError] if kind == "async" else []), LeaseLost, LeaseLost]
    job = app.get(handle.id)
    assert (job.state, job.token, job.error) == (State.SUCCEEDED, 2, None)
    assert app.progress(handle.id).checkpoint is None


@statement(22)
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_handler_that_finishes_although_asked_to_stop_has_finished(
    app: Tenure, kind: str
) -> None:
    """Its own result counts, not the request that it did not follow."""
    started = threading.Event()

    @app.task(name="thread")
    def in_a_thread(job: Running) -> str:
        started.set()
        assert job.cancelled.wait(PATIENCE_SECONDS)
        return "finished"

    @app.task(name="async")
    async def on_the_loop(job: Running) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert job.cancelled
        return "finished"

    handle = (in_a_thread if kind == "thread" else on_the_loop).enqueue()
    with working(app, heartbeat_seconds=0.1):
        assert started.wait(PATIENCE_SECONDS)
        assert app.cancel(handle.id) is State.RUNNING
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "finished"


FORGETFUL = """
import asyncio, threading
from tenure import Tenure, Worker

app = Tenure()
started = threading.Event()

@app.task()
def endless() -> None:
    started.set()
    threading.Event().wait()

async def main() -> None:
    working = asyncio.create_task(Worker(app).serve())
    endless.enqueue()
    await asyncio.to_thread(started.wait)

asyncio.run(main())
"""

SUPERVISED = """
from tenure import Tenure

app = Tenure()

@app.task()
def work() -> None: ...

if __name__ == "__main__":
    app.run_worker(processes=2)
"""


@pytest.mark.slow
@statement(63)
def test_a_worker_does_not_keep_a_process_alive_whose_work_is_done(
    shared_url: str, tmp_path: Path
) -> None:
    """An application that ends without stopping its worker ends, with a handler in a thread that
    never returns."""
    script = tmp_path / "forgetful.py"
    script.write_text(FORGETFUL)
    with Script(script, shared_url, folder=tmp_path) as process:
        assert process.ends() == 0, process.output


@pytest.mark.slow
@statement(63)
def test_worker_processes_end_when_their_supervisor_is_gone(
    shared_url: str, tmp_path: Path
) -> None:
    """The supervisor is killed and cannot tell them anything."""
    script = tmp_path / "supervised.py"
    script.write_text(SUPERVISED)
    with Script(script, shared_url, folder=tmp_path) as supervisor, Tenure(shared_url) as app:
        eventually(lambda: len(app.workers()) == 2)
        workers = [child.pid for child in psutil.Process(supervisor.pid).children()]
        supervisor.signal(signal.SIGKILL)
        assert len(workers) == 2
        eventually(lambda: all(is_gone(pid) for pid in workers))
        assert app.workers() == []  # they signed off
