"""The worker's loops: what it claims, how it begins and ends, and what it survives."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from tenure import Running, State, Tenure, Worker
from tenure.errors import ConfigError
from tenure.rules.job import NewJob
from tests.statements.faulty import FaultyEnvironment
from tests.statements.support import defect, statement
from tests.worker.support import (
    FAST,
    PATIENCE_SECONDS,
    Lines,
    eventually,
    process_of,
    working,
)

LOOPS = ("claim", "settle", "promote", "sweep", "extend")


@statement(10)
@defect("F-3", "F-15")
def test_a_queue_whose_slots_are_taken_neither_hoards_jobs_nor_delays_another(
    app: Tenure,
) -> None:
    """Of the slow queue one job runs and the others stay in line, free for other workers; the jobs
    of the quick queue run meanwhile."""
    release = threading.Event()

    @app.task(queue="slow")
    def slow() -> None:
        release.wait(PATIENCE_SECONDS)

    @app.task(queue="quick")
    def quick() -> str:
        return "done"

    app.enqueue_many([slow.call() for _ in range(10)])
    quicks = app.enqueue_many([quick.call() for _ in range(50)])
    with working(app, {"slow": 1, "quick": 4}):
        for handle in quicks:
            assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "done"
        left = Counter({str(count.state): count.jobs for count in app.count_live()})
        assert left == {"running": 1, "queued": 9}
        release.set()


@defect("C-18")
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_jobs_run_at_the_same_time_on_every_store(app: Tenure, kind: str) -> None:
    """Eight handlers that wait for each other all come through."""
    barrier = threading.Barrier(8, timeout=PATIENCE_SECONDS)
    arrived: list[asyncio.Event] = []

    @app.task(name="thread")
    def in_a_thread() -> None:
        barrier.wait()

    @app.task(name="async")
    async def on_the_loop() -> None:
        arrived.append(asyncio.Event())
        if len(arrived) == 8:
            for event in arrived:
                event.set()
        await arrived[-1 if len(arrived) < 8 else 0].wait()

    task = in_a_thread if kind == "thread" else on_the_loop
    handles = app.enqueue_many([task.call() for _ in range(8)])
    with working(app):
        for handle in handles:
            handle.wait(timeout_seconds=PATIENCE_SECONDS)
    assert all(app.get(handle.id).attempts == 1 for handle in handles)


@statement(60, 61)
def test_nothing_starts_after_draining_has_begun(app: Tenure) -> None:
    """Short jobs make the worker claim ahead. A handler stops the worker: what was claimed and had
    not started goes back at once, uncharged, and what stood in line stays there."""
    started: list[int] = []

    @app.task()
    def short(number: int) -> None:
        started.append(number)
        if number == 100:
            worker.stop()
            eventually(process_of(worker)._stopping.is_set)

    handles = app.enqueue_many([short.call(number) for number in range(300)])
    with working(app, thread_slots=1) as worker:
        eventually(lambda: 100 in started)
    assert started == list(range(101))
    left = app.list_jobs(states=[State.QUEUED], limit=300).jobs
    assert {job.id for job in left} == {handle.id for handle in handles[101:]}
    assert {(job.attempts, job.crashes) for job in left} == {(0, 0)}
    claimed_ahead = [job for job in left if job.token > 1]
    assert claimed_ahead
    assert {job.reason for job in claimed_ahead} == {"shutdown"}


@statement(60, 61)
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_what_a_claim_brings_after_the_worker_was_stopped_does_not_start(
    app: Tenure, kind: str
) -> None:
    """The claim was under way when the stop came."""
    environment = FaultyEnvironment()
    started: list[str] = []

    @app.task(name="thread")
    def in_a_thread() -> None:
        started.append("thread")

    @app.task(name="async")
    async def on_the_loop() -> None:
        started.append("async")

    task = in_a_thread if kind == "thread" else on_the_loop
    handles = app.enqueue_many([task.call() for _ in range(5)])
    worker = Worker(app, environment=environment, **FAST)
    environment.moments["after claim"] = lambda: process_of(worker).stop()
    worker.run()
    assert started == []
    for handle in handles:
        job = app.get(handle.id)
        assert (job.state, job.attempts, job.reason) == (State.QUEUED, 0, "shutdown")
        assert job.token == 2  # it had been claimed


@statement(62)
def test_an_error_of_the_store_ends_no_loop_of_the_worker(app: Tenure, lines: Lines) -> None:
    """Every loop fails for a while: each says so once, goes on, and does its work when it can."""
    environment = FaultyEnvironment(*LOOPS)

    @app.task()
    async def work(job: Running) -> int:
        return job.token

    plain = work.enqueue()
    delayed = work.options(delay_seconds=0.01).enqueue()
    orphan = work.options(queue="orphans").enqueue()
    app.store.claim("a-dead-worker", {"orphans": 1}, lease_seconds=0.01)
    with working(app, {"default": 0, "orphans": 0}, environment=environment):
        eventually(
            lambda: all(environment.failures[loop] for loop in set(LOOPS) - {"settle", "extend"})
        )
        environment.broken = {"settle", "extend"}
        eventually(lambda: environment.failures["settle"] and environment.failures["extend"])
        environment.broken.clear()
        assert plain.wait(timeout_seconds=PATIENCE_SECONDS) == 1
        assert delayed.wait(timeout_seconds=PATIENCE_SECONDS) == 1
        assert orphan.wait(timeout_seconds=PATIENCE_SECONDS) == 2
    for what in ("claiming for", "settling", "promoting failed", "sweeping failed", "heartbeat"):
        assert lines.with_text(what), what
    assert len(lines.with_text("sweeping failed")) == 1


@statement(65)
def test_a_worker_makes_up_a_name_of_its_own_at_each_start(app: Tenure) -> None:
    """Nobody can give two workers one name, or none: there is no setting for it."""

    @app.task()
    async def work() -> None: ...

    names = []
    for _ in range(2):
        handle = work.enqueue()
        with working(app) as worker:
            handle.wait(timeout_seconds=PATIENCE_SECONDS)
            names.append(worker.name)
        assert app.get(handle.id).worker == names[-1]
    assert all(names)
    assert names[0] != names[1]
    with pytest.raises(ConfigError, match="unknown worker setting 'name'"):
        Worker(app, name="mine")  # type: ignore[call-arg]


@statement(66)
def test_a_queue_that_nobody_has_heard_of_is_reported(app: Tenure, lines: Lines) -> None:
    """By the worker that was started for it, and to whoever asks why a job does not run."""

    @app.task(queue="mail")
    async def send() -> None: ...

    handle = send.enqueue()
    with working(app, {"mial": 0}):
        eventually(app.workers)
        assert "no worker serves" in app.why(handle.id)
    [said] = lines.with_text("but no task of its application uses that queue")
    assert "mial" in said
    assert "its tasks use mail" in said
    [lost] = app.store.enqueue([NewJob(task=send.name, queue="mial")])
    with working(app, {"mial": 0}):
        app.wait(lost.id, timeout_seconds=PATIENCE_SECONDS)  # it serves it all the same
