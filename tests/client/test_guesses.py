"""What users of other queues type first: each guess leads to the right call."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from tenure import Job, Tenure
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


def test_a_first_parameter_that_no_caller_gives_is_refused(local: Tenure) -> None:
    def with_job(job, x=1): ...  # type: ignore[no-untyped-def]

    def with_ctx(ctx, x=1): ...  # type: ignore[no-untyped-def]

    def with_self(self, x=1): ...  # type: ignore[no-untyped-def]

    class Shop:
        def method(self, x: int = 1) -> None: ...

        def bound(self, x: int = 1) -> None: ...

    for fn in (with_job, with_ctx, with_self):
        name = fn.__name__.removeprefix("with_")
        said = f"if {name} is the running job, write {name}: Running; if callers give it, annotate"
        with pytest.raises(InvalidInput, match=said):
            local.task(name="no")(fn)
    with pytest.raises(InvalidInput, match=r"Shop\.method is a method, which cannot be a task"):
        local.task(name="no")(Shop.method)
    assert list(local) == []
    local.task(name="bound")(Shop().bound).enqueue(5)
    local.task(name="short")(lambda job: job).enqueue(5)

    @local.task(name="annotated")
    def annotated(job: dict[str, int], x: int) -> None: ...

    @local.task(name="any")
    def any_context(context: Any, x: int) -> None: ...

    with pytest.raises(InvalidInput, match=r"'x'$"):
        annotated.enqueue({})  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="'x'; if context is the running job, annotate it Run"):
        any_context.enqueue(1)


def test_the_record_of_a_job_is_not_the_running_job(local: Tenure) -> None:
    @local.task(name="wrong")
    def wrong(job: Job, x: int) -> None: ...

    for args in ((1,), (1, 2)):
        with pytest.raises(InvalidInput, match="to receive the running job, write job: Running"):
            wrong.enqueue(*args)
    with pytest.raises(InvalidInput, match="'job' of wrong is annotated Job"):
        local.run_worker()


def test_a_task_with_any_names_takes_them(local: Tenure) -> None:
    @local.task(name="open")
    def work(**more: int) -> None: ...

    assert local.get(work.enqueue(delay_seconds=5)).args_json == '{"more":{"delay_seconds":5}}'
