"""Jobs run here and now, one after the other, in the thread or on the loop of the caller."""

import asyncio
import inspect
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from tenure.client import Client
from tenure.codec import decode
from tenure.errors import InvalidInput
from tenure.job import LIVE_STATES, Claimed, Job, State
from tenure.lifecycle import Settlement
from tenure.running import Flag, running_as
from tenure.tasks import Task
from tenure.worker.attempt import Attempt, undecodable, unknown_task
from tenure.worker.executors import Undecodable, prepare

R = TypeVar("R")
WORKER = "testing"
MAX_JOBS = 10_000


class Enqueued(msgspec.Struct, frozen=True):
    """A job that stands in line, its arguments decoded."""

    id: int
    task: str
    args: object
    queue: str
    priority: int
    tenant: str
    state: State
    job: Job


def enqueued(app: Client, task: Task[..., Any] | str | None = None) -> list[Enqueued]:
    """The live jobs, oldest first; of one task, when it is named."""
    name = task.name if isinstance(task, Task) else task
    found: list[Job] = []
    before: int | None = None
    while True:
        page = app.list_jobs(states=LIVE_STATES, task=name, limit=500, before=before)
        found += page.jobs
        before = page.next
        if before is None:
            break
    return [
        Enqueued(j.id, j.task, decode(j.args), j.queue, j.priority, j.tenant, j.state, j)
        for j in reversed(found)
    ]


def drain(app: Client, *queues: str, most: int = MAX_JOBS) -> list[Job]:
    """Run everything that is ready, also what that enqueues, until nothing is. In one thread.

    Without names, all queues with live jobs. A job that is due later is not run: advance the clock.
    Answers the jobs that ended, in order. A job that is retried is run again when it is due.
    """
    return _finish(_drain(app, queues, most))


async def drain_async(app: Client, *queues: str, most: int = MAX_JOBS) -> list[Job]:
    """`drain` for tests that run on an event loop."""
    return await _drain(app, queues, most)


def run_job(app: Client, id: int) -> Job:
    """Run one job that is ready, before all others. Answers what became of it."""
    return _finish(_run_one(app, id))


async def run_job_async(app: Client, id: int) -> Job:
    """`run_job` for tests that run on an event loop."""
    return await _run_one(app, id)


def _finish(work: Coroutine[Any, Any, R]) -> R:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise InvalidInput("an event loop is running here; use the function that ends in _async")


async def _drain(app: Client, queues: tuple[str, ...], most: int) -> list[Job]:
    ended: list[Job] = []
    for _ in range(most):
        job = _claim(app, queues)
        if job is None:
            return ended
        seen = await _run(app, job)
        if seen.state.final:
            ended.append(seen)
    raise InvalidInput(
        f"{most} jobs have run and there are more; does one enqueue itself for ever?"
    )


async def _run_one(app: Client, id: int) -> Job:
    before = app.get(id)
    if before.state is not State.QUEUED or before.held or before.queue_paused:
        raise InvalidInput(f"job {id} cannot run now: {app.why(id)}")
    app.whole_store.move(id, priority=-100)
    job = _claim(app, (before.queue,))
    while job is not None and job.id != id:  # others of the highest priority
        await _run(app, job)
        job = _claim(app, (before.queue,))
    assert job is not None
    return await _run(app, job)


def _claim(app: Client, queues: tuple[str, ...]) -> Claimed | None:
    store = app.whole_store
    store.promote()
    names = queues or tuple(sorted({count.queue for count in store.count_live()}))
    for name in names:
        for lease in store.claim(WORKER, {name: 1}, lease_seconds=3600):
            return lease.jobs[0]
    return None


class _Signals:
    def __init__(self) -> None:
        self.cancelled = Flag()
        self.lost = Flag()
        self.completed = False
        self.progress: tuple[float | None, str | None] | None = None


async def _run(app: Client, job: Claimed) -> Job:
    signals = _Signals()
    settlement = await _attempt(app, job, signals)
    store = app.whole_store
    if signals.progress is not None:
        store.report_progress(WORKER, [(job, *signals.progress)])
    if not signals.completed and settlement is not None:
        store.settle(WORKER, [settlement], done_leases=[job.lease_id])
    return app.whole_store.get(job.id)


async def _attempt(app: Client, job: Claimed, signals: _Signals) -> Settlement | None:
    task = app.find(job.task)
    if task is None:
        return unknown_task(job)
    attempt = Attempt(job, task.options_of_task, lambda: 0.5)
    started = time.monotonic()
    try:
        fn, args, kwargs, running = prepare(task, job, signals, app, WORKER)
        with running_as(running), app.hooks.around(running):
            result = fn(*args, **kwargs)
            if inspect.iscoroutine(result):
                result = await result
        return attempt.returned(result, time.monotonic() - started)
    except Undecodable as bad:
        return undecodable(job, bad.error)
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure
        return attempt.raised(error, time.monotonic() - started)
