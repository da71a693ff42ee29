"""Cursors: the `next` of a page, which is the `after` of the next one. Opaque to callers."""

import base64
import binascii
import hashlib
from datetime import datetime

import msgspec

from tenure.errors import InvalidFilter
from tenure.rules.filters import Filter, Order
from tenure.rules.limits import LONG_AGO
from tenure.store.look.walks import Plan, Position


class Cursor(msgspec.Struct, array_like=True):
    """Where the next page starts. Times are microseconds since 1970."""

    mark: str
    """Of the filter and the order: the cursor of another list is refused."""
    now: int
    """The time of the first page, which `2h` and `today` count from in all pages."""
    order: Order
    at: list[int | str]

    @property
    def first_page_at(self) -> datetime:
        """`now`, as a time."""
        return _when(self.now)

    @property
    def position(self) -> Position:
        """`at`, as the walks have it."""
        if self.order is Order.FINISHED:
            at, id = self.at
            return _when(int(at)), id
        return tuple(self.at)


_SHAPES = {
    Order.NEWEST: ("int",),
    Order.OLDEST: ("int",),
    Order.FINISHED: ("int int",),
    Order.NEXT: ("str int int int", "str int str str int int"),
}
"""What the positions of each order look like."""

_cursors = msgspec.json.Decoder(Cursor)


def _mark(wanted: Filter) -> str:
    text = repr((wanted.terms, wanted.order)).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(text, digest_size=6).hexdigest()


def _microseconds(at: datetime) -> int:
    return (at - LONG_AGO) // _MICROSECOND


_MICROSECOND = datetime.resolution


def write_cursor(position: Position, now: datetime, wanted: Filter, order: Order) -> str:
    """The `next` of a page that ends at this position."""
    at = [_microseconds(part) if isinstance(part, datetime) else part for part in position]
    cursor = Cursor(_mark(wanted), _microseconds(now), order, at)
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def read_cursor(text: str, wanted: Filter) -> Cursor:
    """The cursor in an `after`. Refuses that of another list."""
    try:
        padded = text + "=" * (-len(text) % 4)
        cursor = _cursors.decode(base64.b64decode(padded, altchars=b"-_", validate=True))
        order = Plan(wanted.at(cursor.first_page_at)).order
        shape = " ".join(type(part).__name__ for part in cursor.at)
        good = shape in _SHAPES[cursor.order] and all(
            -(2**53) <= part <= 2**53 for part in cursor.at if isinstance(part, int)
        )
        good = good and bool(cursor.position)  # its time is one
    except (TypeError, ValueError, OverflowError, binascii.Error, msgspec.MsgspecError) as error:
        raise InvalidFilter("after is not the `next` of a page; pass it unchanged") from error
    if not good or cursor.order != order or cursor.mark != _mark(wanted):
        raise InvalidFilter(
            "after is the `next` of another list; pass it with the same filter and order"
        )
    return cursor


def _when(microseconds: int) -> datetime:
    return LONG_AGO + microseconds * _MICROSECOND
