"""Kinds of slots do not hold each other up: each is claimed for by itself."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tenure import Fixed, State, Tenure, Worker
from tenure.rules.claim import NEEDS, UNKNOWN, Ask, Kind, Lease
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import Outcome
from tenure.worker.claiming import intake
from tests.worker import isolated
from tests.worker.support import (
    Watch,
    believe_in_short_jobs,
    ended,
    eventually,
    process_of,
    working,
)

NEVER: dict[str, Any] = {"idle_poll_seconds": 3600.0, "busy_poll_seconds": 3600.0}
"""A worker that claims when it is told to, and not because time passes."""
ONE_EACH: dict[str, Any] = {"async_slots": 1, "thread_slots": 1, "process_slots": 1}


class Stage:
    """Tasks that wait until the test lets them go, and tasks that end at once."""

    def __init__(self, app: Tenure) -> None:
        self.app = app
        self.open = threading.Event()
        self.started: list[str] = []

        @app.task(name="slow.async")
        async def slow_async() -> None:
            self.started.append("async")
            while not self.open.is_set():  # noqa: ASYNC110 - the test sets it in another thread
                await asyncio.sleep(0.01)

        @app.task(name="slow.thread")
        def slow_thread() -> None:
            self.started.append("thread")
            self.open.wait()

        @app.task(name="quick.async")
        async def quick_async() -> str:
            return "async"

        @app.task(name="quick.thread")
        def quick_thread() -> str:
            return "thread"

    def enqueue(self, name: str, count: int = 1) -> list[int]:
        task = self.app.find(name)
        assert task is not None
        return [handle.id for handle in self.app.enqueue_many([task.call()] * count)]


@pytest.mark.parametrize(("full", "free"), [("thread", "async"), ("async", "thread")])
@pytest.mark.parametrize("bell", [True, False])
def test_a_full_kind_holds_up_no_other(app: Tenure, full: str, free: str, bell: bool) -> None:
    """The jobs of the full kind are first in line, and more of them wait."""
    stage = Stage(app)
    stage.enqueue(f"slow.{full}", 5)
    polls: dict[str, Any] = NEVER if bell else {}
    try:
        with working(app, **ONE_EACH, **polls):
            eventually(lambda: stage.started == [full])
            for _ in range(3):
                [id] = stage.enqueue(f"quick.{free}")
                assert ended(app, id).state is State.SUCCEEDED
            assert stage.started == [full]
            stage.open.set()
            eventually(lambda: not app.count_live())
    finally:
        stage.open.set()


def test_a_full_kind_holds_up_no_other_that_waits_already(app: Tenure) -> None:
    """Both are in line before the worker starts, the others far behind."""
    stage = Stage(app)
    stage.enqueue("slow.thread", 200)
    ids = stage.enqueue("quick.async", 50)
    try:
        with working(app, thread_slots=1, drain_seconds=0.0):
            for id in ids:
                assert ended(app, id).state is State.SUCCEEDED
            assert stage.started == ["thread"]
            stage.open.set()
    finally:
        stage.open.set()


def test_busy_child_processes_hold_up_no_other(children_app: Tenure, tmp_path: Path) -> None:
    for _ in range(3):
        isolated.sleeps.enqueue(3600.0)
    with working(children_app, **ONE_EACH, drain_seconds=0.0):
        eventually((tmp_path / "started").exists)
        for task in (isolated.in_loop, isolated.in_thread):
            handle = task.enqueue()
            assert ended(children_app, handle.id).result_json == f'"{task.kind}"'


def test_each_queue_gets_its_part_of_each_kind(app: Tenure) -> None:
    """Slots of its own limit a queue whatever the kind, and leave the other queue its slots."""
    tally, open_ = Counter[str](), threading.Event()
    lock = threading.Lock()

    def come(name: str) -> None:
        with lock:
            tally[name] += 1

    for queue in ("small", "large"):

        @app.task(name=f"{queue}.async", queue=queue)
        async def in_loop(name: str) -> None:
            come(name)
            while not open_.is_set():  # noqa: ASYNC110 - the test sets it in another thread
                await asyncio.sleep(0.01)

        @app.task(name=f"{queue}.thread", queue=queue)
        def in_thread(name: str) -> None:
            come(name)
            open_.wait()

        for task in (in_loop, in_thread):
            app.enqueue_many([task.call(task.name) for _ in range(20)])
    try:
        with working(app, {"small": 2, "large": 0}, async_slots=6, thread_slots=4):
            eventually(lambda: tally.total() == 10)
            assert tally["small.async"] + tally["small.thread"] == 2
            assert tally["large.async"] + tally["small.async"] == 6
            open_.set()
            eventually(lambda: not app.count_live())
    finally:
        open_.set()


# --- jobs whose kind is not known, or has changed ------------------------------------------------


def raw(task: str, needs: int = UNKNOWN) -> NewJob:
    return NewJob(task=task, args=encode({}), needs=needs)


@pytest.mark.parametrize("needs", [UNKNOWN, *NEEDS.values()])
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_job_runs_whatever_its_ticket_says(app: Tenure, needs: int, kind: str) -> None:
    """It was enqueued by name, or by code in which its task was of another kind."""
    Stage(app)
    [job] = app.store.enqueue([raw(f"quick.{kind}", needs)])
    with working(app):
        assert ended(app, job.id).result_json == f'"{kind}"'


class Counting(Watch):
    """Counts the claims that brought jobs, and the jobs of threads that a worker has."""

    def __init__(self) -> None:
        super().__init__()
        self.claims_with_jobs = self.most_in_threads = 0
        self.worker: Worker | None = None

    def took(self, leases: list[Lease]) -> None:
        super().took(leases)
        self.claims_with_jobs += bool(leases)
        if self.worker is not None:
            before = process_of(self.worker).executors["thread"].job_count
            jobs = [job for lease in leases for job in lease.jobs if job.task == "slow.thread"]
            self.most_in_threads = max(self.most_in_threads, before + len(jobs))


def test_unused_kinds_cost_jobs_enqueued_by_name_hardly_a_claim(children_app: Tenure) -> None:
    """The other kinds have one slot each, and no jobs."""
    jobs, watch = 1000, Counting()
    children_app.store.enqueue([raw(isolated.in_loop.name)] * jobs)
    with working(children_app, environment=watch, thread_slots=1, process_slots=1):
        eventually(lambda: not children_app.count_live())
    assert watch.claims_with_jobs <= jobs / 5


@pytest.mark.parametrize(("full", "free"), [("thread", "async"), ("async", "thread")])
def test_a_full_kind_holds_up_no_other_job_enqueued_by_name(
    app: Tenure, full: str, free: str
) -> None:
    """Whether it is in line already, behind jobs of the full kind, or comes later."""
    stage = Stage(app)
    app.store.enqueue([raw(f"slow.{full}")] * 30)
    [behind] = app.store.enqueue([raw(f"quick.{free}")])
    try:
        with working(app, **ONE_EACH):
            assert ended(app, behind.id).state is State.SUCCEEDED
            [later] = app.store.enqueue([raw(f"quick.{free}")])
            assert ended(app, later.id).state is State.SUCCEEDED
            assert stage.started == [full]
            stage.open.set()
            eventually(lambda: not app.count_live())
    finally:
        stage.open.set()


def test_few_jobs_enqueued_by_name_wait_in_a_worker_without_a_slot_for_them(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are put back with tickets that say their kind, and are not claimed again."""
    monkeypatch.setattr(intake, "PREFETCH_PATIENCE_SECONDS", 0.1)
    stage, watch, jobs = Stage(app), Counting(), 500
    slow = {job.id for job in app.store.enqueue([raw("slow.thread")] * jobs)}

    def released() -> Counter[int]:
        settled = [each for flush in list(watch.flushes) for each in flush]
        return Counter(each.id for each in settled if each.outcome is Outcome.RELEASE)

    try:
        with working(app, environment=watch, thread_slots=1) as watch.worker:
            [behind] = app.store.enqueue([raw("quick.async")])
            assert ended(app, behind.id).state is State.SUCCEEDED
            eventually(lambda: len(released()) == jobs - 1)
            assert released().keys() < slow
            assert set(released().values()) == {1}
            assert stage.started == ["thread"]
            assert watch.most_in_threads <= 2 * intake.MAX_SORTED
            stage.open.set()
            eventually(lambda: not app.count_live())
    finally:
        stage.open.set()


