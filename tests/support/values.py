"""Values for the tests of the codec: arbitrary JSON, holders, and subclasses of plain types."""

from __future__ import annotations

import dataclasses
import enum
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec
from hypothesis import strategies as st

# Text that every store keeps: no NUL (a control character) and no lone surrogate.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
    st.sampled_from([2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**400, "\\u0000", "null", "NaN"]),
)
JSON_VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXT, inner, max_size=5)),
    max_leaves=20,
)


class Model:
    """As much of a pydantic model as the codec knows."""

    def __init__(self, held: object) -> None:
        self.held = held

    def model_dump(self, *, mode: str) -> object:
        assert mode == "json"
        return {"held": self.held}

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> Model:
        tree = json.loads(json_data)
        if set(tree) != {"held"}:
            raise ValueError("exactly one field, held, is wanted")
        return cls(tree["held"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.held == self.held

    def __hash__(self) -> int:
        return 1


@dataclasses.dataclass
class Holder:
    held: object


class HolderStruct(msgspec.Struct):
    held: object


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Mixed(str, enum.Enum):  # noqa: UP042 - the older spelling is still everywhere
    ONE = "one"


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Real(float):
    pass


class Moment(datetime):
    pass


class Day(date):
    pass


class Clock(time):
    pass


class Span(timedelta):
    pass


class Ident(UUID):
    pass


class Money(Decimal):
    pass


class Blob(bytes):
    pass
