"""What users of other queues type first: each guess leads to the right call."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from tenure import Tenure
from tenure.errors import InvalidInput, NoSuchMethod

GUESSES = (
    "delay", "apply_async", "apply", "defer", "send", "submit", "kiq", "defer_async", "s", "si",
    "run", "retry", "delay_async",
)  # fmt: skip


@pytest.fixture
def send(local: Tenure) -> Any:
    @local.task(name="mail.send")
    def send(to: str, n: int = 1) -> None: ...

    return send


@pytest.mark.parametrize("name", GUESSES)
def test_the_method_of_another_queue_names_enqueue(send: Any, name: str) -> None:
    with pytest.raises(NoSuchMethod, match=rf"no method '{name}'; write mail\.send\.enqueue"):
        getattr(send, name)("x")
    with pytest.raises(NoSuchMethod, match=r"write mail\.send\.options\(\.\.\.\)\.enqueue"):
        getattr(send.options(priority=1), name)("x")
    assert not hasattr(send, name)  # it is an AttributeError, as Python expects


def test_a_task_can_be_copied(send: Any) -> None:
    assert copy.copy(send).name == "mail.send"
    assert copy.copy(send.options(priority=1)).call("x").job.priority == 1


@pytest.mark.parametrize("name", ["enqueue", "enqueue_async", "send_task", "delay"])
def test_an_application_does_not_enqueue_a_task(local: Tenure, send: Any, name: str) -> None:
    app: Any = local
    with pytest.raises(NoSuchMethod, match=rf"no method '{name}'; write task\.enqueue\(\.\.\.\)"):
        getattr(app, name)(send, "x")
    with pytest.raises(AttributeError, match="'Tenure' object has no attribute 'colour'"):
        _ = app.colour


def test_any_other_attribute_is_missing_as_usual(send: Any) -> None:
    for thing in (send, send.options(priority=1)):
        with pytest.raises(AttributeError, match="object has no attribute 'colour'") as caught:
            _ = thing.colour
        assert not isinstance(caught.value, NoSuchMethod)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("x",), {"due_at": 5}, r"due_at is an option; write \.options\(due_at=5\)\.enqueue"),
        (("x",), {"delay_seconds": 5}, r"write \.options\(delay_seconds=5\)\.enqueue"),
        (("x",), {"key": "k"}, r"key is an option; write \.options\(key='k'\)\.enqueue"),
        ((), {"too": "x"}, "it has no parameter 'too'; did you mean 'to'"),
        ((), {"wholly": "x"}, r"mail\.send\(to: 'str', n: 'int' = 1\)"),
        (("x",), {"wholly": "x"}, "it has no parameter 'wholly'$"),
        ((), {}, "missing a required argument: 'to'$"),
        (("x", 1, 2), {}, "too many positional arguments$"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(
    send: Any, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    for call in (send.enqueue, send.call, send.options(priority=1).enqueue):
        with pytest.raises(InvalidInput, match=message):
            call(*args, **kwargs)
    with pytest.raises(InvalidInput, match=message):
        asyncio.run(send.enqueue_async(*args, **kwargs))


def test_a_first_parameter_without_a_value_is_explained(local: Tenure) -> None:
    @local.task(name="with-job")
    def with_job(job, x): ...  # type: ignore[no-untyped-def]

    @local.task(name="with-ctx")
    def with_ctx(ctx, x): ...  # type: ignore[no-untyped-def]

    @local.task(name="with-self")
    def with_self(self, x): ...  # type: ignore[no-untyped-def]

    @local.task(name="annotated")
    def annotated(ctx: dict[str, int], x: int) -> None: ...

    class Shop:
        @local.task(name="method")
        def method(self, x: int) -> None: ...

    with pytest.raises(InvalidInput, match="'x'; if job is the running job, annotate it Running"):
        with_job.enqueue(1)
    with pytest.raises(InvalidInput, match="'x'; if ctx is the running job, annotate it Running"):
        with_ctx.enqueue(1)
    with pytest.raises(InvalidInput, match="'x'; if self is the running job, annotate it Running"):
        with_self.enqueue(1)
    with pytest.raises(InvalidInput, match=r"'x'$"):
        annotated.enqueue({})  # type: ignore[call-arg]
    method: Any = Shop.method
    with pytest.raises(InvalidInput, match="'x'; a method cannot be a task, use a function"):
        method.enqueue(1)


def test_a_task_with_any_names_takes_them(local: Tenure) -> None:
    @local.task(name="open")
    def work(**more: int) -> None: ...

    assert local.get(work.enqueue(delay_seconds=5)).args_json == '{"more":{"delay_seconds":5}}'
