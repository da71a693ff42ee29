"""What a worker claims: as much as it can run, a little ahead of that, and fairly."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from tenure import State, Tenure
from tenure.rules.claim import NEEDS
from tenure.store import AsyncStore
from tenure.worker.claiming import intake
from tests.worker.faulty import FaultyAsyncStore, FaultyEnvironment
from tests.worker.support import (
    PATIENCE_SECONDS,
    Watch,
    believe_in_short_jobs,
    ended,
    eventually,
    kinds,
    process_of,
    working,
)

NEVER: dict[str, Any] = {"idle_poll_seconds": 3600.0, "busy_poll_seconds": 3600.0}
"""A worker that claims when it is told to, and not because time passes."""


class Tally:
    """How many handlers run at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.order: list[str] = []

    def enter(self, name: str) -> None:
        with self._lock:
            self.now[name] += 1
            self.most[name] = max(self.most[name], self.now[name])

    def leave(self, name: str) -> None:
        with self._lock:
            self.now[name] -= 1
            self.done[name] += 1
            self.order.append(name)


def sleepy_tasks(app: Tenure, tally: Tally, queue: str = "default") -> tuple[str, str]:
    """A coroutine and a function that take their time."""

    @app.task(name=f"{queue}.loop", queue=queue)
    async def in_loop(seconds: float) -> None:
        tally.enter(queue)
        await asyncio.sleep(seconds)
        tally.leave(queue)

    @app.task(name=f"{queue}.thread", queue=queue)
    def in_thread(seconds: float) -> None:
        tally.enter(queue)
        time.sleep(seconds)
        tally.leave(queue)

    return in_loop.name, in_thread.name


