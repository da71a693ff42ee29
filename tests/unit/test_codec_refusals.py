"""What cannot be stored is refused, with the path to it."""

from __future__ import annotations

import enum
import math
import sys
from collections import OrderedDict, deque
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tenure.errors import PayloadInvalid, PayloadTooLarge
from tenure.rules.codec import (
    MAX_BYTES,
    MAX_DEPTH,
    decode,
    encode,
)
from tests.support.values import (
    JSON_VALUES,
    Colour,
    Holder,
    HolderStruct,
    Level,
    Model,
    Moment,
    Real,
    Text,
)

# Whatever is put around an offender must not hide it. Each adds one step to the path.
WRAPPERS = [
    pytest.param(lambda value: value, "$", id="alone"),
    pytest.param(lambda value: {"a": value}, "$.a", id="in-a-dict"),
    pytest.param(lambda value: [None, 1.5, value], "$[2]", id="in-a-list"),
    pytest.param(lambda value: ("x", value), "$[1]", id="in-a-tuple"),
    pytest.param(lambda value: {"a b": [value]}, "$['a b'][0]", id="under-an-odd-key"),
    pytest.param(lambda value: {"u": Holder(value)}, "$.u.held", id="in-a-dataclass"),
    pytest.param(lambda value: {"u": HolderStruct(value)}, "$.u.held", id="in-a-struct"),
    pytest.param(lambda value: {"u": Model(value)}, "$.u.held", id="in-a-model"),
]


def refusal(value: object) -> str:
    with pytest.raises(PayloadInvalid) as caught:
        encode(value, what="the argument")
    message = str(caught.value)
    assert message.startswith("the argument cannot be stored: ")
    message.encode()  # the message itself must be storable
    assert "\0" not in message
    return message.removeprefix("the argument cannot be stored: ")


def place_of(message: str, path: str) -> bool:
    """Whether the message names this path. In typed values the path may end at the value."""
    return message.startswith((path + " ", path.removesuffix(".held") + " "))


@pytest.mark.parametrize(("wrap", "path"), WRAPPERS)
@pytest.mark.parametrize(
    ("number", "name"),
    [
        (math.nan, "NaN"),
        (math.inf, "infinity"),
        (-math.inf, "-infinity"),
        (1e400, "infinity"),
        (Real("nan"), "NaN"),
        (Decimal("NaN"), "Decimal NaN"),
        (Decimal("sNaN"), "Decimal sNaN"),
        (Decimal("-Infinity"), "Decimal -Infinity"),
    ],
)
def test_numbers_that_json_has_not_are_refused(
    wrap: Any, path: str, number: object, name: str
) -> None:
    message = refusal(wrap(number))
    assert place_of(message, path)
    assert message.endswith(f" is {name}; JSON has no such number")


def test_an_enum_does_not_hide_a_nan() -> None:
    class Odd(enum.Enum):
        NAN = math.nan

    assert refusal({"a": Odd.NAN}) == "$.a is NaN; JSON has no such number"


@pytest.mark.parametrize(("wrap", "path"), WRAPPERS)
@pytest.mark.parametrize("text", ["\0", "a\0b", "\\\0", "é\0", Text("\0")])
def test_nul_is_refused(wrap: Any, path: str, text: str) -> None:
    message = refusal(wrap(text))
    assert place_of(message, path)
    assert "contains a NUL character" in message


@pytest.mark.parametrize(("wrap", "path"), WRAPPERS)
@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ude00\ud83d", Text("\udc80")])
def test_lone_surrogates_are_refused(wrap: Any, path: str, text: str) -> None:
    message = refusal(wrap(text))
    assert place_of(message, path)
    assert "contains a lone surrogate" in message


@pytest.mark.parametrize("key", ["a\0", "\ud800"])
def test_keys_are_text_too(key: str) -> None:
    for value in ({key: 1}, Holder({key: 1}), [{"x": 1, key: math.nan}]):
        assert "has a key that contains a" in refusal(value)


@given(JSON_VALUES, st.sampled_from([math.nan, math.inf, "\0", "\ud800", object()]), st.data())
def test_one_bad_leaf_anywhere_is_found(value: object, bad: object, data: st.DataObject) -> None:
    containers = list(containers_in(value))
    assume(containers)
    target = data.draw(st.sampled_from(containers))
    if isinstance(target, dict):
        target["bad"] = bad
    else:
        target.insert(data.draw(st.integers(0, len(target))), bad)
    with pytest.raises(PayloadInvalid):
        encode(value)


def containers_in(value: object) -> Any:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers_in(inner)


@pytest.mark.parametrize(("wrap", "path"), WRAPPERS)
@pytest.mark.parametrize(
    "key", [1, 1.5, math.nan, None, True, (1, 2), b"k", UUID(int=7), date(2030, 1, 2), Level.LOW]
)
def test_keys_that_are_not_strings_are_refused(wrap: Any, path: str, key: object) -> None:
    message = refusal(wrap({"fine": 1, key: 2}))
    assert place_of(message, path)
    assert "key" in message


def test_a_key_that_is_not_a_string_is_shown_with_the_fix() -> None:
    assert refusal({"a": {7: 1}}) == (
        "$.a has a key of type int, 7; keys in JSON are strings: use str(key)"
    )


def test_two_keys_that_become_one_are_refused() -> None:
    assert refusal({"red": 1, Colour.RED: 2}) == "$ has the key 'red' twice"


class Naive(tzinfo):
    """A zone that does not know its offset: what it marks is still naive."""

    def utcoffset(self, _when: datetime | None) -> None:
        return None

    dst = utcoffset
    tzname = utcoffset


