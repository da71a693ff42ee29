"""A call is checked where it is made. What is refused leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

import pytest

from tenure import Retry, Running, Snooze, Tenure, Unique, Until
from tenure.errors import InvalidInput, PayloadInvalid, PayloadTooLarge
from tests.client.shapes import Colour, Order, User


class Opaque:
    """No JSON, no dataclass, nothing."""


@pytest.fixture
def calls(local: Tenure) -> dict[str, Any]:
    @local.task(name="fixed")
    def fixed(a: int, b: str = "b") -> None: ...

    @local.task(name="open")
    def open_(a: int, *rest: float, flag: bool = False, **more: int) -> None: ...

    @local.task(name="by_position")
    def by_position(a: int, /, b: int) -> None: ...

    @local.task(name="free")
    def free(value) -> None: ...  # type: ignore[no-untyped-def]

    @local.task(name="text")
    def text(value: str) -> None: ...

    @local.task(name="loose")
    def loose(value: dict[str, Any]) -> None: ...

    @local.task(name="record")
    def record(order: Order) -> None: ...

    @local.task(name="watched")
    def watched(job: Running, a: int) -> None: ...

    return {task.name: task for task in local}


DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]

# task, arguments, what the message says
MISFITS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("fixed", (), {}, "missing a required argument: 'a'"),
    ("fixed", (1, "b", 3), {}, "too many positional arguments"),
    ("fixed", (1,), {"c": 3}, "it has no parameter 'c'"),
    ("fixed", (1,), {"a": 1}, "multiple values for argument 'a'"),
    ("fixed", ("1",), {}, r"Expected `int`, got `str` - at `\$.a`"),
    ("fixed", (True,), {}, r"Expected `int`, got `bool` - at `\$.a`"),
    ("fixed", (1.5,), {}, r"Expected `int`, got `float` - at `\$.a`"),
    ("fixed", (None,), {}, r"Expected `int`, got `null` - at `\$.a`"),
    ("fixed", (1, None), {}, r"Expected `str`, got `null` - at `\$.b`"),
    ("open", (1, 2.5, "x"), {}, r"Expected `float`, got `str` - at `\$.rest\[1\]`"),
    ("open", (1,), {"more": "x"}, r"Expected `int`, got `str` - at `\$.more"),
    ("open", (1,), {"flag": 1}, r"Expected `bool`, got `int` - at `\$.flag`"),
    ("by_position", (), {"a": 1, "b": 2}, "positional.only"),
    ("record", ({"id": "x"},), {}, r"\$.order"),
    ("record", ([1, 2],), {}, r"Expected `object`, got `array` - at `\$.order`"),
    ("watched", (), {}, "missing a required argument: 'a'"),
    ("watched", (1, 2), {}, "too many positional arguments"),
    ("watched", (1,), {"job": 2}, "it has no parameter 'job'"),
    # What would arrive as something else:
    ("text", (b"bytes",), {}, "value is of type bytes and would arrive as text"),
    ("text", (uuid4(),), {}, "value is of type UUID and would arrive as text"),
    ("text", (Colour.RED,), {}, "value is of type Colour and would arrive as text"),
    ("free", (date(2026, 3, 1),), {}, "annotate the parameter with its type, or pass text"),
    ("free", (Decimal("1.5"),), {}, "value is of type Decimal and would arrive as text"),
    ("free", (User(name="a", born=date(1815, 12, 10)),), {}, "would arrive as a dict"),
    ("loose", ({"at": [datetime.now(UTC)]},), {}, r"value\['at'\]\[0\] is of type datetime"),
]


@pytest.mark.parametrize(("task", "args", "kwargs", "message"), MISFITS)
def test_what_does_not_fit_the_signature(
    local: Tenure,
    calls: dict[str, Any],
    task: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(InvalidInput, match=message) as refusal:
        calls[task].enqueue(*args, **kwargs)
    assert str(refusal.value).startswith(f"this call does not fit {task}(")
    assert local.list_jobs().jobs == ()


UNSTORABLE: list[tuple[Callable[[], object], str]] = [
    (lambda: float("nan"), r"\$.value is NaN"),
    (lambda: [1.0, float("-inf")], r"\$.value\[1\] is -infinity"),
    (lambda: Decimal("NaN"), "is Decimal NaN"),
    (lambda: "a\0b", "contains a NUL character"),
    (lambda: {"\ud800": 1}, "lone surrogate"),
    (lambda: {1: "a"}, "keys in JSON are strings"),
    (Opaque, "no rule for .*Opaque"),
    (lambda: {"x": {1, Opaque()}}, r"\$.value.x"),
    (lambda: DEEP, "nested deeper than 100 levels"),
    (lambda: datetime(2026, 3, 1), "datetime without a time zone"),  # noqa: DTZ001
    (
        lambda: datetime(2026, 3, 1, tzinfo=timezone(timedelta(seconds=90))),
        "whose offset has seconds",
    ),
]


@pytest.mark.parametrize(("make", "message"), UNSTORABLE)
def test_what_json_cannot_say(
    local: Tenure, calls: dict[str, Any], make: Callable[[], object], message: str
) -> None:
    with pytest.raises(PayloadInvalid, match=message):
        calls["free"].enqueue(make())
    assert local.list_jobs().jobs == ()


def test_what_is_too_large(local: Tenure, calls: dict[str, Any]) -> None:
    with pytest.raises(PayloadTooLarge, match="pass a reference to it"):
        calls["free"].enqueue("x" * 1_048_576)
    assert local.list_jobs().jobs == ()
    calls["free"].enqueue("x" * 1_000_000)


def test_a_handler_can_be_as_liberal_as_it_says(local: Tenure, calls: dict[str, Any]) -> None:
    accepted = [
        calls["fixed"].enqueue(1),
        calls["fixed"].enqueue(b="x", a=1),
        calls["open"].enqueue(1, 2, 3.5, flag=True, x=1, y=2),
        calls["by_position"].enqueue(1, b=2),
        calls["free"].enqueue([1, [2, None], {"a": {"b": 3.5}}]),
        calls["loose"].enqueue({"a": 1}),
        calls["watched"].enqueue(a=1),
    ]
    stored = [local.get(handle.id).args_json for handle in accepted]
    assert stored == [
        '{"a":1}',
        '{"a":1,"b":"x"}',
        '{"a":1,"rest":[2,3.5],"flag":true,"more":{"x":1,"y":2}}',
        '{"a":1,"b":2}',
        '{"value":[1,[2,null],{"a":{"b":3.5}}]}',
        '{"value":{"a":1}}',
        '{"a":1}',
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ((1, 2), "value is of type tuple and would arrive as a list"),
        ({1, 2}, "value is of type set and would arrive as a list"),
        ({"a": [(1,)]}, r"value\['a'\]\[0\] is of type tuple and would arrive as a list"),
    ],
)
def test_tuples_and_sets_need_an_annotation(local: Tenure, value: object, said: str) -> None:
    @local.task(name="bare")
    def bare(value, *rest): ...  # type: ignore[no-untyped-def]

    @local.task(name="told")
    def told(one: tuple[int, ...], two: set[int], three: list[int]) -> None: ...

    with pytest.raises(InvalidInput, match=f"{said}; annotate the parameter"):
        bare.enqueue(value)
    bare.enqueue([1, 2], 3, [4])
    args = local.get(told.enqueue((1,), {2}, [3]).id).args_json
    assert told.signature.unpack(args) == ([(1,), {2}, [3]], {})


class Level(Enum):
    LOW = 1


class Size(IntEnum):
    SMALL = 1


@dataclass
class Parcel:
    label: str
    extra: dict[str, Any]


LIST = " is of type tuple and would arrive as a list; annotate the parameter"
A_SET = " is of type set and would arrive as a list; annotate the parameter"


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (dict, {"a": (1,)}, r"a\['a'\]" + LIST),
        (dict[str, Any], {"a": [{2}]}, r"a\['a'\]\[0\]" + A_SET),
        (list, [1, (2,)], r"a\[1\]" + LIST),
        (list[object], [{2}], r"a\[0\]" + A_SET),
        (Any | None, (1,), "a" + LIST),
        (list[dict[str, Any]] | None, [{"b": (1,)}], r"a\[0\]\['b'\]" + LIST),
        (tuple[int, Any], (1, (2,)), r"a\[1\]" + LIST),
        (tuple[Any, ...], (1, (2,)), r"a\[1\]" + LIST),
        (Parcel, Parcel("x", {"b": (1,)}), r"a\['extra'\]\['b'\]" + LIST),
        (Any, Level.LOW, "a is of type Level and would arrive as 1; annotate the parameter"),
        (dict, {"b": [Level.LOW]}, r"a\['b'\]\[0\] is of type Level and would arrive as 1"),
        (int, Level.LOW, "a is of type Level and would arrive as 1"),
    ],
)  # fmt: skip
def test_what_an_annotation_leaves_open_arrives_unchanged(
    local: Tenure, kind: Any, value: object, said: str
) -> None:
    def work(a): ...  # type: ignore[no-untyped-def]

    work.__annotations__["a"] = kind
    task = local.task(name="work")(work)
    with pytest.raises(InvalidInput, match=said):
        task.enqueue(value)


def test_further_arguments_arrive_unchanged(local: Tenure) -> None:
    @local.task(name="rest")
    def rest(*rest, **more): ...  # type: ignore[no-untyped-def]

    with pytest.raises(
        InvalidInput, match=r"rest\[1\] is of type tuple and would arrive as a list"
    ):
        rest.enqueue(1, (2,))
    with pytest.raises(
        InvalidInput, match=r"more\['x'\] is of type set and would arrive as a list"
    ):
        rest.enqueue(x={2})
    rest.enqueue(1, [2], x=[3])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Sequence[int], (1, 2)),
        (Sequence[Any], (1, [2])),
        (dict[str, list[int]] | list[Any], {"a": (1,)}),
        (dict[str, tuple[int, int]], {"a": (1, 2)}),
        (dict[str, Any], {"a": [1, {"b": None}], "c": Size.SMALL}),
        (Parcel, Parcel("x", {"b": [1]})),
        (Level, Level.LOW),
    ],
)
def test_what_an_annotation_says_is_accepted(local: Tenure, kind: Any, value: object) -> None:
    def work(a): ...  # type: ignore[no-untyped-def]

    work.__annotations__["a"] = kind
    local.task(name="work")(work).enqueue(value)


def test_a_path_is_text_and_comes_back_as_a_path(local: Tenure) -> None:
    @local.task(name="read")
    def read(file: Path, pure: PurePosixPath, more: list[Path]) -> None: ...

    @local.task(name="any")
    def any_value(file): ...  # type: ignore[no-untyped-def]

    sent = (Path("a/b"), PurePosixPath("/c"), [Path("d")])
    args = local.get(read.enqueue(*sent).id).args_json
    assert args == '{"file":"a/b","pure":"/c","more":["d"]}'
    assert read.signature.unpack(args) == (list(sent), {})
    with pytest.raises(InvalidInput, match="would arrive as text"):
        any_value.enqueue(Path("a"))
    with pytest.raises(InvalidInput, match="file"):
        read.enqueue(5, *sent[1:])  # type: ignore[arg-type]


def test_lengths_of_time_may_be_timedeltas(local: Tenure) -> None:
    hour = timedelta(hours=1)

    @local.task(name="slow", timeout_seconds=timedelta(minutes=2))
    def slow() -> None: ...

    assert slow.call().job.timeout_seconds == 120
    job = slow.options(delay_seconds=hour, timeout_seconds=timedelta(seconds=5)).call().job
    assert (job.delay_seconds, job.timeout_seconds) == (3600, 5)
    unique = Unique(key="k", until=Until.PERIOD, period_seconds=hour)  # type: ignore[arg-type]
    assert unique.period_seconds == 3600
    assert (Retry(after_seconds=hour).after_seconds, Snooze(hour).seconds) == (3600, 3600)
    added = local.schedules.add("s", slow.call(), every_seconds=hour, jitter_seconds=hour / 60)
    assert (added.timing.every_seconds, added.timing.jitter_seconds) == (3600, 60)
    with pytest.raises(InvalidInput, match="delay_seconds must be"):
        slow.options(delay_seconds="1h").enqueue()  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="timeout_seconds must be"):
        slow.options(timeout_seconds=timedelta(seconds=-1)).enqueue()


def test_a_name_can_be_positional_only_and_a_keyword_at_once(local: Tenure) -> None:
    @local.task(name="both")
    def both(a: int, /, **more: int) -> None: ...

    args = local.get(both.enqueue(1, a=2, more=3).id).args_json
    assert both.signature.unpack(args) == ([1], {"a": 2, "more": 3})


def test_what_is_left_out_takes_the_default_of_the_code_that_runs_it(local: Tenure) -> None:
    shared: list[int] = []

    @local.task(name="defaults")
    def defaults(a: int = 1, *, names: list[int] = shared, at: date | None = None) -> None: ...

    stored = local.get(defaults.enqueue().id).args_json
    assert stored == "{}"
    args, kwargs = defaults.signature.unpack(stored)
    assert (args, kwargs) == ([1], {"names": [], "at": None})
    assert kwargs["names"] is shared  # the very object, as in a plain call


def test_nothing_of_a_batch_is_written_when_one_call_is_refused(app: Tenure) -> None:
    @app.task()
    def work(n: int) -> None: ...

    with pytest.raises(InvalidInput):
        app.enqueue_many(work.call(n) for n in [1, 2, "3"])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="enqueue_many takes calls"):
        app.enqueue_many([work.call(1), work])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="put this call in brackets"):
        app.enqueue_many(work.call(1))  # type: ignore[arg-type]
    assert app.list_jobs().jobs == ()
    assert app.enqueue_many([]) == []


def test_a_generator_of_calls_is_not_used_up_by_looking_at_it(app: Tenure) -> None:
    @app.task()
    def work(n: int) -> None: ...

    assert len(app.enqueue_many(work.call(n) for n in range(3))) == 3
    assert len(app.list_jobs().jobs) == 3
