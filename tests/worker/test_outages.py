"""A database that goes away in the middle: nothing is lost, nothing floods the log, all goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenure import Running, State, Tenure
from tenure.store import Store
from tenure.store.jobs.sweep import extend
from tenure.worker.environment import Environment
from tests.conftest import migrate
from tests.support.postgres import Server
from tests.worker.faulty import FaultyEnvironment
from tests.worker.support import PATIENCE_SECONDS, Lines, ended, eventually, listen, working

JOBS = 200


class Beats(Environment):
    """Knows when the heartbeats were sent that renewed a lease."""

    def __init__(self) -> None:
        self.answered: list[float] = []

    def wrap(self, store: Store) -> Store:
        return Beating(store, self)


class Beating(Store):
    """A store that tells `Beats` what was answered."""

    def __init__(self, store: Store, beats: Beats) -> None:
        super().__init__(store._scope.session, store._scope.tenant)
        self._inner = store
        self._beats = beats

    def run(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        sent_at = time.monotonic()
        answer = self._inner.run(call, *args, **kwargs)
        if call is extend:
            self._beats.answered.append(sent_at)
        return answer


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that may be stopped without harm to other tests."""
    with Server() as server:
        yield server


@pytest.fixture
def own_url(own_server: Server) -> Iterator[str]:
    own_server.start()
    url = own_server.create_database()
    migrate(url)
    yield url
    own_server.start()
    own_server.drop_database(url)


def counting(app: Tenure, ran: list[int]) -> list[int]:
    """Jobs that take a moment each, of both kinds."""

    @app.task()
    async def in_loop(number: int) -> int:
        await asyncio.sleep(0.01)
        ran.append(number)
        return number

    @app.task()
    def in_thread(number: int) -> int:
        time.sleep(0.01)
        ran.append(number)
        return number

    calls = [(in_loop if n % 2 else in_thread).call(n) for n in range(JOBS)]
    return [handle.id for handle in app.enqueue_many(calls)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_the_server_loses_nothing(own_server: Server, own_url: str, mode: str) -> None:
    ran: list[int] = []
    with Tenure(own_url) as app:
        ids = counting(app, ran)
        with working(app, async_slots=4, thread_slots=4, lease_seconds=10.0):
            eventually(lambda: len(ran) > 20)
            own_server.restart("fast" if mode == "fast" else "immediate")
            for n, id in enumerate(ids):
                job = ended(app, id)
                assert (job.state, job.result) == (State.SUCCEEDED, str(n))
    assert sorted(set(ran)) == list(range(JOBS))


@pytest.mark.slow
def test_an_outage_is_told_once_and_handlers_stop_before_the_lease_ends(
    own_server: Server, own_url: str, lines: Lines
) -> None:
    seen: list[str] = []
    beats, lease_seconds = Beats(), 4.0
    with Tenure(own_url, give_up_seconds=0.5) as app:
        heard = listen(app)

        @app.task()
        async def slow() -> str:
            seen.append("started")
            try:
                await asyncio.sleep(60 if len(seen) == 1 else 0)
            except asyncio.CancelledError:
                seen.append(f"stopped {time.monotonic() < beats.answered[-1] + lease_seconds}")
                raise
            return "done"

        with working(app, environment=beats, lease_seconds=lease_seconds):
            handle = slow.enqueue()
            eventually(lambda: seen and beats.answered)
            own_server.stop("immediate")
            eventually(lambda: len(seen) == 2)
            assert seen == ["started", "stopped True"]
            assert heard.kinds(handle.id) == ["started", "lost"]
            said = len(lines.texts())
            time.sleep(4)  # the outage goes on: that is what is looked at
            assert len(lines.texts()) - said <= 8
            own_server.start()
            assert handle.wait(timeout_seconds=30) == "done"
        assert app.get(handle.id).crashes == 1
    outage = lines.with_text("failed, trying again")
    assert len(outage) == len(set(outage))
    assert lines.with_text("works again") or lines.with_text("work again")


@pytest.mark.slow
def test_what_finished_during_an_outage_is_written_after_it(
    own_server: Server, own_url: str
) -> None:
    go_on = threading.Event()
    started = threading.Event()
    runs: list[int] = []
    with Tenure(own_url) as app:

        @app.task()
        def work() -> str:
            runs.append(1)
            started.set()
            go_on.wait(60)
            return "kept"

        with working(app, lease_seconds=60.0, heartbeat_seconds=1.0):
            handle = work.enqueue()
            assert started.wait(30)
            own_server.stop("fast")
            go_on.set()
            own_server.start()
            assert handle.wait(timeout_seconds=30) == "kept"
        job = app.get(handle.id)
    assert (len(runs), job.attempts, job.crashes) == (1, 1, 0)


@pytest.mark.slow
def test_a_worker_can_be_stopped_during_an_outage(
    own_server: Server, own_url: str, lines: Lines
) -> None:
    with Tenure(own_url, give_up_seconds=0.5) as app:

        @app.task()
        async def work() -> None: ...

        with working(app, lease_seconds=1.5) as worker:
            own_server.stop("immediate")
            eventually(lambda: lines.with_text("failed, trying again"))
            worker.stop()
        own_server.start()
        handle = work.enqueue()
        with working(app):
            assert ended(app, handle.id).state is State.SUCCEEDED


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another connection holds the write lock of a file, as another process would."""
    connection = apsw.Connection(str(path))
    eventually(lambda: _begins(connection))
    try:
        yield
    finally:
        connection.execute("commit")
        connection.close()


def _begins(connection: apsw.Connection) -> bool:
    try:
        connection.execute("begin immediate")
    except apsw.BusyError:
        return False
    return True


@pytest.mark.slow
def test_a_file_that_somebody_locks_for_seconds_loses_nothing(tmp_path: Path, lines: Lines) -> None:
    path = tmp_path / "jobs.db"
    ran: list[int] = []
    with Tenure(f"sqlite:///{path}") as app:
        ids = counting(app, ran)
        with working(app, async_slots=4, thread_slots=4, lease_seconds=20.0):
            eventually(lambda: len(ran) > 20)
            with locked(path):
                time.sleep(3)  # a long transaction of somebody else: that is what is looked at
            for n, id in enumerate(ids):
                job = ended(app, id)
                assert (job.state, job.result, job.crashes) == (State.SUCCEEDED, str(n), 0)
    assert sorted(ran) == list(range(JOBS))
    assert not lines.with_text("Traceback")


LOOPS = ("claim", "settle", "promote", "sweep", "extend")


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
