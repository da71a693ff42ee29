"""The recorder: every operation leaves two lines, a kill loses none, and nobody else pays."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tenure.app import Tenure
from tenure.errors import InvalidInput, OutcomeUnknown, StoreUnavailable
from tenure.rules.job import NewJob, State, Unique
from tenure.rules.ticks import ScheduleTiming
from tenure.store import AsyncStore, NewSchedule, Store, open_store
from tenure.testing.recorder import (
    Answered,
    Key,
    RecordingAsyncStore,
    RecordingEnvironment,
    RecordingStore,
    Refused,
)
from tenure.worker.environment import Environment
from tenure.worker.worker import Worker
from tests.crash.cast import FAST, MID_SWEEP, Stage, gone
from tests.crash.handlers import wait_deaf
from tests.processes.crew import Crew, Voice
from tests.support.history import NEVER, read_records


@pytest.mark.parametrize("style", ["sqlite-apsw", "postgres-sync"])
def test_a_job_from_its_enqueue_to_its_end_is_on_record(store_url: str, tmp_path: Path) -> None:
    app, environment = Tenure(store_url), RecordingEnvironment(tmp_path)
    environment.record(app)

    @app.task()
    def add(a: int, b: int) -> int:
        return a + b

    async def work() -> int:
        async with Worker(app, environment=environment, **FAST):
            [handle] = await app.enqueue_many_async([add.call(1, 2)])
            await handle.wait_async(timeout_seconds=180)
        return handle.id

    id = asyncio.run(work())
    app.close()
    records = read_records(tmp_path)
    [asked] = list(records.of("enqueue"))
    enqueued = asked.answer
    claims = [call.answer for call in records.of("claim")]
    granted = [
        lease for answer in claims if isinstance(answer, Answered) for lease in answer.granted
    ]
    [settled] = list(records.of("settle"))
    [run] = records.runs
    assert isinstance(enqueued, Answered)
    assert enqueued.enqueued == [(id, True)]
    assert [lease.jobs for lease in granted] == [[(id, 1)]]
    assert (settled.sent.jobs, settled.sent.outcomes, settled.answers) == (
        [(id, 1)], ["succeed"], ["landed"],
    )  # fmt: skip
    assert (run.id, run.token, run.worker, run.error) == (id, 1, settled.sent.worker, None)
    # The job may run before its enqueuer has heard that it was stored.
    assert asked.began < run.began < run.ended < settled.began < settled.ended
    assert {call.pid for call in records.calls} == {os.getpid()}


def test_what_an_enqueue_asks_for_and_what_it_is_told(tmp_path: Path) -> None:
    store = RecordingEnvironment(tmp_path).wrap(open_store(f"sqlite:///{tmp_path / 'jobs.db'}"))
    jobs = [NewJob(task="app.a", unique=Unique(key="k")), NewJob(task="app.b")]
    first, second = store.enqueue(jobs), store.for_tenant("acme").enqueue(jobs[1:])
    store.close()
    [one, two] = read_records(tmp_path).calls
    assert one.sent.keys == [Key("", "app.a", "k", "finished"), None]
    assert (one.sent.tenants, two.sent.tenants) == ([], ["acme"])
    assert isinstance(one.answer, Answered)
    assert isinstance(two.answer, Answered)
    assert [id for id, _ in one.answer.enqueued] == [told.id for told in first]
    assert two.answer.enqueued == [(second[0].id, True)]


def test_the_key_of_a_tenant_is_recorded_as_its_own(tmp_path: Path) -> None:
    store = RecordingEnvironment(tmp_path).wrap(open_store(f"sqlite:///{tmp_path / 'jobs.db'}"))
    store.for_tenant("acme").enqueue([NewJob(task="app.a", unique=Unique(key="k"))])
    store.enqueue([NewJob(task="app.a", tenant="umbrella")])
    store.close()
    [one, two] = read_records(tmp_path).calls
    assert one.sent.keys == [Key("acme", "app.a", "k", "finished")]
    assert two.sent.tenants == ["umbrella"]


def test_a_triggered_schedule_is_an_enqueue(tmp_path: Path) -> None:
    store = RecordingEnvironment(tmp_path).wrap(open_store(f"sqlite:///{tmp_path / 'jobs.db'}"))
    timing = ScheduleTiming(cron="@yearly")
    store.add_schedule(NewSchedule(name="s", timing=timing, job=NewJob(task="app.a")))
    id = store.trigger_schedule("s")
    store.close()
    [added, triggered] = read_records(tmp_path).calls
    assert added.sent.op == "add_schedule"
    assert isinstance(triggered.answer, Answered)
    assert triggered.answer.enqueued == [(id, True)]


def test_a_worker_of_an_application_on_record_is_on_record(tmp_path: Path) -> None:
    """So are the processes of a crew, which load the application and nothing else."""
    app, environment = Tenure(f"sqlite:///{tmp_path / 'jobs.db'}"), RecordingEnvironment(tmp_path)
    environment.record(app)

    @app.task()
    def work() -> None: ...

    async def once() -> None:
        async with Worker(app, **FAST):
            await work.enqueue().wait_async(timeout_seconds=180)

    asyncio.run(once())
    app.close()
    assert {"claim", "settle"} <= {call.sent.op for call in read_records(tmp_path).calls}


def test_an_operation_that_raises_says_whether_it_may_have_been_done(tmp_path: Path) -> None:
    store = RecordingEnvironment(tmp_path).wrap(open_store(f"sqlite:///{tmp_path / 'jobs.db'}"))
    store.close()
    with pytest.raises(InvalidInput):
        store.enqueue([NewJob(task="app.a")])
    [call] = read_records(tmp_path).calls
    assert isinstance(call.answer, Refused)
    assert not call.answer.unknown
    assert call.is_known


@pytest.mark.parametrize(
    ("error", "unknown"),
    [(StoreUnavailable("away"), False), (OutcomeUnknown("cut"), True), (KeyboardInterrupt(), True)],
)
def test_only_a_typed_refusal_is_certain(
    tmp_path: Path, error: BaseException, unknown: bool
) -> None:
    class Failing(Store):
        def __init__(self) -> None: ...

        def run(self, call: object, /, *args: object, **kwargs: object) -> object:  # type: ignore[override]  # noqa: ARG002
            raise error

    store = RecordingEnvironment(tmp_path).wrap(Failing())
    with pytest.raises(type(error)):
        store.sweep()
    [call] = read_records(tmp_path).calls
    assert isinstance(call.answer, Refused)
    assert (call.answer.error, call.answer.unknown) == (type(error).__name__, unknown)


def test_reading_leaves_no_line(tmp_path: Path) -> None:
    store = RecordingEnvironment(tmp_path).wrap(open_store(f"sqlite:///{tmp_path / 'jobs.db'}"))
    store.list_jobs()
    store.count_live()
    store.close()
    assert read_records(tmp_path).calls == []


@pytest.mark.slow
def test_an_operation_that_was_sent_and_never_answered_can_be_seen(stage: Stage) -> None:
    [id] = stage.add(wait_deaf.call("never"))
    assert gone(stage.victim(moment="after claim")) == -signal.SIGKILL
    rescuer = stage.victim(moment=MID_SWEEP)
    assert gone(rescuer) == -signal.SIGKILL
    cut_short = [
        call
        for call in read_records(stage.folder).of("sweep")
        if call.pid == rescuer.pid and call.answer is None
    ]
    assert [call.ended for call in cut_short] == [NEVER]
    assert stage.store.get(id).state is State.RUNNING


def test_a_line_that_was_cut_short_does_not_count(tmp_path: Path) -> None:
    environment = RecordingEnvironment(tmp_path)
    environment.wrap(open_store(f"sqlite:///{tmp_path / 'jobs.db'}")).sweep()
    [file] = tmp_path.glob("*.jsonl")
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    [call] = read_records(tmp_path).calls
    assert call.answer is None
    file.write_bytes(b"".join(whole.splitlines(keepends=True)[::2]))
    with pytest.raises(AssertionError, match="nothing was sent"):
        read_records(tmp_path)


def write_before_and_after_a_fork(voice: Voice, folder: Path) -> None:
    """A role: parent and child write at the same time."""
    store = RecordingEnvironment(folder).wrap(open_store(f"sqlite:///{folder / 'jobs.db'}"))
    store.sweep()
    child = os.fork()
    store.sweep()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    voice.say("pids", [os.getpid(), child])


@pytest.mark.slow
def test_a_fork_writes_a_file_of_its_own(tmp_path: Path, crew: Crew) -> None:
    member = crew.start(write_before_and_after_a_fork, tmp_path)
    crew.join()
    [[parent, child]] = member.said("pids")
    assert [call.pid for call in read_records(tmp_path).calls].count(parent) == 2
    assert [call.pid for call in read_records(tmp_path).calls].count(child) == 1


def test_a_worker_in_the_usual_world_pays_nothing(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path / 'jobs.db'}")
    store, async_store = app.whole_store, app.whole_async_store
    assert type(store) is Store
    assert type(async_store) is AsyncStore
    assert Environment().wrap(store) is store
    assert Environment().wrap_async(async_store) is async_store
    assert app.hooks.arounds == []
    app.close()


def test_nothing_is_recorded_twice(tmp_path: Path) -> None:
    environment = RecordingEnvironment(tmp_path)
    app = Tenure(f"sqlite:///{tmp_path / 'jobs.db'}")
    environment.record(app)
    assert type(app.whole_store) is RecordingStore
    assert type(app.whole_async_store) is RecordingAsyncStore
    assert environment.wrap(app.whole_store) is app.whole_store
    assert environment.wrap_async(app.whole_async_store) is app.whole_async_store
    app.close()