def test_jobs_of_all_kinds_enqueued_by_name_run(app: Tenure) -> None:
    Stage(app)
    names = ["quick.async", "quick.thread", "quick.async"]
    app.store.enqueue([raw(names[n % 3]) for n in range(600)])
    with working(app, async_slots=5, thread_slots=2):
        eventually(lambda: not app.count_live())
    assert Counter(job.state for job in app.list_jobs(limit=600)) == {State.SUCCEEDED: 600}


def test_a_job_that_is_put_back_gets_a_ticket_with_the_right_needs(app: Tenure) -> None:
    """Here because the worker believed in short jobs, and claimed too many of them."""
    stage = Stage(app)
    with working(app, thread_slots=1, async_slots=1) as worker:
        believe_in_short_jobs(worker)
        app.store.enqueue([raw("slow.thread", NEEDS["async"])] * 10)
        try:
            eventually(lambda: "thread" in {job.needs for job in app.list_jobs()})
        finally:
            stage.open.set()
        eventually(lambda: not app.count_live())


def test_a_retried_job_gets_a_ticket_with_the_right_needs(app: Tenure) -> None:
    @app.task(name="fails", retry=Fixed(3600.0))
    def fails() -> None:
        raise RuntimeError

    [job] = app.store.enqueue([raw("fails")])
    with working(app):
        eventually(lambda: app.get(job.id).state is State.SCHEDULED)
    assert app.get(job.id).needs == "thread"


def test_a_task_says_what_its_jobs_need(app: Tenure) -> None:
    stage = Stage(app)
    kinds: list[Kind] = ["async", "thread"]
    for kind in kinds:
        [id] = stage.enqueue(f"quick.{kind}")
        assert app.get(id).needs == kind
        [lease] = app.store.claim("w", {"default": Ask(9, {NEEDS[kind]: 9})})
        assert [(job.id, job.needs) for job in lease.jobs] == [(id, NEEDS[kind])]
