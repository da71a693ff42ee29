"""Strict JSON: what comes back equal, typed decoding, and fingerprints."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
import sys
from collections import OrderedDict, defaultdict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import tenure
from tenure.errors import InvalidInput, PayloadInvalid, PayloadTooLarge
from tenure.rules.codec import (
    decode,
    encode,
    fingerprint,
)
from tenure.rules.job import Json
from tests.support.values import (
    JSON_VALUES,
    Blob,
    Clock,
    Colour,
    Day,
    Holder,
    HolderStruct,
    Ident,
    Level,
    Mixed,
    Model,
    Moment,
    Money,
    Real,
    Span,
    Text,
    Whole,
)


class Address(TypedDict):
    street: str
    number: int


class Point(msgspec.Struct, tag="point", rename="camel", omit_defaults=True):
    x_axis: float
    y_axis: float = 0.0


class Pair(NamedTuple):
    left: int
    right: str


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    id: UUID
    at: datetime
    price: Decimal
    colour: Colour
    blob: bytes
    address: Address
    point: Point
    tags: frozenset[str] = frozenset()
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    note: str | None = None


# ---------------------------------------------------------------------------- values that pass


@given(JSON_VALUES)
def test_any_json_value_comes_back_equal(value: object) -> None:
    back = decode(encode(value))
    assert back == value
    assert repr(back) == repr(value)  # 1 == 1.0 == True, but they are not the same answer


@given(JSON_VALUES)
def test_the_output_is_strict_json_to_other_readers(value: object) -> None:
    def refuse(constant: str) -> object:
        raise AssertionError(constant)

    assert json.loads(encode(value), parse_constant=refuse) == value


@given(JSON_VALUES)
def test_both_ways_of_encoding_give_the_same_bytes(value: object) -> None:
    # A dict of another type goes the long way; what it holds must be written the same.
    assert encode(OrderedDict(v=value)) == encode({"v": value})


def test_plain_types_that_go_either_way_are_written_the_same() -> None:
    values: list[object] = [
        datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        datetime(2030, 1, 2, tzinfo=timezone(timedelta(0))),
        date(2030, 1, 2),
        time(3, 4, 5),
        time(3, 4, 5, tzinfo=UTC),
        timedelta(days=1, seconds=1.5),
        UUID(int=7),
        Decimal("1.50"),
        b"\0\xff",
        10**400,
    ]
    expected = msgspec.json.encode(values)
    assert encode(values) == expected
    assert encode(deque_like(values)) == expected


def deque_like(values: list[object]) -> list[object]:
    """A list that the codec does not take for plain."""

    class Sub(list):  # type: ignore[type-arg]
        pass

    return Sub(values)


def test_typed_values_come_back_as_their_types() -> None:
    order = Order(
        id=UUID(int=7),
        at=datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=-3))),
        price=Decimal("19.90"),
        colour=Colour.RED,
        blob=b"\0\xff",
        address={"street": "Rue de l'Église", "number": 2**70},
        point=Point(1.5),
        tags=frozenset({"b", "a"}),
        counts={"z": 1, "a": 2},
    )
    data = encode({"order": order})
    back = decode(data, dict[str, Order])
    assert back == {"order": order}
    assert '"point":{"type":"point","xAxis":1.5}' in data.decode()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (datetime(2030, 1, 2, tzinfo=UTC), datetime),
        (date(2030, 1, 2), date),
        (time(1, 2, 3), time),
        (timedelta(days=-1, microseconds=5), timedelta),
        (UUID(int=2**127), UUID),
        (Decimal("1E+400"), Decimal),
        (Colour.BLUE, Colour),
        (Level.LOW, Level),
        (Mixed.ONE, Mixed),
        (b"\0", bytes),
        (bytearray(b"\0\1"), bytearray),
        (Pair(1, "x"), Pair),
        ((1, "x"), tuple[int, str]),
        ({3, 1, 2}, set[int]),
        ({"k": [Point(1.0)]}, dict[str, list[Point]]),
        (None, type(None)),
        (10**4299, int),
        (-(10**4298), int),
        ([10**4299, 1.5, {"a": "\u00e9"}], object),
        ({"held": 10**4299}, HolderStruct),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_each_accepted_type_comes_back_equal(value: object, kind: Any) -> None:
    back = decode(encode(value), kind)
    if kind is HolderStruct:
        back = {"held": back.held}
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("wrap", [lambda value: value, Holder, lambda value: [value]])
@pytest.mark.parametrize(
    ("value", "same"),
    [
        (Text("x"), "x"),
        (Whole(5), 5),
        (Real(1.5), 1.5),
        (Moment(2030, 1, 2, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC)),
        (Day(2030, 1, 2), date(2030, 1, 2)),
        (Clock(1, 2), time(1, 2)),
        (Span(seconds=1.5), timedelta(seconds=1.5)),
        (Ident(int=7), UUID(int=7)),
        (Money("1.5"), Decimal("1.5")),
        (Blob(b"\0"), b"\0"),
        (defaultdict(list, a=[1]), {"a": [1]}),
        ({Text("k"): 1}, {"k": 1}),
        ({Colour.RED: 1, Mixed.ONE: 2}, {"red": 1, "one": 2}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_subclasses_are_written_like_what_they_are(wrap: Any, value: object, same: object) -> None:
    assert encode(wrap(value)) == encode(wrap(same))


def test_an_enum_is_written_by_its_value_not_by_what_is_mixed_in() -> None:
    class Status(str, enum.Enum):  # noqa: UP042 - StrEnum cannot do this
        DONE = ("Finished at last", "done")

        def __new__(cls, label: str, word: str) -> Status:
            member = str.__new__(cls, label)
            member._value_ = word
            return member

    assert encode(Status.DONE) == b'"done"'
    assert decode(encode([Status.DONE]), list[Status]) == [Status.DONE]


def test_order_of_keys_is_kept_and_sets_have_one_order() -> None:
    assert encode({"b": 1, "a": {"d": 1, "c": 2}}) == b'{"b":1,"a":{"d":1,"c":2}}'
    letters = {chr(letter) for letter in range(ord("a"), ord("z"))}
    assert decode(encode(letters)) == sorted(letters)
    assert decode(encode(Holder(letters))) == {"held": sorted(letters)}


def test_none_and_the_word_null_are_no_reason_to_refuse() -> None:
    assert encode({"a": None, "b": "null", "c": [None, 0.0]}) == (
        b'{"a":null,"b":"null","c":[null,0.0]}'
    )


def test_a_backslash_before_u0000_is_not_nul() -> None:
    assert decode(encode({"path": "C:\\u0000"})) == {"path": "C:\\u0000"}


# -------------------------------------------------------------------------------- large integers


@given(st.integers(min_value=-(10**60), max_value=10**60), st.integers(0, 4200))
@example(0, 0)
@example(-1, 599)
@example(1, 600)
@example(1, 4200)
def test_integers_of_up_to_4300_digits_are_exact(head: int, zeros: int) -> None:
    number = head * 10**zeros + 7
    data = encode({"n": [number]})
    assert data == f'{{"n":[{number}]}}'.encode()
    assert decode(data) == {"n": [number]}
    assert decode(data, dict[str, list[int]]) == {"n": [number]}


@pytest.mark.parametrize("number", [10**4300, -(10**4299), 10**100_000], ids=["+", "-", "long"])
@pytest.mark.parametrize("wrap", [lambda value: value, Holder, lambda value: deque_like([value])])
def test_a_longer_integer_is_refused_with_the_fix(wrap: Any, number: int) -> None:
    why = r"^args cannot be stored: \$.*n\S* is an integer of more than 4,300 digits; send it as"
    with pytest.raises(PayloadInvalid, match=why):
        encode({"n": wrap(number)}, what="args")
    with pytest.raises(PayloadInvalid, match=why):
        encode({"n": wrap(Whole(number))}, what="args")


def test_a_stored_integer_that_is_too_long_is_refused_with_the_fix() -> None:
    """SQL can store one."""
    data = f'{{"n":{"9" * 5000}}}'
    for kind in (object, dict[str, int]):
        with pytest.raises(PayloadInvalid, match=r"more than 4,300 digits \(send it as a string\)"):
            decode(data, kind)


def test_the_limit_is_that_of_the_interpreter() -> None:
    before = sys.get_int_max_str_digits()
    assert decode(encode([10**2000])) == [10**2000]
    sys.set_int_max_str_digits(640)
    try:
        with pytest.raises(PayloadInvalid, match="more than 640 digits; send it as a string"):
            encode([10**2000])
        assert sys.get_int_max_str_digits() == 640
    finally:
        sys.set_int_max_str_digits(before)


# ----------------------------------------------------------------------------------------- decode


@pytest.mark.parametrize(
    ("data", "kind", "why"),
    [
        ('{"a":{"b":["x"]}}', dict[str, dict[str, list[int]]], r"Expected `int`.*\$\[\.\.\.\]"),
        ('{"held":1,"x_axis":2}', Point, "missing required field `xAxis`"),
        ('{"type":"point","xAxis":"no"}', Point, r"Expected `float`, got `str` - at `\$\.xAxis`"),
        ("[1]", tuple[int, str], "length 2"),
        ("1", str, "Expected `str`, got `int`"),
        ("1.5", int, "Expected `int`, got `float`"),
        ('"green"', Colour, "Invalid enum value 'green'"),
        ('"x"', UUID, "Invalid UUID"),
        ('"yesterday"', datetime, "Invalid RFC3339"),
        ('"?"', bytes, "Invalid base64"),
        ("2", Literal[1], "Invalid enum value 2"),
        ("0", Annotated[int, msgspec.Meta(ge=1)], ">= 1"),
        ('{"street":"x"}', Address, "missing required field `number`"),
        ("[{}]", list[Model], r"exactly one field, held, is wanted - at `\$\[0\]`"),
        ("{}", Model, "exactly one field"),
        ("{}", complex, "no rule to build complex"),
        ("{}", int | complex, "not supported"),
        ("{}", 7, "not supported"),
    ],
)
def test_json_that_does_not_fit_is_refused_with_the_path(data: str, kind: object, why: str) -> None:
    with pytest.raises(PayloadInvalid, match=why) as caught:
        decode(data, kind)
    assert str(caught.value).startswith("stored JSON does not fit ")
    with pytest.raises(PayloadInvalid, match=why):
        decode(data.encode(), kind)


@pytest.mark.parametrize("kind", [object, float, list[float], dict[str, float], Any])
@pytest.mark.parametrize(
    "number", ["1e400", "-1e400", "1e309", "9" * 400 + ".5", "NaN", "Infinity"]
)
def test_a_number_beyond_the_floats_never_becomes_infinity(kind: object, number: str) -> None:
    for data in (number, f"[{number}]", f'{{"a":{number}}}'):
        with pytest.raises(PayloadInvalid):
            decode(data, kind)


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{",
        '{"a":1,}',
        "'a'",
        "[1] 2",
        '"\\ud800"',
        '"\ud800"',
        b"\xff",
        b'"\xed\xa0\x80"',
        "[" * 100_000,
        '{"a":' * 100_000,
        "nul",
        "\ufeff1",
    ],
    ids=lambda data: repr(data[:8]),
)
def test_broken_json_is_refused(data: str | bytes) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        decode(data)
    str(caught.value).encode()


@given(st.one_of(st.binary(), st.text(st.characters())))
def test_decode_answers_or_refuses_whatever_it_is_given(data: bytes | str) -> None:
    try:
        value = decode(data)
    except PayloadInvalid:
        return
    if "\\u0000" not in (data if isinstance(data, str) else data.decode()):
        assert decode(encode(value)) == value


T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    content: T


def test_annotations_of_every_kind_are_understood() -> None:
    assert decode("[1,2]", list[object]) == [1, 2]
    assert decode('{"content":[1]}', Box[list[int]]) == Box([1])
    assert decode("null", Model | None) is None
    assert decode('[{"held":[1]}]', list[Model]) == [Model([1])]
    assert decode('{"held":{"a":1}}', Model) == Model({"a": 1})
    unhashable = Annotated[int, {"a": "dict"}]
    with pytest.raises(TypeError):
        hash(unhashable)
    assert decode("7", unhashable) == 7


def test_a_check_of_the_users_own_can_refuse() -> None:
    @dataclasses.dataclass
    class Picky:
        n: int

        def __post_init__(self) -> None:
            if self.n == 1:
                raise ValueError("one is too few")
            if self.n == 2:
                raise KeyError("two")

    assert decode('{"n":3}', Picky).n == 3
    with pytest.raises(PayloadInvalid, match="one is too few"):
        decode('{"n":1}', Picky)
    with pytest.raises(PayloadInvalid, match="two"):
        decode('{"n":2}', Picky)


def test_real_pydantic_models_pass_and_come_back() -> None:
    pydantic = pytest.importorskip("pydantic")

    class User(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        model_config = pydantic.ConfigDict(strict=True)
        name: str
        at: datetime
        ratio: float = 0.5

    user = User(name="Zoë", at=datetime(2030, 1, 2, tzinfo=UTC))
    assert decode(encode(user), User) == user
    assert decode(encode({"users": [user]}), dict[str, list[User]]) == {"users": [user]}
    bad = User.model_construct(name="x", at=user.at, ratio=math.nan)
    with pytest.raises(PayloadInvalid, match=r"\$\.user\.ratio is NaN; JSON has no such number"):
        encode({"user": bad})
    with pytest.raises(PayloadInvalid, match="name"):
        decode('{"name":5,"at":"2030-01-02T00:00:00Z"}', User)


# ------------------------------------------------------------------------------------ fingerprint


def shuffled(value: object) -> object:
    """The same JSON with every dict's keys the other way round."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(JSON_VALUES)
