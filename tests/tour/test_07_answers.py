"""A handler may answer something else than a result. To return it or to raise it is the same."""

import pytest

from tenure import Cancel, Retry, Running, Skip, Snooze, State, Tenure
from tenure.errors import JobFailed
from tests.support.working import working


def test_snooze_comes_back_later_and_costs_no_attempt(app: Tenure) -> None:
    @app.task(max_attempts=1)
    def poll(job: Running) -> str | Snooze:
        if job.token < 3:  # the token grows each time the job is queued
            return Snooze(0.01, "not ready")
        return f"attempt {job.attempt}"

    with working(app):
        assert poll.enqueue().wait(timeout_seconds=30) == "attempt 1"


def test_retry_costs_an_attempt_and_may_say_when(app: Tenure) -> None:
    @app.task()
    async def fetch(job: Running) -> int:
        if job.attempt == 1:
            raise Retry("the server is busy", after_seconds=0.01)
        return job.attempt

    with working(app):
        assert fetch.enqueue().wait(timeout_seconds=30) == 2


def test_skip_finishes_without_a_result(app: Tenure) -> None:
    @app.task()
    def resize(image: str) -> str | Skip:
        return Skip("small enough already") if image == "icon.png" else image

    with working(app):
        handle = resize.enqueue("icon.png")
        with pytest.raises(JobFailed, match="small enough already") as ending:
            handle.wait(timeout_seconds=30)
    assert ending.value.state == State.SKIPPED


def test_cancel_ends_the_job_as_cancelled(app: Tenure) -> None:
    @app.task()
    def publish() -> None:
        raise Cancel("superseded")

    with working(app):
        job = app.wait(publish.enqueue().id, timeout_seconds=30)
    assert (job.state, job.reason) == (State.CANCELLED, "superseded")
