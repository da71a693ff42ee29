"""Workers count how attempts end: each end once, and nothing that is no longer theirs."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tenure import Fixed, Running, Skip, Snooze, Tenure
from tenure.errors import StoreUnavailable
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.store import AsyncStore, open_store
from tenure.worker.upkeep import upkeep
from tests.support.plain import Plain
from tests.support.recount import recounted, told
from tests.worker.support import ended, eventually, process_of, working

Run = Callable[..., Any]
COUNT = 120


def is_longer(things: list[Any], count: int) -> bool:
    return len(things) > count


def test_every_end_is_counted_once(app: Tenure, url: str) -> None:
    @app.task(max_attempts=3, retry=Fixed(0.01))
    async def act(job: Running, how: str) -> None:
        if how == "fail" or (how == "retry" and job.attempt < 3):
            raise ValueError(how)
        if how == "skip":
            raise Skip("not today")
        if how == "snooze" and job.token == 1:
            raise Snooze(0.01)
        if how == "stop":
            await asyncio.sleep(600)

    @app.task(timeout_seconds=0.05, max_attempts=1)
    async def late() -> None:
        await asyncio.sleep(600)

    @app.task(queue="other")
    def in_thread() -> None: ...

    with working(app, {"default": 4, "other": 2}):
        handles = [act.enqueue(how) for how in ("ok", "fail", "retry", "skip", "snooze")]
        handles += [late.enqueue(), in_thread.enqueue()]
        stop = act.enqueue("stop")
        for handle in handles:
            ended(app, handle.id)
        eventually(lambda: app.get(stop.id).state == "running")
        app.cancel(stop.id)
        ended(app, stop.id)
        held = act.options(delay_seconds=600).enqueue("ok")
        app.cancel(held.id)
    counted = told(app.store)
    assert counted == recounted(url)
    name = act.name
    assert {key[2]: count for key, count in counted.items() if key[1] == name} == {
        "succeeded": 3, "failed": 1, "skipped": 1, "snoozed": 1, "retried": 4, "cancelled": 2,
    }  # fmt: skip
    by_task = {each.task: each for each in app.statistics()}
    assert by_task[name].run.count == 11, "of two cancelled jobs, one has run"
    median = by_task[late.name].run.p50
    assert median is not None
    assert median >= 0.05


def test_a_wait_begins_when_the_job_is_ready_and_ends_with_its_start(app: Tenure, url: str) -> None:
    """Jobs wait for an hour that has passed, and for a due time that has passed."""

    @app.task()
    async def work() -> None: ...

    with open_store(url) as store:
        about = store.about()
        hour_ago = about.now.replace(microsecond=0) - timedelta(hours=1)
        store.enqueue([NewJob(task=work.name)], now=hour_ago)
        due_at = about.now - timedelta(hours=0.5)
        store.enqueue([NewJob(task=work.name, due_at=due_at)], now=hour_ago)
        store.enqueue([NewJob(task=work.name)])
    with working(app):
        eventually(lambda: not app.count_live())
    [each] = app.statistics(by="task")
    assert 5400 <= each.wait.seconds < 5400 + 600
    assert each.wait.counts[each.wait.counts.index(1, 12)] == 1
    assert each.run.count == each.wait.count == 3


def test_an_end_that_was_refused_is_not_counted(app: Tenure, url: str) -> None:
    started, go_on = threading.Event(), threading.Event()

    @app.task(max_attempts=5)
    def work() -> None:
        started.set()
        go_on.wait(60)

    with working(app) as worker:
        handle = work.enqueue()
        assert started.wait(60)
        with Plain(url) as plain:  # as a sweep by another worker would do
            plain.rows("delete from tenure.lease")
        process = process_of(worker)
        go_on.set()
        eventually(lambda: not process.leased_jobs.all())
        assert process.counter._tally.take() == []
    assert not told(app.store)
    assert not app.get(handle.id).state.final


def test_statistics_wait_for_the_store(
    app: Tenure, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails is sent again as it was: it is not lost, and it does not count twice."""
    monkeypatch.setattr(upkeep, "STATISTICS_SECONDS", 0.02)
    real = AsyncStore.add_statistics
    calls: list[Any] = []
    is_calm: list[bool] = []

    async def flaky(self: AsyncStore, process: str, rows: Any, *, at: Any) -> Any:
        calls.append((rows, at))
        if is_calm:
            return await real.__get__(self, AsyncStore)(process, rows, at=at)
        if len(calls) % 3 == 1:
            raise StoreUnavailable("away")
        await real.__get__(self, AsyncStore)(process, rows, at=at)
        if len(calls) % 3 == 2:
            raise StoreUnavailable("no reply to its COMMIT")
        return None

    monkeypatch.setattr(AsyncStore, "add_statistics", flaky)

    @app.task()
    async def work() -> None: ...

    with working(app):
        for _ in range(5):
            for handle in [work.enqueue() for _ in range(10)]:
                ended(app, handle.id)
            seen = len(calls)
            eventually(partial(is_longer, calls, seen))
        is_calm.append(True)
    assert told(app.store) == recounted(url)
    assert sum(told(app.store).values()) == 50


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["0.05", "1000"])
def test_statistics_of_several_processes_equal_a_recount(
    url: str, run_script: Run, seconds: str
) -> None:
    """With writes all the time, and with one write at the end of each process."""
    with open_store(url) as store:
        jobs = [
            NewJob(task="counted.act", args=encode({"n": n}), max_attempts=3) for n in range(COUNT)
        ]
        jobs += [
            NewJob(task="counted.sync", args=encode({"n": 1}), queue="threads")
            for _ in range(COUNT)
        ]
        ids = [added.id for added in store.enqueue(jobs)]
        store.cancel_many(ids[:3])
        workers = [run_script("counted", "2", seconds), run_script("counted", "1", seconds)]
        eventually(lambda: not store.count_live())
        for worker in workers:
            worker.signal(signal.SIGTERM)
        for worker in workers:
            assert worker.ends() == 0, worker.output
        counted = told(store)
        assert counted == recounted(url)
        outcomes = {key[2] for key in counted}
        assert outcomes == {"succeeded", "failed", "skipped", "retried", "snoozed", "cancelled"}
        finals = sum(n for key, n in counted.items() if key[2] not in ("retried", "snoozed"))
        assert finals == len(jobs)


@pytest.mark.slow
def test_a_crash_loses_what_was_not_written_and_no_more(url: str, run_script: Run) -> None:
    with open_store(url) as store:

        def add(count: int) -> None:
            store.enqueue(
                [NewJob(task="counted.sync", args=encode({"n": 1}), queue="threads")] * count
            )

        often = run_script("counted", "1", "0.05")
        add(50)
        eventually(lambda: sum(told(store).values()) == 50)
        add(50)
        eventually(lambda: not store.count_live())
        often.signal(signal.SIGKILL)
        often.ends()
        assert sum(recounted(url).values()) == 100
        after = sum(told(store).values())
        assert 50 <= after <= 100, "what was written before is there, and nothing counts twice"

        never = run_script("counted", "1", "1000")
        add(20)
        eventually(lambda: not store.count_live())
        never.signal(signal.SIGKILL)
        never.ends()
        assert sum(recounted(url).values()) == 120
        assert sum(told(store).values()) == after, "lost: it was only in the memory of the process"
