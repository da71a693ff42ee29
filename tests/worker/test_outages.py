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
import psycopg
import pytest

from tenure import Running, State, Tenure
from tenure.errors import SchemaTooNew
from tenure.store import Store
from tenure.store.jobs.sweep import extend
from tenure.tasks import Task
from tenure.worker.environment import Environment
from tests.conftest import migrate
from tests.support.postgres import Server
from tests.worker import isolated
from tests.worker.faulty import FaultyEnvironment
from tests.worker.support import (
    PATIENCE_SECONDS,
    WORKER_THREAD,
    Lines,
    ended,
    eventually,
    listen,
    working,
)

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
                assert (job.state, job.result_json) == (State.SUCCEEDED, str(n))
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
        job = app.get(handle.id)
        assert (job.attempts, job.crashes) == (1, 0)  # the outage is not charged
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
                assert (job.state, job.result_json, job.crashes) == (State.SUCCEEDED, str(n), 0)
    assert sorted(ran) == list(range(JOBS))
    assert not lines.with_text("Traceback")


@pytest.mark.slow
def test_an_error_of_the_store_ends_no_loop_of_the_worker(app: Tenure, lines: Lines) -> None:
    """Every loop fails for a while: each says so once, goes on, and does its work when it can."""
    environment = FaultyEnvironment("promote", "sweep")

    @app.task()
    async def work(job: Running) -> int:
        return job.token

    @app.task()
    def wait() -> None:
        go_on.wait(PATIENCE_SECONDS)

    go_on = threading.Event()
    waiting = wait.enqueue()  # its lease is renewed all the time
    plain = work.enqueue()
    delayed = work.options(delay_seconds=0.01).enqueue()
    orphan = work.options(queue="orphans").enqueue()
    app.store.claim("a-dead-worker", {"orphans": 1}, lease_seconds=0.01)
    with working(app, {"default": 0, "orphans": 0}, environment=environment):
        eventually(lambda: environment.failures["promote"] and environment.failures["sweep"])
        environment.broken = {"promote", "sweep", "claim"}
        unclaimed = work.enqueue()
        eventually(lambda: environment.failures["claim"])
        environment.broken = {"settle"}
        eventually(lambda: environment.failures["settle"])
        environment.broken = {"extend"}
        eventually(lambda: environment.failures["extend"])
        environment.broken.clear()
        so_far = len(environment.sent_at["extend"])
        eventually(lambda: len(environment.sent_at["extend"]) > so_far)
        go_on.set()
        waiting.wait(timeout_seconds=PATIENCE_SECONDS)
        assert plain.wait(timeout_seconds=PATIENCE_SECONDS) == 1
        assert unclaimed.wait(timeout_seconds=PATIENCE_SECONDS) == 1
        assert delayed.wait(timeout_seconds=PATIENCE_SECONDS) == 1
        assert orphan.wait(timeout_seconds=PATIENCE_SECONDS) == 2
    for what in ("claiming for", "settling", "promoting failed", "sweeping failed", "heartbeat"):
        assert lines.with_text(what), what
    assert len(lines.with_text("sweeping failed")) == 1
    assert lines.with_text("sweeping works again")
    assert lines.with_text("took back jobs of dead workers: 1 run again, 0 finished")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["save", "save_async", "step", "child"])
