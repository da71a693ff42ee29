"""Where is my job, and why? What is going on?"""

from datetime import UTC, datetime, timedelta

import pytest

from tenure import State, Tenure
from tests.support.patience import until
from tests.support.working import working


def test_one_job_and_its_story(app: Tenure) -> None:
    @app.task()
    def add(a: int, b: int) -> int:
        return a + b

    handle = add.enqueue(1, b=2)
    with working(app) as worker:
        handle.wait(timeout_seconds=30)
        job = app.get(handle.id)
        assert job.worker == worker.name
    assert job.state is State.SUCCEEDED
    assert job.args == {"a": 1, "b": 2}
    assert (job.result, job.result_json) == (3, "3")
    assert [event.kind for event in app.timeline(handle.id)] == ["enqueued", "claimed", "succeeded"]


@pytest.mark.slow
def test_many_jobs(app: Tenure) -> None:
    @app.task(queue="mail")
    def send(to: str) -> None: ...

    @app.task()
    def tidy() -> None: ...

    app.enqueue_many([send.call(f"user{n}@example.org") for n in range(3)])
    done = tidy.enqueue()
    with working(app, {"default": 0}):
        done.wait(timeout_seconds=30)

    page = app.list_jobs(queue="mail", states=[State.QUEUED])
    assert [job.args for job in page.jobs] == [  # newest first
        {"to": "user2@example.org"},
        {"to": "user1@example.org"},
        {"to": "user0@example.org"},
    ]
    [live] = app.count_live()
    assert (live.queue, live.state, live.jobs) == ("mail", State.QUEUED, 3)
    now = datetime.now(UTC)
    [finished] = app.count_finished(now - timedelta(minutes=5), now + timedelta(minutes=5))
    assert (finished.task, finished.state, finished.jobs) == (tidy.name, State.SUCCEEDED, 1)
    [oldest] = app.oldest_ready()
    assert oldest.queue == "mail"


def test_why_a_job_does_not_run(app: Tenure) -> None:
    @app.task(queue="mail")
    def send() -> None: ...

    handle = send.enqueue()
    assert "no worker is alive: start one" in app.why(handle.id)
    with working(app, {"default": 0}):
        until(lambda: "no worker serves this queue" in app.why(handle.id))
    app.pause("mail", reason="the provider is down")
    assert app.why(handle.id) == (
        "queue mail is paused (the provider is down); resume it to let its jobs run"
    )
    app.cancel(handle.id)
    assert app.why(handle.id).startswith("cancelled at ")


def test_who_works(app: Tenure) -> None:
    @app.task(queue="gpu")
    def train() -> None: ...

    with working(app, {"gpu": 1}) as worker:
        until(app.workers)
        [seen] = app.workers()
        assert (seen.name, seen.alive) == (worker.name, True)
        assert (seen.queues, seen.tasks) == ({"gpu": 1}, (train.name,))
    assert app.workers() == []  # it has signed off


def test_finished_jobs_are_kept_for_a_while(app: Tenure) -> None:
    @app.task()
    def tidy() -> None: ...

    with working(app):
        tidy.enqueue().wait(timeout_seconds=30)
    assert app.prune() == 0  # workers do this every hour: 7 days for success, 30 for the rest
    assert app.prune(succeeded_seconds=0) == 1
    assert app.list_jobs().jobs == ()
