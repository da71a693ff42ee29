"""Code changes while jobs wait: old jobs meet new code, and new jobs old code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pytest

from tenure import Handle, State, Tenure
from tenure.errors import PayloadInvalid
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
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
    which = {
        "removed": "Object contains unknown field `to`",
        "of another type": "Expected `int`, got `str` - at `$.to`",
    }
    unfit = which.get(change, "Object missing required field `subject`")
    assert job.reason == f"arguments do not fit this code: {unfit}"
    assert f"({job.reason})" in app.why(job.id)
    assert ran == []
    assert json.loads(job.args_json) == {"to": "ada"}


def test_the_error_names_the_task_that_the_arguments_do_not_fit(app: Tenure) -> None:
    @app.task(name="send")
    def send(to: str) -> None: ...

    with pytest.raises(PayloadInvalid, match="the arguments do not fit send: Object "):
        send.signature.unpack(b'{"whom": "ada"}')


def test_a_task_that_was_renamed_waits_visibly_for_code_that_knows_it(app: Tenure) -> None:
    handle = enqueue_with_old_code(app)

    @app.task(name="send_mail")
    def send_mail(to: str) -> None: ...

    [job] = drain(app, raise_errors=False)
    assert (job.state, job.reason, job.attempts) == (State.SCHEDULED, "no handler", 0)
    assert "(no handler)" in app.why(handle.id)


class Colour(Enum):
    RED = "red"


@dataclass
class Choosy:
    name: str

    def __post_init__(self) -> None:
        raise ValueError(f"not {self.name}")


@pytest.mark.parametrize(
    ("kind", "value", "unfit"),
    [
        (Colour, "top secret - at `x`", ": Invalid enum value - at `$.what`"),
        (Literal["a"], "top secret", ": Invalid enum value - at `$.what`"),
        (Choosy, {"name": "top secret"}, ""),
        (UUID, "top secret", ": Invalid UUID - at `$.what`"),
    ],
)
def test_the_reason_never_names_a_value(
    local: Tenure, kind: Any, value: object, unfit: str
) -> None:
    def choose(what: Any) -> None: ...

    choose.__annotations__["what"] = kind
    local.task(name="choose")(choose)
    local.store.enqueue([NewJob(task="choose", args=encode({"what": value}))])
    [job] = drain(local, raise_errors=False)
    assert job.reason == f"arguments do not fit this code{unfit}"
