"""Workers that end by themselves: no work left, or enough jobs; and children that are replaced."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tenure import Fixed, State, Tenure, Worker
from tests.cli.terminal import run as run_command
from tests.worker import isolated
from tests.worker.support import FAST, PATIENCE_SECONDS, eventually, working


def run(app: Tenure, **settings: object) -> Worker:
    """Run a worker that ends by itself."""
    worker = Worker(app, **(FAST | settings))
    thread = threading.Thread(target=worker.run)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    alive = thread.is_alive()
    worker.stop()
    thread.join()
    assert not alive, "the worker does not end"
    return worker


def test_a_worker_ends_when_there_is_no_work_left(app: Tenure) -> None:
    @app.task()
    async def add(n: int) -> int:
        return n + 1

    handles = app.enqueue_many([add.call(n) for n in range(300)])
    worker = run(app, until_idle=True)
    assert all(app.get(handle.id).state is State.SUCCEEDED for handle in handles)
    assert not worker.reached_max_jobs


def test_an_idle_worker_ends_at_once(app: Tenure) -> None:
    run(app, until_idle=True)


def test_it_waits_for_retries_and_children_that_come_soon(app: Tenure) -> None:
    @app.task(retry=Fixed(0.2))
    async def twice() -> str:
        if app.get(first.id).attempts == 0:
            raise ValueError
        return "done"

    @app.task()
    async def child() -> None:
        pass

    first = twice.enqueue()
    later = child.options(parents=[first]).enqueue()
    run(app, until_idle=True, idle_seconds=60.0)
    assert app.get(first.id).attempts == 2
    assert app.get(later.id).state is State.SUCCEEDED


def test_it_leaves_jobs_that_are_due_later(app: Tenure) -> None:
    @app.task()
    async def later() -> None:
        pass

    handle = later.options(delay_seconds=600).enqueue()
    run(app, until_idle=True, idle_seconds=60.0)
    assert app.get(handle.id).state is State.SCHEDULED


def test_it_waits_for_its_own_jobs_longer_than_a_drain(app: Tenure) -> None:
    """A drain of no time would put the job back."""
    gone = threading.Event()

    @app.task(max_attempts=1)
    async def slow() -> str:
        await asyncio.to_thread(gone.wait)
        return "done"

    handle = slow.enqueue()
    with working(app, until_idle=True, drain_seconds=0.0, kill_seconds=0.0):
        eventually(lambda: app.get(handle.id).state is State.RUNNING)
        gone.set()
        eventually(lambda: app.get(handle.id).state.final)
    assert app.get(handle.id).state is State.SUCCEEDED


def test_it_waits_for_jobs_of_other_workers(app: Tenure) -> None:
    @app.task()
    async def work() -> None:
        pass

    handle = work.enqueue()
    [_] = app.whole_store.claim("another-1-1-0", {"default": 1}, lease_seconds=0.5)
    run(app, until_idle=True)
    assert app.get(handle.id).state is State.SUCCEEDED, "it was swept, and run here"


@pytest.mark.parametrize("slots", [{"async_slots": 2}, {"async_slots": 100}])
def test_a_worker_starts_no_more_jobs_than_it_may(app: Tenure, slots: dict[str, int]) -> None:
    """Also if it could claim more, and from several queues."""
    started: list[int] = []

    @app.task()
    async def count(n: int) -> None:
        started.append(n)

    calls = [count.options(queue=q).call(n) for q in ("a", "b") for n in range(40)]
    app.enqueue_many(calls)
    worker = run(app, max_jobs=25, queues={"a": 0, "b": 0}, **slots)
    assert len(started) == 25
    assert worker.reached_max_jobs
    left = [job for job in app.list_jobs(limit=1000) if not job.state.final]
    assert len(left) == 55
    assert {job.state for job in left} == {State.QUEUED}


def test_jobs_that_are_put_back_do_not_count(app: Tenure) -> None:
    @app.task()
    async def known() -> None:
        pass

    other = Tenure(app.url)

    @other.task(name="gone")
    async def gone() -> None:
        pass

    other.enqueue_many([gone.call() for _ in range(5)])
    handles = app.enqueue_many([known.call() for _ in range(3)])
    other.close()
    worker = run(app, max_jobs=3)
    assert worker.reached_max_jobs
    assert all(app.get(handle.id).state is State.SUCCEEDED for handle in handles)


@pytest.mark.slow
def test_a_child_is_replaced_after_its_jobs(children_app: Tenure) -> None:
    with working(children_app, process_slots=1, max_jobs_per_child=2):
        pids = [isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) for _ in range(5)]
    assert pids[0] == pids[1]
    assert pids[2] == pids[3]
    assert len(set(pids)) == 3


JOBS = """
import os
from pathlib import Path
from tenure import Tenure

app = Tenure()


@app.task()
def note(n: int) -> int:
    return os.getpid()
"""


@pytest.mark.slow
def test_the_command_ends_with_zero_when_there_is_no_work_left(url: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    with Tenure(url) as app:
        handles = _notes(app, 20)
        done = run_command("worker", "jobs:app", "--until-idle", url=url, folder=tmp_path)
        assert done.code == 0, done.err
        assert "no work left" in done.err
        assert all(app.get(handle).state is State.SUCCEEDED for handle in handles)


@pytest.mark.slow
def test_a_supervisor_replaces_processes_until_there_is_no_work_left(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    words = ("worker", "jobs:app", "--processes", "2", "--max-jobs", "5", "--until-idle")
    with Tenure(url) as app:
        handles = _notes(app, 20)
        done = run_command(*words, url=url, folder=tmp_path)
        assert done.code == 0, done.err
        jobs = [app.get(handle) for handle in handles]
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert len({job.worker for job in jobs}) >= 4
    assert "a new one starts" in done.err


def _notes(app: Tenure, count: int) -> list[int]:
    @app.task(name="jobs.note")
    def note(n: int) -> int:
        return n

    return [handle.id for handle in app.enqueue_many([note.call(n) for n in range(count)])]
