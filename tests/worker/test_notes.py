"""Notes: handlers of every kind annotate their jobs, and nothing that they told is lost."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tenure import Fixed, Running, State, Tenure, testing
from tenure.errors import InvalidInput, LeaseLost, PayloadTooLarge
from tenure.worker.leases import LeasedJob
from tenure.worker.running.context import RunningHere
from tests.worker import isolated
from tests.worker.support import ended, eventually, working


def test_notes_are_visible_while_the_job_runs_and_after_it(app: Tenure) -> None:
    seen = threading.Event()

    @app.task()
    def train(job: Running) -> str:
        job.annotate(loss=0.5, epoch=1)
        job.annotate(loss=0.25)
        assert seen.wait(60)
        job.annotate(loss=0.125, output="s3://models/7", epoch=None)  # no heartbeat comes after it
        return "done"

    with working(app):
        handle = train.enqueue()
        assert eventually(lambda: handle.job().notes) == {"loss": 0.25, "epoch": 1}
        seen.set()
        job = ended(app, handle.id)
    assert (job.state, job.notes) == (State.SUCCEEDED, {"loss": 0.125, "output": "s3://models/7"})


def test_a_coroutine_annotates_too(app: Tenure) -> None:
    @app.task()
    async def train(job: Running) -> dict[str, object]:
        job.annotate(lazy=True)
        before = (await app.get_async(job.id)).notes
        await job.annotate_async(epoch=1, now=True)
        stored = (await app.get_async(job.id)).notes
        await job.annotate_async(epoch=2)
        return {"before": before, "stored": stored}

    with working(app, heartbeat_seconds=5, lease_seconds=60):
        handle = train.enqueue()
        job = ended(app, handle.id)
    assert job.result["stored"] == {"lazy": True, "epoch": 1}, "also what was told before it"
    assert job.notes == {"lazy": True, "epoch": 2}


def test_with_now_a_thread_sees_its_notes_stored(app: Tenure) -> None:
    @app.task()
    def train(job: Running) -> dict[str, object]:
        job.annotate(now=True, epoch=1)
        return app.get(job.id).notes

    with working(app):
        assert train.enqueue().wait(timeout_seconds=60) == {"epoch": 1}


def test_each_attempt_keeps_the_notes_of_its_time(app: Tenure) -> None:
    @app.task(retry=Fixed(0), max_attempts=3)
    def train(job: Running) -> None:
        job.annotate({f"only_{job.attempt}": True}, attempt=job.attempt)
        if job.attempt < 3:
            raise ValueError(job.attempt)

    with working(app):
        handle = train.enqueue()
        ended(app, handle.id)
    attempts = app.attempts(handle.id)
    assert [(a.outcome, a.notes["attempt"], len(a.notes)) for a in attempts] == [
        ("retried", 1, 2), ("retried", 2, 3), ("succeeded", 3, 4),
    ]  # fmt: skip
    assert all(a.worker and a.ended_at and a.duration_seconds is not None for a in attempts)
    assert [a.error.message if a.error else None for a in attempts] == ["1", "2", None]


@pytest.mark.slow
def test_a_child_process_annotates(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        handle = isolated.annotates.enqueue()
        job = ended(children_app, handle.id)
    assert (job.state, job.attempts) == (State.SUCCEEDED, 2)
    assert job.result == {"attempt": 1}
    assert job.notes == {"attempt": 2, "late": "last word", "before": True}
    first, second = children_app.attempts(job.id)
    assert (first.notes, first.outcome) == ({"attempt": 1}, "retried")
    assert second.notes == job.notes


def test_what_cannot_be_kept_is_refused_where_it_is_told(app: Tenure) -> None:
    @app.task()
    def train(job: Running) -> None:
        with pytest.raises(
            InvalidInput, match="note model must be a str, int, float, bool or None"
        ):
            job.annotate(model=object())  # type: ignore[arg-type]
        job.annotate({f"n{n}": n for n in range(60)})
        with pytest.raises(PayloadTooLarge, match="at most 64 notes"):
            job.annotate({f"more{n}": n for n in range(5)})
        job.annotate(last=True)

    with working(app):
        job = ended(app, train.enqueue().id)
    assert (job.state, len(job.notes), job.notes["last"]) == (State.SUCCEEDED, 61, True)


def test_a_job_that_is_no_longer_ours_is_told_so(app: Tenure) -> None:
    @app.task()
    def train() -> None:
        """Never runs here."""

    handle = train.enqueue()
    [lease] = app.whole_store.claim("w1", {"default": 1}, lease_seconds=0.001)
    eventually(lambda: app.whole_store.sweep().requeued)
    job = RunningHere(LeasedJob(lease.jobs[0], train, 0.0), app, "w1")
    with pytest.raises(LeaseLost):
        job.annotate(now=True, epoch=1)
    with pytest.raises(LeaseLost):
        job.annotate(epoch=2)
    assert handle.job().notes == {}


def test_progress_that_came_last_is_kept(app: Tenure) -> None:
    @app.task()
    def copy(job: Running) -> None:
        job.progress(0.5, "half")
        job.progress(1.0, "done")

    with working(app):
        handle = copy.enqueue()
        ended(app, handle.id)
    assert (handle.progress().fraction, handle.progress().message) == (1.0, "done")


def test_tests_of_users_see_notes(app: Tenure) -> None:
    @app.task()
    def train(job: Running) -> None:
        job.annotate(loss=0.5)
        job.annotate(now=True, epoch=job.crashes)

    @app.task()
    async def train_async(job: Running) -> None:
        await job.annotate_async(loss=0.25)

    for task in (train, train_async):
        task.enqueue()
    first, second = testing.drain(app)
    assert (first.notes, second.notes) == ({"loss": 0.5, "epoch": 0}, {"loss": 0.25})


def test_many_threads_of_one_handler_annotate_at_the_same_time(app: Tenure) -> None:
    @app.task()
    async def train(job: Running) -> None:
        async def part(n: int) -> None:
            for value in range(20):
                await asyncio.to_thread(job.annotate, {f"n{n}": value})

        await asyncio.gather(*(part(n) for n in range(8)))

    with working(app):
        job = ended(app, train.enqueue().id)
    assert job.notes == {f"n{n}": 19 for n in range(8)}