def test_an_outage_of_our_own_database_charges_no_job_that_saves(
    own_server: Server, own_url: str, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Longer than the lease: the job is put back, and the next attempt goes on."""
    monkeypatch.setenv("TENURE_URL", own_url)
    monkeypatch.setenv("TENURE_TEST_FOLDER", str(tmp_path))
    go_on = threading.Event()
    with Tenure(own_url, give_up_seconds=0.5) as app:

        @app.task(max_attempts=1)
        def save(job: Running) -> int:
            while not go_on.is_set():
                job.save(1)
                time.sleep(0.05)
            return 1

        @app.task(max_attempts=1)
        async def save_async(job: Running) -> int:
            while not go_on.is_set():
                await job.save_async(1)
                await asyncio.sleep(0.05)
            return 1

        @app.task(max_attempts=1)
        def step(job: Running) -> int:
            number = 0
            while not go_on.is_set():
                number += 1
                job.step(f"{job.token}-{number}", int)
                time.sleep(0.05)
            return 1

        served = isolated.app if how == "child" else app
        tasks: dict[str, Task[[], int]] = {
            "save": save, "save_async": save_async, "step": step, "child": isolated.saves_on
        }  # fmt: skip
        with working(served, lease_seconds=3.0, process_slots=1):
            handle = tasks[how].enqueue()
            eventually(lambda: app.get(handle.id).state is State.RUNNING)
            own_server.stop("immediate")
            time.sleep(5)  # longer than the lease: that is what is looked at
            own_server.start()
            eventually(lambda: app.get(handle.id).token > 1)
            assert app.get(handle.id).attempts == 0
            go_on.set()
            (tmp_path / "go on").touch()
            assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == 1
    isolated.app.close()


@pytest.mark.slow
def test_a_short_outage_stops_no_job_that_saves(own_server: Server, own_url: str) -> None:
    """Shorter than the lease: `save` waits for the database."""
    saved: list[int] = []
    go_on = threading.Event()
    with Tenure(own_url, give_up_seconds=0.1) as app:

        @app.task(max_attempts=1)
        def work(job: Running) -> int:
            while not go_on.is_set():
                job.save(len(saved))
                saved.append(job.token)
                time.sleep(0.02)
            return job.token

        with working(app, lease_seconds=120.0):
            handle = work.enqueue()
            eventually(lambda: saved)
            own_server.stop("immediate")
            time.sleep(1)  # several tries: that is what is looked at
            own_server.start()
            so_far = len(saved)
            eventually(lambda: len(saved) > so_far)
            go_on.set()
            assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == 1


@pytest.mark.parametrize("broken", ["extend", "settle"])
def test_a_worker_that_cannot_renew_or_settle_does_not_claim(app: Tenure, broken: str) -> None:
    """It would use up the attempts of every job."""
    environment = FaultyEnvironment()

    @app.task(max_attempts=1)
    async def work() -> None: ...

    with working(app, environment=environment, lease_seconds=2.0):
        work.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
        environment.broken = {broken, "announce"} if broken == "extend" else {broken}
        first = work.enqueue()  # its settlement shows that settling fails
        # Twice: after the first time the worker knows.
        eventually(lambda: max(environment.failures[broken], environment.failures["announce"]) >= 2)
        handles = [work.enqueue() for _ in range(5)]
        looks = len(environment.sent_at.get("peek", []))
        eventually(lambda: len(environment.sent_at.get("peek", [])) > looks + 2)
        assert {app.get(handle.id).state for handle in handles} == {State.QUEUED}
        environment.broken = set()
        for handle in handles:
            handle.wait(timeout_seconds=PATIENCE_SECONDS)
        assert ended(app, first.id).state is State.SUCCEEDED


@pytest.mark.parametrize("broken", [{"extend", "announce"}, {"settle"}], ids=["extend", "settle"])
def test_a_worker_whose_heartbeats_or_settlements_meet_a_newer_schema_ends(
    app: Tenure, broken: set[str]
) -> None:
    """It does not claim, so no claim tells it."""
    environment = FaultyEnvironment()
    environment.error = SchemaTooNew

    @app.task()
    async def work() -> None: ...

    def work_until_it_ends() -> None:
        with working(
            app, environment=environment, lease_seconds=600.0, heartbeat_seconds=0.1,
            drain_seconds=0.1, kill_seconds=0.1,
        ):  # fmt: skip
            work.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
            environment.broken = broken
            work.enqueue()
            eventually(lambda: WORKER_THREAD not in {each.name for each in threading.enumerate()})

    with pytest.raises(SchemaTooNew, match="broken by the test"):
        work_until_it_ends()


def limited_role(url: str, connections: int) -> str:
    """The URL of a role that may have so many connections at a time."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("drop role if exists limited")
        admin.execute(f"create role limited login connection limit {connections}")
        admin.execute("grant all on schema tenure to limited")
        admin.execute("grant all on all tables in schema tenure to limited")
        admin.execute("grant all on all sequences in schema tenure to limited")
    return url.replace("postgres@", "limited@", 1)


@pytest.mark.slow
def test_the_role_of_a_worker_with_one_connection_left_uses_up_no_attempt(own_url: str) -> None:
    """The claiming connection works; there is none to renew or to settle."""
    with Tenure(own_url) as app:

        @app.task(max_attempts=3, name="work")
        def work() -> None: ...

        ids = [work.enqueue().id for _ in range(6)]
        limited = limited_role(own_url, connections=1)
        with Tenure(limited, give_up_seconds=0.5) as other:
            other.task(max_attempts=3, name="work")(lambda: None)
            with working(other, lease_seconds=1.0, heartbeat_seconds=0.2):
                time.sleep(6)  # several leases: that is what is looked at
        assert {(app.get(id).state, app.get(id).attempts) for id in ids} <= {
            (State.QUEUED, 0), (State.RUNNING, 0), (State.SUCCEEDED, 1)
        }  # fmt: skip
