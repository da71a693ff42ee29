"""Heartbeats: off the event loop, with a lease length per queue, and with progress on board."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tenure import Running, State, Tenure
from tenure.errors import LeaseLost
from tenure.store import AsyncStore, Store
from tenure.store.jobs.claim import claim
from tenure.store.jobs.sweep import extend
from tenure.worker.environment import Environment
from tests.worker.faulty import FaultyEnvironment
from tests.worker.support import (
    PATIENCE_SECONDS,
    Lines,
    Watch,
    Watched,
    ended,
    eventually,
    listen,
    meddle,
    process_of,
    working,
)

SHORT_LEASE: dict[str, Any] = {"lease_seconds": 2.0, "heartbeat_seconds": 0.1}


@pytest.mark.slow
def test_heartbeats_begin_with_the_claim_and_do_not_need_the_event_loop(app: Tenure) -> None:
    """Two jobs come with one claim. The first blocks the event loop for three leases, so that the
    second cannot start. No sweep takes either of them meanwhile."""
    taken = []

    def sweep_for_three_leases() -> None:
        end = time.monotonic() + 3 * SHORT_LEASE["lease_seconds"]
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
    with working(app, **SHORT_LEASE):
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
def test_heartbeats_go_on_until_the_settlement_has_landed(app: Tenure) -> None:
    """The handler has returned, and for three leases its result cannot be written. The job is still
    its worker's, and the result lands."""
    environment = FaultyEnvironment("settle")

    @app.task()
    async def quick() -> str:
        return "the only result"

    handle = quick.enqueue()
    with working(app, environment=environment, **SHORT_LEASE):
        eventually(lambda: environment.failures["settle"])
        end = time.monotonic() + 3 * SHORT_LEASE["lease_seconds"]
        while time.monotonic() < end:
            swept = app.store.sweep()
            assert swept.requeued + swept.finished == 0
            assert app.get(handle.id).state is State.RUNNING
            threading.Event().wait(0.02)
        environment.broken.clear()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "the only result"
    job = app.get(handle.id)
    assert (job.token, job.attempts, job.crashes) == (1, 1, 0)