@example({"n": 10**4000, "a": {"c": 1, "b": 2}})
def test_the_fingerprint_does_not_depend_on_the_order_of_keys(value: object) -> None:
    mine = fingerprint("shop.send", encode(value))
    assert mine == fingerprint("shop.send", encode(shuffled(value)))
    assert re.fullmatch(r"[0-9a-f]{32}", mine)


@given(JSON_VALUES, JSON_VALUES)
def test_different_arguments_have_different_fingerprints(one: object, other: object) -> None:
    same = encode(shuffled(one)) == encode(shuffled(other)) or one == other
    assume(not same)
    assert fingerprint("t", encode(one)) != fingerprint("t", encode(other))


def test_the_fingerprint_is_of_task_and_content() -> None:
    args = encode({"a": 1, "b": 2})
    assert fingerprint("t", args) == fingerprint("t", b' { "b" : 2, "a" : 1 } ')
    assert fingerprint("t", b'"\\u00e9"') == fingerprint("t", '"é"'.encode())
    assert fingerprint("t", args) != fingerprint("u", args)
    assert fingerprint("t", b"[1,2]") != fingerprint("t", b"[2,1]")
    # Stored with jobs, so it must never change between versions.
    assert fingerprint("t", args) == "b46c78b01fa55f5e0f41b3e32a026025"
    for broken in (b"{", b"[" * 5000, b'["\\u0000",' + b"9" * 5000 + b"]"):
        with pytest.raises(PayloadInvalid):
            fingerprint("t", broken)


