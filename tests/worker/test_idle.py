"""A worker with nothing to do looks, and does nothing else; and yet nothing is late."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tenure import State, Tenure
from tenure.rules.job import NewJob
from tenure.store import AsyncStore, open_store
from tenure.store.api import Operation
from tenure.store.bell import Bell
from tenure.store.postgres import bell as bell_postgres
from tenure.store.proxy import AsyncStoreProxy
from tenure.store.session import P, R
from tenure.worker.environment import Environment
from tests.worker.support import ended, eventually, working

NEVER = 3600.0
DEAD = "dead-1-1-00000000"


class Counting(Environment):
    """Counts the operations of a worker's event loop, by name."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        return CountingStore(store, self)


class CountingStore(AsyncStoreProxy):
    """Tells a `Counting` environment what passes."""

    def __init__(self, store: AsyncStore, environment: Counting) -> None:
        super().__init__(store, environment)
        self._seen = environment.seen

    async def run(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._seen[operation.__name__] += 1
        return await self._store.run(operation, *args, **kwargs)


@pytest.fixture
def task(app: Tenure) -> Callable[[], list[float]]:
    """An application with a task; answers when its jobs started."""
    moments: list[float] = []

    @app.task(name="moment")
    async def moment() -> None:
        moments.append(time.time())

    return lambda: moments


def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bells hear, and what they ring is lost."""
    monkeypatch.setattr(Bell, "_call", lambda _: None)


def test_an_idle_worker_only_looks(app: Tenure, task: Callable[[], list[float]]) -> None:
    environment = Counting()
    with working(app, environment=environment):
        app.store.enqueue([NewJob(task="moment")])
        eventually(task)
        eventually(lambda: not app.count_live())

        def only_looks() -> bool:
            before = Counter(environment.seen)
            eventually(lambda: environment.seen["peek"] >= before["peek"] + 5)
            return set(environment.seen - before) == {"peek"}

        eventually(only_looks)


@pytest.mark.slow
def test_a_worker_sleeps_until_a_job_is_due(
    app: Tenure, task: Callable[[], list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody wakes it, and after two seconds its next look would be at four."""
    deaf(monkeypatch)
    monkeypatch.setattr(bell_postgres, "AHEAD_SECONDS", NEVER)
    late: list[float] = []
    while not late or (min(late) > 0.5 and len(late) < 3):  # a busy machine is no failing test
        app.store.enqueue([NewJob(task="moment", delay_seconds=2.5)])
        due = time.time() + 2.5
        with working(app, busy_poll_seconds=0.001, idle_poll_seconds=NEVER):
            eventually(lambda: len(task()) > len(late))
        late.append(task()[-1] - due)
    assert -0.5 < min(late) < 0.5


@pytest.mark.slow
def test_a_job_that_comes_and_is_due_before_the_next_look_starts_on_time(
    app: Tenure, task: Callable[[], list[float]]
) -> None:
    with working(app, idle_poll_seconds=NEVER, busy_poll_seconds=NEVER):
        for count in range(1, 4):
            due = time.time() + 0.3
            with open_store(app.url) as other:
                other.enqueue([NewJob(task="moment", delay_seconds=0.3)])
            eventually(lambda count=count: len(task()) == count)  # type: ignore[misc]
            assert task()[-1] >= due - 0.01


def test_a_busy_worker_puts_due_jobs_in_line(app: Tenure) -> None:
    """It has no room for more, and more stands in line."""
    go_on = threading.Event()

    @app.task()
    def blocks() -> None:
        go_on.wait(60)

    with working(app, thread_slots=1):
        handles = [blocks.enqueue() for _ in range(3)]
        eventually(lambda: app.get(handles[0].id).state is State.RUNNING)
        later = blocks.options(delay_seconds=0.2).enqueue()
        eventually(lambda: app.get(later.id).state is State.QUEUED)
        go_on.set()
        ended(app, later.id)


@pytest.mark.parametrize("delay_seconds", [None, 0.1])
def test_what_the_bell_did_not_tell_is_found_all_the_same(
    app: Tenure,
    task: Callable[[], list[float]],
    monkeypatch: pytest.MonkeyPatch,
    delay_seconds: float | None,
) -> None:
    deaf(monkeypatch)
    with working(app, idle_poll_seconds=0.2):
        for count in range(1, 4):
            app.store.enqueue([NewJob(task="moment", delay_seconds=delay_seconds)])
            eventually(lambda count=count: len(task()) == count)  # type: ignore[misc]


@pytest.mark.slow
def test_jobs_of_the_dead_are_swept_by_an_idle_worker(
    app: Tenure,
) -> None:
    """When there is something to sweep, and not before."""
    environment = Counting()
    with working(app, environment=environment):
        eventually(lambda: environment.seen["sweep"] and environment.seen["peek"] > 3)
        swept = environment.seen["sweep"]
        [job] = app.store.enqueue([NewJob(task="moment", queue="other")])
        app.store.claim(DEAD, {"other": 1}, lease_seconds=5.0)
        looks = environment.seen["peek"]
        eventually(lambda: environment.seen["peek"] > looks + 3)
        assert environment.seen["sweep"] == swept
        eventually(lambda: app.get(job.id).state is State.QUEUED)
        assert app.get(job.id).crashes == 1


@pytest.mark.slow
def test_a_paused_queue_is_not_claimed_from_in_vain(
    app: Tenure, task: Callable[[], list[float]]
) -> None:
    environment = Counting()
    app.pause("default")
    app.store.enqueue([NewJob(task="moment")])
    with working(app, environment=environment):
        eventually(lambda: environment.seen["peek"] > 10)
        assert not task()
        app.resume("default")
        eventually(task)