class Hanging(Environment):
    """Heartbeats get no answer while `hangs` is set."""

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.go_on = threading.Event()

    def wrap(self, store: Store) -> Store:
        hanging = self

        class Silent(Store):
            def __init__(self) -> None:
                super().__init__(store._scope.session, store._scope.tenant)

            def run(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
                if call is extend and hanging.hangs.is_set():
                    hanging.go_on.wait(PATIENCE_SECONDS)
                return store.run(call, *args, **kwargs)

        return Silent()


@pytest.mark.slow
def test_a_heartbeat_without_an_answer_charges_no_job_and_ends_the_claims(
    app: Tenure, lines: Lines
) -> None:
    """Seen failing while only errors counted: the job lost its lease, and was charged a crash."""
    environment, started = Hanging(), threading.Event()

    @app.task(max_attempts=2)
    async def patient(job: Running) -> str:
        started.set()
        if job.token == 1:
            await asyncio.Event().wait()
        return f"token {job.token}"

    heard = listen(app)
    with working(app, environment=environment, lease_seconds=6.0, heartbeat_seconds=0.2):
        handle = patient.enqueue()
        assert started.wait(PATIENCE_SECONDS)
        environment.hangs.set()
        eventually(lambda: lines.with_text("has had no answer for"))
        later = patient.enqueue()
        eventually(lambda: "released" in heard.kinds(handle.id))
        job = app.get(handle.id)
        assert (job.attempts, job.crashes) == (0, 0)
        assert {app.get(id).state for id in (handle.id, later.id)} == {State.QUEUED}
        environment.hangs.clear()
        environment.go_on.set()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "token 2"
    assert heard.kinds(handle.id) == ["started", "lost", "released", "started", "succeeded"]
    assert len(lines.with_text("has had no answer for")) == 1
    assert lines.with_text("work again")


@pytest.mark.slow
def test_a_worker_that_cannot_renew_stops_its_handlers_before_the_lease_ends(app: Tenure) -> None:
    """No heartbeat gets through. By its own clock, counted from before it sent the claim, the
    worker stops the handler while the lease still runs, and puts the job back, uncharged."""
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
    assert heard.kinds(handle.id) == ["started", "lost", "released", "started", "succeeded"]
    assert [event.kind for event in app.timeline(handle.id)] == [
        "enqueued", "claimed", "released", "claimed", "succeeded"
    ]  # fmt: skip


def test_progress_travels_with_heartbeats(app: Tenure) -> None:
    go_on = threading.Event()

    @app.task()
    def slow(job: Running) -> None:
        for n in range(100):
            job.progress(n / 100, f"step {n}")
        go_on.wait(60)

    @app.task()
    async def slow_too(job: Running) -> None:
        job.progress(0.5)
        job.progress(message="half way")
        await asyncio.to_thread(go_on.wait, 60)

    with working(app):
        first, second = slow.enqueue(), slow_too.enqueue()
        eventually(lambda: app.progress(first.id).message == "step 99")
        assert app.progress(first.id).fraction == 0.99
        eventually(lambda: app.progress(second.id).message == "half way")
        go_on.set()
        ended(app, first.id)
        ended(app, second.id)


def test_progress_that_makes_no_sense_is_refused_where_it_is_reported(app: Tenure) -> None:
    @app.task(max_attempts=1)
    async def wrong(job: Running) -> None:
        job.progress(1.5)

    @app.task()
    async def right(job: Running) -> None:
        job.progress(1.0, "all\0of it")

    with working(app):
        bad, good = wrong.enqueue(), right.enqueue()
        assert "OutOfRange" in (ended(app, bad.id).error_json or "")
        assert ended(app, good.id).state is State.SUCCEEDED


@pytest.mark.slow
def test_each_queue_may_have_a_lease_length_of_its_own(app: Tenure) -> None:
    go_on = threading.Event()

    @app.task(queue="long")
    def in_long() -> None:
        go_on.wait(60)

    @app.task(queue="short")
    def in_short() -> None:
        go_on.wait(60)

    with working(
        app, {"long": 0, "short": 0}, lease_seconds=2.0, queue_lease_seconds={"long": 600.0}
    ):
        long, short = in_long.enqueue(), in_short.enqueue()
        for _ in range(2):  # as claimed, and after a heartbeat
            eventually(lambda: all(app.get(one.id).state is State.RUNNING for one in (long, short)))
            assert left(app, long.id) > timedelta(seconds=500)
            assert left(app, short.id) <= timedelta(seconds=3)
            before = app.get(short.id).expires_at
            eventually(partial(has_moved, app, short.id, before))
        go_on.set()
        ended(app, long.id)
        ended(app, short.id)


def has_moved(app: Tenure, id: int, deadline: object) -> bool:
    return app.get(id).expires_at != deadline


def left(app: Tenure, id: int) -> timedelta:
    """How long the lease of this job lasts, counted from the claim."""
    job = app.get(id)
    assert job.expires_at is not None
    assert job.claimed_at is not None
    seen = max(worker.seen_at for worker in app.workers())
    return job.expires_at - max(job.claimed_at, seen)


def test_a_lost_lease_is_told_to_the_handler_and_nothing_is_recorded(
    app: Tenure, url: str, lines: Lines
) -> None:
    heard = listen(app)
    seen: list[str] = []

    @app.task()
    def in_thread(job: Running) -> str:
        seen.append("thread")
        assert job.lost.wait(60)
        with pytest.raises(LeaseLost):
            job.check()
        with pytest.raises(LeaseLost):
            job.save({"too": "late"})
        return "late"

    @app.task()
    async def in_loop(job: Running) -> str:
        seen.append("loop")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append(f"cancelled, lost {bool(job.lost)}")
            raise
        return "late"

    with working(app, sweep_seconds=60) as worker:
        handles = [in_thread.enqueue(), in_loop.enqueue()]
        eventually(lambda: {"thread", "loop"} <= set(seen))
        meddle(url, "delete from tenure.lease")
        eventually(lambda: len(lines.with_text("ended after its lease was lost")) == 2)
        assert not process_of(worker).leased_jobs.all()
    assert "cancelled, lost True" in seen
    for handle in handles:
        assert heard.kinds(handle.id) == ["started", "lost"]
        assert app.get(handle.id).result is None


@pytest.mark.slow
def test_finished_leases_are_let_go(app: Tenure, url: str) -> None:
    """Here and in the database: nothing is left to renew."""
    from tests.support.plain import Plain

    @app.task()
    async def quick() -> None: ...

    with working(app) as worker:
        for _ in range(5):
            for handle in app.enqueue_many([quick.call() for _ in range(20)]):
                ended(app, handle.id)
        process = process_of(worker)
        watchlist = process.watchlist
        eventually(lambda: not process.leased_jobs.leases)
        eventually(lambda: not watchlist.timed and not watchlist.stopping and not watchlist.stuck)
        with Plain(url) as plain:
            eventually(lambda: plain.one("select count(*) from tenure.lease") == 0)
        assert [executor.job_count for executor in process.executors.values()] == [0, 0, 0]
        assert process.intake.slots.in_use("default") == 0


class Delayed(Watch):
    """The first claim is answered when its lease is almost over, by the clock of the worker."""

    def __init__(self) -> None:
        super().__init__()
        self.late_seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.late_seconds

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        return DelayedStore(store, self)


class DelayedStore(Watched):
    async def run(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        answer = await super().run(call, *args, **kwargs)
        watch = self._watch
        if call is claim and answer and isinstance(watch, Delayed):
            watch.late_seconds = 59.0
        return answer


@pytest.mark.slow
def test_jobs_whose_claim_is_answered_late_are_not_started(app: Tenure, lines: Lines) -> None:
    """Others may have them by then. What is still ours goes back, uncharged."""
    ran: list[int] = []

    @app.task()
    async def work(job: Running) -> None:
        ran.append(job.token)

    handle = work.enqueue()
    with working(app, environment=Delayed(), lease_seconds=60.0, sweep_seconds=600.0):
        job = ended(app, handle.id)
    assert (job.attempts, job.crashes) == (1, 0)
    assert ran == [2]
    assert lines.with_text("got a lease too late")
