"""What handlers answer: by raise and by return, in a thread and on the loop; nonsense, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tenure import Cancel, Fixed, Retry, Running, Skip, Snooze, State, Task, Tenure
from tenure.control import Control
from tenure.errors import InvalidInput, LeaseLost, OutOfRange
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.working import working

Way = Callable[[Tenure, Callable[[], Any]], Task[[], Any]]


def raised_in_a_thread(app: Tenure, answer: Callable[[], Any]) -> Task[[], Any]:
    @app.task(max_attempts=2, retry=Fixed(3600))
    def work() -> None:
        raise answer()

    return work


def returned_from_a_thread(app: Tenure, answer: Callable[[], Any]) -> Task[[], Any]:
    @app.task(max_attempts=2, retry=Fixed(3600))
    def work() -> Any:
        return answer()

    return work


def raised_on_the_loop(app: Tenure, answer: Callable[[], Any]) -> Task[[], Any]:
    @app.task(max_attempts=2, retry=Fixed(3600))
    async def work() -> None:
        raise answer()

    return work


def returned_on_the_loop(app: Tenure, answer: Callable[[], Any]) -> Task[[], Any]:
    @app.task(max_attempts=2, retry=Fixed(3600))
    async def work() -> Any:
        return answer()

    return work


WAYS = [raised_in_a_thread, returned_from_a_thread, raised_on_the_loop, returned_on_the_loop]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("answer", "state", "reason", "attempts"),
    [
        (lambda: Retry("busy", after_seconds=900), State.SCHEDULED, "busy", 1),
        (Retry, State.SCHEDULED, "retry", 1),
        (lambda: Retry(after_seconds=0.001), State.FAILED, "retry", 2),
        (lambda: Snooze(900, "later"), State.SCHEDULED, "later", 0),
        (Skip, State.SKIPPED, "skipped", 1),
        (lambda: Skip("a\nb\0c"), State.SKIPPED, "a\nb\ufffdc", 1),
        (Cancel, State.CANCELLED, "cancelled by its handler", 0),
    ],
)
def test_every_answer_in_every_way(
    local: Tenure,
    way: Way,
    answer: Callable[[], Any],
    state: State,
    reason: str,
    attempts: int,
) -> None:
    task = way(local, answer)
    with working(local):
        handle = task.enqueue()
        until(lambda: local.get(handle.id).state is state)
    job = local.get(handle.id)
    assert (job.reason, job.attempts) == (reason, attempts)


class Forgetful(Skip):
    """Forgets what every answer has: a reason."""

    def __init__(self) -> None: ...


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (lambda: Retry(5), "InvalidInput", "Retry(after_seconds=5)"),  # type: ignore[arg-type]
        (lambda: Skip(None), "InvalidInput", "must be a string, not None"),  # type: ignore[arg-type]
        (lambda: Snooze("5"), "OutOfRange", "seconds"),  # type: ignore[arg-type]
        (lambda: Snooze(-1), "OutOfRange", "seconds"),
        (Forgetful, "AttributeError", "reason"),
        (lambda: Control("none of the four"), "Control", "none of the four"),
    ],
)
def test_an_answer_that_makes_no_sense_is_a_failure_that_says_so(
    local: Tenure, way: Way, answer: Callable[[], Any], error: str, message: str
) -> None:
    task = way(local, answer)
    with working(local):
        handle = task.options(max_attempts=1).enqueue()
        job = local.wait(handle.id, timeout_seconds=30)
    assert job.state is State.FAILED
    told = json.loads(job.error_json or "")
    assert told["type"].endswith(error)
    assert message in told["message"]


@pytest.mark.parametrize("way", [raised_in_a_thread, raised_on_the_loop])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_is_no_exception_is_final_unless_the_task_says_otherwise(
    local: Tenure, way: Way, error: BaseException
) -> None:
    task = way(local, lambda: error)
    with working(local):
        job = local.wait(task.enqueue().id, timeout_seconds=30)
    assert (job.state, job.attempts) == (State.FAILED, 1)
    assert json.loads(job.error_json or "")["type"] == type(error).__name__


def test_errors_can_be_told_apart_by_their_classes(local: Tenure) -> None:
    @local.task(retry_on=(OSError,), fail_on=(FileNotFoundError,), retry=Fixed(0), max_attempts=2)
    def work(kind: str) -> None:
        raise {"os": OSError, "file": FileNotFoundError, "value": ValueError}[kind]

    with working(local):
        attempts = {
            kind: local.wait(work.enqueue(kind).id, timeout_seconds=30).attempts
            for kind in ("os", "file", "value")
        }
    assert attempts == {"os": 2, "file": 1, "value": 1}


@pytest.mark.parametrize("returned", [-5, float("nan"), "soon", 10**400, None])
def test_a_back_off_that_makes_no_sense_falls_back_to_the_default(
    local: Tenure, returned: Any
) -> None:
    def policy(attempts: int) -> float:
        if returned is None:
            raise ZeroDivisionError(attempts)
        waited: float = returned
        return waited

    @local.task(retry=policy, max_attempts=2)
    def work(job: Running) -> int:
        if job.attempt == 1:
            raise ConnectionError
        return job.attempt

    with working(local):
        handle = work.enqueue()
        until(lambda: local.get(handle.id).attempts == 1 or local.get(handle.id).state.final)
        job = local.get(handle.id)
        if returned != 10**400:  # a hundred years at most
            assert local.wait(handle.id, timeout_seconds=30).state is State.SUCCEEDED
        else:
            assert job.state is State.SCHEDULED


def test_answers_are_checked_where_they_are_made() -> None:
    with pytest.raises(OutOfRange, match="after_seconds"):
        Retry(after_seconds=-1)
    with pytest.raises(OutOfRange, match="seconds must be a number of seconds, not 'soon'"):
        Snooze("soon")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="the reason of a Cancel must be a string"):
        Cancel(b"no")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_handler_that_believes_it_has_lost_its_job_does_not_harm_it(local: Tenure) -> None:
    """Nothing is written for that attempt; the job comes back when its lease has expired."""

    @local.task()
    def work(job: Running) -> int:
        if job.token == 1:
            raise LeaseLost("somebody else has it, I think")
        return job.token

    with working(local, lease_seconds=2.0, heartbeat_seconds=0.1):
        assert work.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) == 2
