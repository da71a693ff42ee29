"""An exception is a failed attempt. Attempts are repeated, until one succeeds or all are used."""

import pytest

from tenure import Delays, Exponential, Fixed, Running, State, Tenure
from tenure.errors import JobFailed
from tests.support.working import working


def test_a_failed_attempt_is_repeated(app: Tenure) -> None:
    @app.task(retry=Fixed(0.01))
    def flaky(job: Running) -> int:
        if job.attempt < 3:
            raise ConnectionError("no answer")
        return job.attempt

    with working(app):
        handle = flaky.enqueue()
        assert handle.wait(timeout_seconds=30) == 3
    story = [event.kind for event in app.timeline(handle.id)]
    assert story == [
        "enqueued",
        "claimed", "retried",
        "claimed", "retried",
        "claimed", "succeeded",
    ]  # fmt: skip


def test_when_all_attempts_are_used_the_job_has_failed(app: Tenure) -> None:
    @app.task(max_attempts=2, retry=Fixed(0))
    def divide(by: int) -> float:
        return 1 / by

    with working(app):
        handle = divide.enqueue(0)
        with pytest.raises(JobFailed, match="ZeroDivisionError: division by zero") as failure:
            handle.wait(timeout_seconds=30)
    assert failure.value.state == State.FAILED
    job = app.get(handle.id)
    assert job.attempts == 2
    assert job.error is not None
    assert "return 1 / by" in job.error.traceback  # the traceback is kept


def test_how_long_to_wait_between_attempts(app: Tenure) -> None:
    @app.task()  # by default: 1 s, 2 s, 4 s ... up to an hour, each a random part of it
    def usual() -> None: ...

    @app.task(retry=Exponential(base_seconds=0.5, factor=3, cap_seconds=60))
    def slower() -> None: ...

    @app.task(retry=Delays((10, 60, 300)))  # and 300 s from then on
    def listed() -> None: ...

    @app.task(retry=lambda attempts: 0.01 * attempts, max_attempts=3)
    def computed() -> None:
        raise ConnectionError

    handle = listed.enqueue()
    assert app.get(handle.id).retry == {"kind": "delays", "seconds": [10, 60, 300]}
    with working(app):
        assert app.wait(computed.enqueue().id, timeout_seconds=30).attempts == 3


def test_some_errors_are_final(app: Tenure) -> None:
    @app.task(fail_on=(KeyError,))
    def look_up(name: str) -> None:
        raise KeyError(name)

    @app.task(retry_on=(ConnectionError,))
    def call(number: str) -> None:
        raise ValueError(number)

    with working(app):
        for handle in (look_up.enqueue("ada"), call.enqueue("zero")):
            job = app.wait(handle.id, timeout_seconds=30)
            assert (job.state, job.attempts) == (State.FAILED, 1)


def test_a_failed_job_can_be_run_again(app: Tenure) -> None:
    repaired = False

    @app.task(max_attempts=1)
    def deliver() -> str:
        if not repaired:
            raise ConnectionError
        return "delivered"

    with working(app):
        handle = deliver.enqueue()
        assert app.wait(handle.id, timeout_seconds=30).state is State.FAILED
        repaired = True
        app.replay(handle.id)
        assert handle.wait(timeout_seconds=30) == "delivered"