@pytest.mark.parametrize(("wrap", "path"), WRAPPERS)
@pytest.mark.parametrize(
    "when",
    [
        datetime(2030, 1, 2, 3, 4, 5),  # noqa: DTZ001 - the subject
        datetime(2030, 1, 2, tzinfo=Naive()),
        Moment(2030, 1, 2),
    ],
)
def test_naive_datetimes_are_refused(wrap: Any, path: str, when: datetime) -> None:
    message = refusal(wrap(when))
    assert place_of(message, path)
    assert "without a time zone; use datetime.now(timezone.utc)" in message


def test_an_offset_with_seconds_would_lose_them_and_is_refused() -> None:
    odd = datetime(1930, 1, 2, tzinfo=timezone(timedelta(minutes=19, seconds=32)))
    assert "offset has seconds; use .astimezone(timezone.utc)" in refusal(odd)
    assert decode(encode(odd.astimezone(UTC)), datetime) == odd


class Secret:
    def __repr__(self) -> str:
        raise RuntimeError("hands off")


@pytest.mark.parametrize(("wrap", "path"), WRAPPERS)
@pytest.mark.parametrize(
    "value",
    [
        object(),
        len,
        Secret(),
        Colour,
        1 + 2j,
        deque([1]),
        {}.keys(),
        iter([1]),
        msgspec.Raw(b"NaN"),
        {1, "a"},
        memoryview(b"abcd")[::2],
        ValueError("x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_hold_is_refused(wrap: Any, path: str, value: object) -> None:
    assert place_of(refusal(wrap(value)), path)


def test_the_refusal_names_the_type_and_the_way_out() -> None:
    message = refusal({"conn": deque()})
    assert message.startswith("$.conn ")
    assert "no rule for collections.deque" in message
    assert "Pass plain values, a dataclass, a msgspec Struct or a pydantic model" in message


def test_objects_that_raise_when_looked_at_are_refused() -> None:
    class Bomb(Exception):
        pass

    class BadModel:
        def model_dump(self, *, mode: str) -> object:
            raise Bomb(mode)

    class BadDict(dict[str, int]):
        def items(self) -> Any:
            raise Bomb("items")

    assert "Bomb" in refusal(BadDict()) or "items" in refusal(BadDict())
    assert refusal({"m": BadModel()}).startswith("$.m ")
    assert refusal({"m": Holder(BadModel())}).startswith("$.m ")


def nested(depth: int, wrap: Any) -> object:
    value: object = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap", [lambda v: [v], lambda v: {"k": v}, lambda v: (v,), lambda v: [1.0, v, "\\u0000"]]
)
def test_nesting_is_bounded_exactly(wrap: Any) -> None:
    assert decode(encode(nested(MAX_DEPTH, wrap))) is not None
    assert "nested deeper than 100 levels" in refusal(nested(MAX_DEPTH + 1, wrap))
    assert "nested deeper than 100 levels" in refusal(nested(200_000, wrap))


def test_deep_typed_values_and_circles_are_refused() -> None:
    assert "nested" in refusal(nested(MAX_DEPTH + 1, Holder))
    assert "nested" in refusal(nested(100_000, HolderStruct))
    loop: list[object] = []
    loop.append(loop)
    assert "contains itself" in refusal(loop)
    knot: dict[str, object] = {}
    knot["k"] = Holder(knot)
    assert "contains itself" in refusal(knot)


@pytest.mark.slow
def test_a_small_object_that_writes_itself_out_without_end_is_stopped_early() -> None:
    loop: list[object] = []
    loop.extend([loop] * 3)
    message = refusal(loop)
    assert message.startswith("$" + "[0]" * 20 + "... is nested deeper")
    assert len(message) < 200
    shared: object = []
    for _ in range(60):  # 2**60 brackets
        shared = [shared, shared]
    with pytest.raises(PayloadTooLarge):
        encode(shared)


def test_a_deep_stack_of_the_caller_does_not_let_a_recursion_error_out() -> None:
    value = OrderedDict(a=nested(90, lambda v: [v]))

    def deep(left: int) -> None:
        if left:
            deep(left - 1)
            return
        with pytest.raises(PayloadInvalid):
            encode(value)

    frames = len(list(_frames()))
    # Near the end of the stack: enough is left for pytest.raises, not for ninety levels.
    deep(sys.getrecursionlimit() - frames - 60)


def _frames() -> Any:
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


# ------------------------------------------------------------------------------------------ size


def test_the_limit_is_exact_and_the_message_says_what_to_do() -> None:
    fits = "x" * (MAX_BYTES - 2)
    assert len(encode(fits)) == MAX_BYTES
    with pytest.raises(PayloadTooLarge) as caught:
        encode(fits + "x", what="the result of shop.report")
    message = str(caught.value)
    assert message.startswith("the result of shop.report is 1,048,577 bytes as JSON; ")
    assert "the maximum is 1,048,576 bytes" in message
    assert "Store the data elsewhere" in message
    assert "pass a reference" in message


@pytest.mark.parametrize("value", ["x" * 20_000_000, ["é" * 1000] * 10_000, Holder(b"x" * 10**6)])
def test_large_payloads_are_refused(value: object) -> None:
    with pytest.raises(PayloadTooLarge):
        encode(value)


@given(JSON_VALUES, st.integers(0, 100))
def test_the_limit_is_in_bytes_and_can_be_set(value: object, limit: int) -> None:
    size = len(encode(value))
    if size <= limit:
        assert len(encode(value, max_bytes=limit)) == size
    else:
        with pytest.raises(PayloadTooLarge):
            encode(value, max_bytes=limit)
