"""What users of other queues type first: each guess leads to the right call."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from tenure import Gate, Job, Tenure
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
        (("x",), {"due_at": 5}, r"\.enqueue\(\.\.\.\) or \.call\(\.\.\.\)$"),
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


def test_configure_is_called_options(send: Any) -> None:
    for thing in (send, send.options(priority=1)):
        with pytest.raises(
            NoSuchMethod, match=r"'configure'; write mail\.send.*\.options\(\.\.\.\)"
        ):
            thing.configure(priority=1)


def test_a_misspelt_option_of_a_gate_is_named() -> None:
    with pytest.raises(
        InvalidInput, match="a gate has no option 'max_runing'; its options are max"
    ):
        Gate("x", max_runing=1)  # type: ignore[arg-type]


def test_a_schedule_of_a_task_that_needs_arguments_names_call(local: Tenure, send: Any) -> None:
    hint = r"'to'; to give arguments, schedule task\.call\(\.\.\.\)$"
    for declare in (
        lambda: local.schedules.add("s", send, cron="0 3 * * *"),
        lambda: local.schedules.edit("s", send),
        lambda: local.schedule("0 3 * * *")(send),
    ):
        with pytest.raises(InvalidInput, match=hint):
            declare()


def test_a_field_of_a_cron_expression_that_is_out_of_range_is_named(local: Tenure) -> None:
    with pytest.raises(InvalidInput, match=r"\(Bad minute\); its fields are minute 0-59, hour"):
        local.schedule("61 * * * *")
    with pytest.raises(InvalidInput, match="write 5 fields, minute hour"):
        local.schedule("* * *")


def test_a_task_with_any_names_takes_them(local: Tenure) -> None:
    @local.task(name="open")
    def work(**more: int) -> None: ...

    assert local.get(work.enqueue(delay_seconds=5)).args_json == '{"more":{"delay_seconds":5}}'
