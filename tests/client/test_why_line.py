"""`why` of a job that workers could run: what has the slots, what is before it, and how long."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tenure import JobWait, Task, Tenure, WorkerLoad
from tenure.rules.job import NewJob, WorkerInfo
from tenure.rules.why import MAX_AHEAD
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.working import working

SINCE = r"in queue default since [-\d]+ [:\d]+ UTC; "


@pytest.fixture
def work(app: Tenure) -> Task[[], None]:
    @app.task(name="work")
    def work() -> None: ...

    return work


@pytest.fixture
def quick(app: Tenure) -> Task[[], None]:
    @app.task(name="quick")
    async def quick() -> None: ...

    return quick


def announce(app: Tenure, name: str = "w1", **facts: Any) -> None:
    """A worker with two thread slots and ten others."""
    load = {
        "slots": {"async": 10, "thread": 2},
        "kinds": {"work": "thread", "quick": "async"},
    } | facts.pop("load", {})
    info = {"queues": {"default": 0}, "tasks": ("quick", "work")} | facts
    app.whole_store.announce(
        WorkerInfo(name=name, host="h", pid=1, load=WorkerLoad(**load), **info)
    )


def says(app: Tenure, id: int) -> str:
    said = app.why(id)
    assert re.match(SINCE, said), said
    return re.sub(SINCE, "", said)


def test_all_slots_of_its_kind_are_taken(
    app: Tenure, work: Task[[], None], quick: Task[[], None]
) -> None:
    for _ in range(4):
        work.enqueue()
    announce(app)
    app.whole_store.claim("w1", {"default": 2})
    last, other = work.enqueue(), quick.enqueue()
    assert says(app, last.id) == (
        "all 2 thread slots are taken by jobs of work (2); 2 jobs are ahead of it"
    )
    assert says(app, other.id) == "it is next"


def test_the_slots_of_all_workers_are_taken(app: Tenure, work: Task[[], None]) -> None:
    for name in ("w1", "w2"):
        announce(app, name)
        app.enqueue_many([work.call(), work.call()])
        app.whole_store.claim(name, {"default": 2})
    last = work.enqueue()
    assert says(app, last.id) == (
        "all 4 thread slots of 2 workers are taken by jobs of work (4); it is next"
    )
    announce(app, "w3")
    assert says(app, last.id) == "it is next"


def test_all_slots_of_its_queue_are_taken_by_several_tasks(
    app: Tenure, work: Task[[], None]
) -> None:
    for name in "abcde":
        app.whole_store.enqueue([NewJob(task=name)])
    announce(app, queues={"default": 5})
    app.whole_store.claim("w1", {"default": 5})
    assert says(app, work.enqueue().id) == (
        "all 5 slots of queue default are taken by jobs of a (1), b (1), c (1) and 2 other tasks; "
        "it is next"
    )


def test_a_job_enqueued_by_its_name_alone_finds_its_kind(app: Tenure) -> None:
    app.whole_store.enqueue([NewJob(task="work"), NewJob(task="work")])
    announce(app)
    app.whole_store.claim("w1", {"default": 2})
    [job] = app.whole_store.enqueue([NewJob(task="work")])
    assert says(app, job.id).startswith("all 2 thread slots are taken by jobs of work (2); ")


def test_what_is_ahead_is_counted_by_priority_and_up_to_a_limit(
    app: Tenure, work: Task[[], None], quick: Task[[], None]
) -> None:
    announce(app)
    first = work.enqueue()
    quick.enqueue()
    second = work.enqueue()
    urgent = work.options(priority=-1).enqueue()
    assert says(app, urgent.id) == "it is next"
    assert says(app, first.id) == "1 job is ahead of it"
    assert says(app, second.id) == "2 jobs are ahead of it"
    app.enqueue_many([work.call() for _ in range(MAX_AHEAD + 5)])
    last = work.enqueue()
    assert says(app, last.id) == "more than 1,000 jobs are ahead of it"


def test_the_rate_and_a_forecast(app: Tenure, work: Task[[], None]) -> None:
    finished = {"default": {"thread": 30, "async": 5}, "other": {"thread": 1000}}
    for name in ("w1", "w2"):
        announce(app, name, load={"finished": finished, "seconds": 60.0})
    app.enqueue_many([work.call() for _ in range(300)])
    last = work.enqueue()
    assert says(app, last.id) == (
        "300 jobs are ahead of it; workers end 60 jobs per minute, so it may start in 5 min"
    )
    for name in ("w1", "w2"):
        announce(app, name, load={"finished": {"default": {"thread": 1}}, "seconds": 240.0})
    assert says(app, last.id) == (
        "300 jobs are ahead of it; workers end 1 job in 2 min, so it may start in 10 h"
    )


def test_a_worker_whose_event_loop_is_blocked(app: Tenure, quick: Task[[], None]) -> None:
    announce(app, counts={"seconds since a claim": 31})
    assert says(app, quick.enqueue().id) == (
        "worker w1 has not claimed for 31 s: its event loop is blocked; it is next"
    )


def test_slots_whose_jobs_wait_for_it(app: Tenure, work: Task[[], None]) -> None:
    parents = app.enqueue_many([work.call(), work.call()])
    app.whole_store.claim("w1", {"default": 2})
    child = work.enqueue()
    announce(app, load={"waits": (JobWait(parents[0].id, "work", child.id, 4.0),)})
    assert says(app, child.id) == (
        "all 2 thread slots are taken by jobs of work (2); 1 of them waits for another job: "
        "enqueue with parents=, use a workflow, or give more slots; "
        f"job {parents[0].id} of work waits for it; it is next"
    )


def test_a_worker_tells_of_its_slots_and_its_rate(
    app: Tenure, work: Task[[], None], quick: Task[[], None]
) -> None:
    with working(app, {"default": 0, "other": 0}, thread_slots=3):
        until(app.workers)
        jobs = [work.call(), work.call(), work.options(queue="other").call(), quick.call()]
        app.enqueue_many(jobs)
        ended = {"default": {"thread": 2, "async": 1}, "other": {"thread": 1}}
        until(lambda: app.workers()[0].load.finished == ended)
        load = app.workers()[0].load
    assert (load.slots["thread"], load.kinds) == (3, {"work": "thread", "quick": "async"})
    assert 0 < load.seconds < PATIENCE_SECONDS


def test_a_worker_of_another_version_says_nothing_of_its_slots(
    app: Tenure, work: Task[[], None]
) -> None:
    info = WorkerInfo(name="w1", host="h", pid=1, queues={"default": 0}, tasks=("work",))
    app.whole_store.announce(info)
    assert says(app, work.enqueue().id) == "it is next"