# ------------------------------------------------------------------------------------- no pickle


@pytest.mark.parametrize(
    "data", [b"\x80\x04\x95\x0b\x00", b"cos\nsystem\n(S'true'\ntR.", b"!!python/none", b"a: 1"]
)
def test_pickle_and_yaml_are_just_broken_json(data: bytes) -> None:
    with pytest.raises(PayloadInvalid):
        decode(data)


def test_nothing_in_the_library_imports_a_format_that_runs_code() -> None:
    source = Path(str(tenure.__path__[0]))
    files = sorted(source.rglob("*.py"))
    assert any(file.name == "codec.py" for file in files)
    forbidden = re.compile(
        r"^\s*(?:import|from)\s+.*\b(?:c?pickle\w*|dill|cloudpickle|joblib|shelve|marshal|yaml)\b",
        re.MULTILINE,
    )
    assert forbidden.search("import os, pickle")
    assert forbidden.search("    from yaml import load")
    assert [file.name for file in files if forbidden.search(file.read_text("utf-8"))] == []


def test_every_refusal_is_an_invalid_input_and_a_value_error() -> None:
    assert issubclass(PayloadInvalid, InvalidInput)
    assert issubclass(PayloadTooLarge, InvalidInput)
    assert issubclass(InvalidInput, ValueError)
    assert type(encode(1)) is bytes
    assert Json(b"1") == encode(1)
