"""Code changes while jobs wait: old jobs meet new code, and new jobs old code."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from tenure import Handle, State, Tenure
from tenure.testing import drain


def enqueue_with_old_code(app: Tenure) -> Handle[None]:
    with Tenure(app.url) as old:

        @old.task(name="send")
        def send(to: str) -> None: ...

        return send.enqueue("ada")


def test_a_parameter_that_was_added_with_a_default(app: Tenure) -> None:
    handle = enqueue_with_old_code(app)

    @app.task(name="send")
    def send(to: str, subject: str = "hello", *, urgent: bool = False) -> list[object]:
        return [to, subject, urgent]

    drain(app)
    assert app.handle(send, handle.id).wait(timeout_seconds=0) == ["ada", "hello", False]


@dataclass
class Letter:
    to: str
    stamp: str = "second class"


def test_a_field_that_was_added_with_a_default(app: Tenure) -> None:
    with Tenure(app.url) as old:

        @old.task(name="post")
        def posted(letter: dict[str, str]) -> None: ...

        handle = posted.enqueue({"to": "ada"})

    @app.task(name="post")
    def post(letter: Letter) -> str:
        return letter.stamp

    drain(app)
    assert app.handle(post, handle.id).wait(timeout_seconds=0) == "second class"


@pytest.mark.parametrize("change", ["added without a default", "removed", "of another type"])
def test_what_does_not_fit_goes_back_for_a_while_uncharged(app: Tenure, change: str) -> None:
    """A deploy may be rolling: a worker with the other code may take it."""
    enqueue_with_old_code(app)
    ran: list[bool] = []

    if change == "removed":

        @app.task(name="send")
        def removed() -> None:
            ran.append(True)

    elif change == "of another type":

        @app.task(name="send")
        def retyped(to: int) -> None:  # noqa: ARG001
            ran.append(True)

    else:

        @app.task(name="send")
        def added(to: str, subject: str) -> None:  # noqa: ARG001
            ran.append(True)

    [job] = drain(app, raise_errors=False)
    assert (job.state, job.attempts) == (State.SCHEDULED, 0)
    assert job.reason == "arguments do not fit this code"
    assert ran == []
    assert json.loads(job.args) == {"to": "ada"}


def test_a_task_that_was_renamed_waits_visibly_for_code_that_knows_it(app: Tenure) -> None:
    handle = enqueue_with_old_code(app)

    @app.task(name="send_mail")
    def send_mail(to: str) -> None: ...

    [job] = drain(app, raise_errors=False)
    assert (job.state, job.reason, job.attempts) == (State.SCHEDULED, "no handler", 0)
    assert "(no handler)" in app.why(handle.id)
