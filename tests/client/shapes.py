"""Types of arguments, one of each kind that a task may be annotated with."""

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import TypedDict
from uuid import UUID

import msgspec
import pydantic


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass(frozen=True)
class Order:
    id: UUID
    total: Decimal
    colour: Colour
    lines: tuple[int, ...]


class Address(TypedDict):
    street: str
    flat: int | None


class Point(msgspec.Struct, frozen=True):
    x: float
    y: float


class User(pydantic.BaseModel):
    name: str
    born: date
    seen_at: datetime | None = None
    friends: list["User"] = []