def enqueue(app: Tenure, task: str, count: int, seconds: float) -> list[int]:
    found = app.find(task)
    assert found is not None
    calls = [found.call(seconds) for _ in range(count)]
    return [handle.id for handle in app.enqueue_many(calls)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loop", "thread"])
def test_long_jobs_are_never_claimed_ahead(app: Tenure, kind: str) -> None:
    tally = Tally()
    watch = Watch(lambda: tally.done["default"])
    sleepy_tasks(app, tally)
    ids = enqueue(app, f"default.{kind}", 12, 0.15)
    with working(app, environment=watch, async_slots=4, thread_slots=4):
        for id in ids:
            assert ended(app, id).state is State.SUCCEEDED
    assert watch.most_unfinished == tally.most["default"] == 4
    asks = [ask for claim in watch.claims for ask in claim.values()]
    assert all(ask.of.get(NEEDS[kind], 0) <= 4 for ask in asks for kind in ("async", "thread"))


def test_short_jobs_are_claimed_ahead_within_bounds(app: Tenure) -> None:
    done: list[None] = []
    watch = Watch(lambda: len(done))

    @app.task()
    async def nothing() -> None:
        done.append(None)

    app.enqueue_many([nothing.call() for _ in range(3000)])
    with working(app, environment=watch, async_slots=10):
        eventually(lambda: not app.count_live())
    assert 10 < watch.most_unfinished <= 10 + 1000


@pytest.mark.slow
def test_a_free_slot_is_filled_at_once(app: Tenure) -> None:
    """Not at the next poll: the other kinds of handlers, which are idle, make no difference."""
    tally = Tally()
    sleepy_tasks(app, tally)
    ids = enqueue(app, "default.thread", 4, 0.1)
    with working(app, thread_slots=1, **NEVER):
        for id in ids:
            ended(app, id)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loop", "thread"])
def test_a_free_slot_of_a_queue_is_filled_at_once(app: Tenure, kind: str) -> None:
    tally = Tally()
    sleepy_tasks(app, tally, "gpu")
    ids = enqueue(app, f"gpu.{kind}", 4, 0.1)
    with working(app, {"gpu": 1, "default": 0}, **NEVER):
        for id in ids:
            ended(app, id)
    assert tally.most["gpu"] == 1


@pytest.mark.parametrize("kind", ["loop", "thread"])
def test_the_slots_of_a_queue_are_a_hard_limit(app: Tenure, kind: str) -> None:
    """Also when jobs were short so far, and are claimed ahead."""
    tally, watch = Tally(), Watch()
    sleepy_tasks(app, tally, "gpu")
    sleepy_tasks(app, tally, "default")
    with working(app, {"gpu": 2, "default": 0}, environment=watch) as worker:
        believe_in_short_jobs(worker)
        ids = enqueue(app, f"gpu.{kind}", 40, 0.01) + enqueue(app, "default.loop", 20, 0.01)
        for id in ids:
            ended(app, id)
    assert tally.most["gpu"] == 2
    assert watch.peak["gpu"] > 2
    assert tally.done == {"gpu": 40, "default": 20}


@pytest.mark.parametrize(("kind", "slots"), [("thread", 2), ("loop", 0)])
def test_a_saturated_queue_does_not_stall_another(app: Tenure, kind: str, slots: int) -> None:
    """Be it by the slots of its own, or by all slots for handlers of its kind."""
    watch = Watch()
    go_on = threading.Event()

    @app.task(queue="slow")
    def blocked() -> None:
        go_on.wait(60)

    if kind == "loop":

        @app.task(name="fast", queue="fast")
        async def in_loop(seconds: float) -> None:
            await asyncio.sleep(seconds)
    else:

        @app.task(name="fast", queue="fast")
        def in_thread(seconds: float) -> None:
            time.sleep(seconds)

    slow = [blocked.enqueue().id for _ in range(10)]
    threads = 4 if slots else 2
    with working(app, {"slow": slots, "fast": 0}, environment=watch, thread_slots=threads):
        eventually(lambda: watch.in_hand["slow"] == 2)
        for id in enqueue(app, "fast", 30, 0.001):
            assert ended(app, id).state is State.SUCCEEDED
        assert watch.peak["slow"] == 2
        go_on.set()
        for id in slow:
            ended(app, id)


@pytest.mark.slow
def test_queues_are_served_by_weight_and_none_starves(app: Tenure) -> None:
    tally, watch = Tally(), Watch()
    weights = {"big": 12, "middle": 3, "small": 1}
    for queue in weights:
        sleepy_tasks(app, tally, queue)
        enqueue(app, f"{queue}.loop", 160, 0.02)
    with working(app, weights, environment=watch, async_slots=16):
        eventually(lambda: not app.count_live())
    ends = [n for n, queue in enumerate(tally.order) if queue == "big"]
    half = Counter(tally.order[: ends[119] + 1])
    assert half["small"] >= 5
    assert half["middle"] > half["small"]
    assert half["big"] > 2 * half["middle"]
    assert tally.most == weights


def test_jobs_claimed_ahead_that_wait_too_long_go_back_uncharged(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "PREFETCH_PATIENCE_SECONDS", 0.3)
    go_on = threading.Event()

    @app.task()
    def blocked() -> None:
        go_on.wait(60)

    watch = Watch()
    with working(app, environment=watch, thread_slots=2) as worker:
        believe_in_short_jobs(worker)
        handles = app.enqueue_many([blocked.call() for _ in range(10)])
        eventually(lambda: watch.peak["all"] == 10)
        eventually(lambda: watch.in_hand["all"] == 2)  # the running ones
        waiting = [one.id for one in handles if app.get(one.id).state is State.QUEUED]
        assert len(waiting) == 8
        for id in waiting:
            job = app.get(id)
            assert (job.attempts, job.reason) == (0, "waited too long for a slot")
        go_on.set()
        for one in handles:
            assert ended(app, one.id).attempts == 1


def test_jobs_that_wait_for_a_slot_of_their_queue_go_back_as_well(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has slots enough; the queue has not."""
    monkeypatch.setattr(intake, "PREFETCH_PATIENCE_SECONDS", 0.3)
    go_on = asyncio.Event()

    @app.task(queue="gpu")
    async def blocked() -> None:
        await go_on.wait()

    watch = Watch()
    with working(app, {"gpu": 1}, environment=watch) as worker:
        believe_in_short_jobs(worker)
        handles = app.enqueue_many([blocked.call() for _ in range(5)])
        eventually(lambda: watch.peak["all"] == 5)
        eventually(lambda: watch.in_hand["all"] == 1)
        reasons = Counter(app.get(one.id).reason for one in handles)
        assert reasons["waited too long for a slot"] == 4
        assert worker._loop is not None
        worker._loop.call_soon_threadsafe(go_on.set)
        for one in handles:
            assert ended(app, one.id).attempts == 1


def test_jobs_that_wait_for_a_slot_of_their_queue_count_as_claimed(app: Tenure) -> None:
    """Two limits together are not exceeded either: the queue's, and the worker's."""
    go_on = asyncio.Event()

    @app.task(queue="a")
    async def in_a() -> None:
        await go_on.wait()

    @app.task(queue="b")
    async def in_b() -> None:
        await go_on.wait()

    watch = Watch()
    with working(app, {"a": 2, "b": 2}, environment=watch, async_slots=4) as worker:
        believe_in_short_jobs(worker)
        ahead = process_of(worker).intake.pace.prefetch("async", 4)
        app.enqueue_many([in_a.call() for _ in range(500)] + [in_b.call() for _ in range(500)])
        eventually(lambda: len(watch.claims) >= 1)
        eventually(lambda: watch.in_hand["all"] >= 4)
        assert watch.peak["all"] <= 4 + ahead
        assert worker._loop is not None
        worker._loop.call_soon_threadsafe(go_on.set)
        eventually(lambda: not app.count_live())
        assert watch.peak["all"] <= 4 + 1000


@pytest.mark.slow
def test_thousands_of_coroutines_in_flight(app: Tenure) -> None:
    go_on = asyncio.Event()
    watch = Watch()

    @app.task()
    async def waits(number: int) -> int:
        await go_on.wait()
        return number

    count = 3000
    handles = app.enqueue_many([waits.call(n) for n in range(count)])
    with working(app, environment=watch, async_slots=5000) as worker:
        running = process_of(worker)
        eventually(lambda: running.executors["async"].job_count == count)
        eventually(lambda: all(one.started_at is not None for one in running.leased_jobs.all()))
        since = app.about().now
        seen = eventually(
            lambda: [w for w in app.workers() if w.running == count and w.seen_at > since]
        )  # heartbeats go on
        assert len(seen) == 1
        assert worker._loop is not None
        worker._loop.call_soon_threadsafe(go_on.set)
        eventually(lambda: not app.count_live())
    assert handles[-1].wait(timeout_seconds=PATIENCE_SECONDS) == count - 1
    assert {len(kinds(app, handles[n].id)) for n in (0, 1500, 2999)} == {3}


class SlowClaims(FaultyEnvironment):
    """During each claim a slot comes free, so the claim loop never has to rest."""

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        class Slow(FaultyAsyncStore):
            async def run(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
                if call.__name__ == "claim":
                    await asyncio.sleep(0.05)
                return await super().run(call, *args, **kwargs)

        return Slow(store, self)


@pytest.mark.slow
def test_a_worker_that_is_never_full_and_never_idle_promotes_due_jobs(app: Tenure) -> None:
    stop = threading.Event()
    promoted_before_the_end: list[bool] = []

    @app.task(name="busy")
    async def busy() -> None:
        if not stop.is_set():
            await busy.enqueue_async()  # the queue is never empty
            await asyncio.sleep(0.06)  # longer than what is claimed ahead

    @app.task(name="due")
    async def due() -> None:
        promoted_before_the_end.append(not stop.is_set())
        stop.set()

    for _ in range(40):
        busy.enqueue()
    with working(app, environment=SlowClaims(), async_slots=20, promote_seconds=0.1):
        handle = due.options(delay_seconds=0.5, priority=-100).enqueue()
        handle.wait(timeout_seconds=PATIENCE_SECONDS)
        assert promoted_before_the_end == [True]
