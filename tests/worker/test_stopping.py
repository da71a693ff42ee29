"""How a worker ends: what has finished is written, what runs may finish, the rest goes back."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path

import pytest

from tenure import Running, State, Tenure, Worker
from tenure.errors import ConfigError, InvalidInput
from tenure.worker.leases import Stop
from tests.worker import isolated
from tests.worker.conftest import Run
from tests.worker.faulty import FaultyEnvironment
from tests.worker.support import (
    FAST,
    PATIENCE_SECONDS,
    Lines,
    Script,
    Watch,
    believe_in_short_jobs,
    eventually,
    file_numbers,
    is_gone,
    process_of,
    working,
)
from tests.worker.test_handlers import station_job
from tests.worker.test_settling import Slow


def test_what_has_finished_is_written_first(app: Tenure) -> None:
    finished: list[int] = []

    @app.task()
    async def quick(number: int) -> int:
        finished.append(number)
        return number

    handles = app.enqueue_many([quick.call(n) for n in range(50)])
    with working(app, environment=Slow(), async_slots=50):
        eventually(lambda: len(finished) == 50)
    for n, handle in enumerate(handles):
        job = app.get(handle.id)
        assert (job.state, job.result_json) == (State.SUCCEEDED, str(n))


def test_running_jobs_may_finish(app: Tenure) -> None:
    started: list[str] = []

    @app.task()
    async def in_loop() -> str:
        started.append("loop")
        await asyncio.sleep(0.3)
        return "loop"

    @app.task()
    def in_thread() -> str:
        started.append("thread")
        time.sleep(0.3)
        return "thread"

    with working(app):
        handles = [in_loop.enqueue(), in_thread.enqueue()]
        eventually(lambda: len(started) == 2)
    for handle in handles:
        job = app.get(handle.id)
        assert (job.state, job.attempts) == (State.SUCCEEDED, 1)


@pytest.mark.slow
def test_running_children_may_finish(children_app: Tenure, tmp_path: Path) -> None:
    with working(children_app, process_slots=1):
        handle = isolated.sleeps.enqueue(0.5)
        eventually(lambda: file_numbers(tmp_path / "started"))
    assert children_app.get(handle.id).state is State.SUCCEEDED


@pytest.mark.slow
def test_what_does_not_finish_goes_back_uncharged(app: Tenure, lines: Lines) -> None:
    seen: list[str] = []
    go_on = threading.Event()

    @app.task()
    async def in_loop() -> None:
        seen.append("loop")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @app.task()
    def in_thread() -> str:
        seen.append("thread")
        go_on.wait(60)
        return "too late"

    with working(app, drain_seconds=0.2, kill_seconds=0.2):
        handles = [in_loop.enqueue(), in_thread.enqueue()]
        eventually(lambda: {"loop", "thread"} <= set(seen))
    assert "cancelled" in seen
    for handle in handles:
        job = app.get(handle.id)
        assert (job.state, job.attempts, job.reason) == (State.QUEUED, 0, "shutdown")
    assert lines.with_text("does not stop; its slot is stuck")
    go_on.set()


@pytest.mark.slow
def test_children_that_do_not_finish_are_stopped(children_app: Tenure, tmp_path: Path) -> None:
    with working(children_app, process_slots=1, drain_seconds=0.2, kill_seconds=5):
        handle = isolated.cleans_up.enqueue(60)
        [pid] = eventually(lambda: file_numbers(tmp_path / "started"))
    assert is_gone(pid)
    assert file_numbers(tmp_path / "cleaned") == [pid]
    job = children_app.get(handle.id)
    assert (job.state, job.attempts, job.reason) == (State.QUEUED, 0, "shutdown")


def test_a_handler_that_fails_to_clean_up_at_a_shutdown_is_not_charged(
    app: Tenure, lines: Lines
) -> None:
    started: list[int] = []

    @app.task(max_attempts=1)
    async def fails_to_clean_up() -> None:
        started.append(1)
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("cannot clean up")

    with working(app, drain_seconds=0.05, kill_seconds=5):
        handle = fails_to_clean_up.enqueue()
        eventually(lambda: started)
    job = app.get(handle.id)
    assert (job.state, job.attempts, job.reason) == (State.QUEUED, 0, "shutdown")
    assert lines.with_text("raised ValueError when a shutdown stopped it; put back")


@pytest.mark.slow
def test_a_child_that_fails_to_clean_up_at_a_shutdown_is_not_charged(
    children_app: Tenure, tmp_path: Path
) -> None:
    with working(children_app, process_slots=1, drain_seconds=0.05, kill_seconds=5):
        handle = isolated.fails_to_clean_up.enqueue(60)
        eventually(lambda: file_numbers(tmp_path / "started"))
    job = children_app.get(handle.id)
    assert (job.state, job.attempts, job.reason) == (State.QUEUED, 0, "shutdown")


def test_what_a_thread_raises_at_a_shutdown_is_its_own_failure(app: Tenure) -> None:
    """Nobody has told it to stop, and it answers nothing."""
    started, go_on = threading.Event(), threading.Event()

    @app.task(max_attempts=3, fail_on=(ValueError,))
    def fails() -> None:
        started.set()
        go_on.wait(PATIENCE_SECONDS)
        raise ValueError("bad input")

    with working(app, drain_seconds=0.05, kill_seconds=10) as worker:
        handle = fails.enqueue()
        assert started.wait(PATIENCE_SECONDS)
        process = process_of(worker)
        worker.stop()
        eventually(lambda: [h for h in process.leased_jobs.all() if h.stop is Stop.SHUTDOWN])
        go_on.set()
    job = app.get(handle.id)
    assert (job.state, job.attempts, job.reason) == (State.FAILED, 1, "error")


def test_a_thread_that_asks_is_told_of_a_shutdown(app: Tenure, lines: Lines) -> None:
    """At the end of `drain_seconds`, long before it would count as stuck."""
    started = threading.Event()

    @app.task(max_attempts=1)
    def checks(job: Running) -> None:
        assert not job.stopping
        started.set()
        while True:
            job.check()
            time.sleep(0.01)

    @app.task(max_attempts=1)
    def waits(job: Running) -> str:
        assert job.stopping.wait(PATIENCE_SECONDS)
        assert not job.lost
        job.save("half")
        job.check()
        return "not reached"

    with working(app, drain_seconds=0.05, kill_seconds=PATIENCE_SECONDS):
        handles = [checks.enqueue(), waits.enqueue()]
        assert started.wait(PATIENCE_SECONDS)
        eventually(lambda: app.get(handles[1].id).state is State.RUNNING)
    for handle in handles:
        job = app.get(handle.id)
        assert (job.state, job.attempts, job.reason) == (State.QUEUED, 0, "shutdown")
    assert app.progress(handles[1].id).checkpoint_json == '"half"'
    assert not lines.with_text("stuck")
    assert not lines.with_text("WorkerStopping")


def test_what_was_claimed_ahead_goes_back_at_once(app: Tenure) -> None:
    go_on = threading.Event()

    @app.task(queue="one")
    def blocked() -> None:
        go_on.wait(60)

    @app.task(queue="default")
    def blocked_too() -> None:
        go_on.wait(60)

    watch = Watch()
    with working(app, {"one": 1, "default": 0}, environment=watch, thread_slots=2) as worker:
        believe_in_short_jobs(worker)
        calls = [blocked.call() for _ in range(4)] + [blocked_too.call() for _ in range(4)]
        handles = app.enqueue_many(calls)
        eventually(lambda: watch.in_hand["all"] == 8)
        worker.stop()
        eventually(lambda: watch.in_hand["all"] == 2)
        go_on.set()
    jobs = [app.get(handle.id) for handle in handles]
    states = sorted((job.state, job.attempts, job.reason) for job in jobs)
    assert states[:6] == [(State.QUEUED, 0, "shutdown")] * 6
    assert [state for state, _, _ in states[6:]] == [State.SUCCEEDED] * 2


def test_nothing_starts_after_draining_has_begun(app: Tenure) -> None:
    """Short jobs make the worker claim ahead. A handler stops the worker: jobs that were claimed
    and had not started go back at once, uncharged, and the others stay queued."""
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


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_jobs_that_a_claim_brings_after_the_stop_do_not_start(app: Tenure, kind: str) -> None:
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


# --- stop, in every way ---------------------------------------------------------------------------


def test_stop_before_start(app: Tenure) -> None:
    worker = Worker(app, **FAST)
    worker.stop()
    worker.run()  # returns
    ran: list[int] = []

    @app.task()
    async def work() -> None:
        ran.append(1)

    work.enqueue()
    thread = threading.Thread(target=worker.run)  # it is as good as new
    thread.start()
    eventually(lambda: ran)
    worker.stop()
    worker.stop()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_stop_before_an_async_block(app: Tenure) -> None:
    async def main() -> None:
        worker = Worker(app, **FAST)
        worker.stop()
        async with asyncio.timeout(PATIENCE_SECONDS), worker:
            pass
        async with asyncio.timeout(PATIENCE_SECONDS), worker:
            worker.stop()
            worker.stop()

    asyncio.run(main())


def test_one_worker_serves_several_blocks_one_after_the_other(app: Tenure) -> None:
    @app.task()
    async def work() -> str:
        return "done"

    async def main() -> None:
        worker = Worker(app, **FAST)
        names = set()
        for _ in range(3):
            async with worker:
                names.add(worker.name)
                handle = await work.enqueue_async()
                assert await handle.wait_async(timeout_seconds=PATIENCE_SECONDS) == "done"
            worker_is_idle = worker.name is None
            assert worker_is_idle
        assert len(names) == 3  # an identity is used once

        async with worker:
            worker.stop()  # from inside the block
        async with worker:
            with pytest.raises(InvalidInput, match="already"):
                await worker.__aenter__()
            handle = await work.enqueue_async()
            assert await handle.wait_async(timeout_seconds=PATIENCE_SECONDS) == "done"
        await app.close_async()

    asyncio.run(main())


@pytest.mark.slow
def test_two_workers_share_a_loop(app: Tenure) -> None:
    @app.task()
    async def work(number: int) -> int:
        await asyncio.sleep(0.01)
        return number

    async def main() -> None:
        async with Worker(app, **FAST) as first, Worker(app, **FAST) as second:
            assert first.name != second.name
            handles = await app.enqueue_many_async([work.call(n) for n in range(100)])
            for n, handle in enumerate(handles):
                assert await handle.wait_async(timeout_seconds=PATIENCE_SECONDS) == n
            assert len(await app.workers_async()) == 2
        assert await app.workers_async() == []
        await app.close_async()

    asyncio.run(main())


def test_a_worker_whose_task_is_cancelled_leaves_nothing_running(app: Tenure) -> None:
    started = asyncio.Event()

    @app.task()
    async def slow() -> None:
        started.set()
        await asyncio.sleep(60)

    async def main() -> int:
        before = asyncio.all_tasks()
        serving = asyncio.create_task(Worker(app, **FAST).serve())
        handle = await slow.enqueue_async()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await started.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - before
        assert not left, left
        threads = {thread.name for thread in threading.enumerate()}
        assert not {"tenure-heartbeat", "tenure-bell"} & threads
        await app.close_async()
        return handle.id

    id = asyncio.run(main())
    assert app.get(id).state is State.RUNNING  # its lease brings it back


def test_a_worker_that_is_cancelled_while_it_is_entered_leaves_nothing_running(app: Tenure) -> None:
    starting = asyncio.Event()

    @app.on_start
    async def warm_up() -> None:
        starting.set()
        await asyncio.sleep(60)

    async def enter(worker: Worker) -> None:
        async with worker:
            raise AssertionError("it was cancelled")

    async def main() -> None:
        before = asyncio.all_tasks()
        worker = Worker(app, **FAST)
        entering = asyncio.create_task(enter(worker))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await starting.wait()
            entering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await entering
        assert asyncio.all_tasks() == before
        app.hooks.starts.clear()
        async with asyncio.timeout(PATIENCE_SECONDS), worker:  # it is as good as new
            pass
        await app.close_async()

    asyncio.run(main())


def test_a_worker_that_is_cancelled_twice_while_it_is_entered_can_be_used_again(
    app: Tenure,
) -> None:
    starting, ending = asyncio.Event(), asyncio.Event()

    @app.on_start
    async def warm_up() -> None:
        starting.set()
        try:
            await asyncio.sleep(60)
        finally:
            ending.set()
            await asyncio.sleep(0.2)

    async def main() -> None:
        worker = Worker(app, **FAST)
        entering = asyncio.create_task(worker.__aenter__())
        async with asyncio.timeout(PATIENCE_SECONDS):
            for moment in (starting, ending):
                await moment.wait()
                entering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await entering
        app.hooks.starts.clear()
        async with asyncio.timeout(PATIENCE_SECONDS), worker:
            pass
        await app.close_async()

    asyncio.run(main())


def test_a_hook_that_fails_at_the_start_ends_the_worker(app: Tenure) -> None:
    @app.on_start
    def breaks() -> None:
        raise RuntimeError("no pool today")

    with pytest.raises(RuntimeError, match="no pool today"), working(app):
        raise AssertionError("it must not start")


# --- what cannot be stopped -----------------------------------------------------------------------


def test_calls_in_the_executor_of_the_loop_do_not_hold_up_a_shutdown(app: Tenure) -> None:
    go_on, started = threading.Event(), threading.Event()

    @app.task()
    async def fills_the_executor() -> None:
        calls = [asyncio.to_thread(go_on.wait, 60) for _ in range(50)]
        asyncio.get_running_loop().call_soon(started.set)
        await asyncio.gather(*calls)

    with working(app, drain_seconds=0.1):
        handle = fills_the_executor.enqueue()
        assert started.wait(PATIENCE_SECONDS)
    job = app.get(handle.id)
    assert (job.state, job.attempts, job.reason) == (State.QUEUED, 0, "shutdown")
    go_on.set()


@pytest.mark.parametrize("task", ["deaf", "deaf_thread", "deaf_executor"])
@pytest.mark.slow
def test_handlers_that_do_not_stop_do_not_keep_the_process_alive(
    app: Tenure, run_script: Run, task: str
) -> None:
    script = run_script("station", "1", "0.2")
    script.wait_for("serves")
    id = station_job(app, task)
    script.wait_for("deaf")
    script.signal(signal.SIGTERM)
    assert script.ends() == 0
    assert "returned" in script.output
    job = app.get(id)
    assert (job.state, job.attempts, job.reason) == (State.QUEUED, 0, "shutdown")


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_worker_refuses_what_it_cannot_do(app: Tenure) -> None:
    with pytest.raises(ConfigError, match="all tenants"):
        Worker(Tenure(app.url, tenant="acme")).run()

    async def main() -> None:
        with pytest.raises(ConfigError, match="run\\(\\)"):
            await Worker(app, processes=2).serve()

    asyncio.run(main())


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


@pytest.mark.slow
def test_a_worker_that_was_not_stopped_does_not_keep_its_process_alive(
    url: str, tmp_path: Path
) -> None:
    """Not even with a handler in a thread that never returns."""
    script = tmp_path / "forgetful.py"
    script.write_text(FORGETFUL)
    with Script(script, url, folder=tmp_path) as process:
        assert process.ends() == 0, process.output
