"""Property: what was enqueued arrives equal, and of the same type."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import Tenure
from tests.client.shapes import Address, Colour, Order, Point, Size, User
from tests.support.values import JSON_VALUES, TEXT
from tests.support.working import working

FINITE = st.floats(allow_nan=False, allow_infinity=False)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
ZONED = st.datetimes(
    min_value=datetime(1970, 1, 2), max_value=datetime(2999, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)  # fmt: skip
ORDERS = st.builds(
    Order,
    id=st.uuids(),
    total=DECIMALS,
    colour=st.sampled_from(Colour),
    lines=st.lists(st.integers()).map(tuple),
)
USERS = st.builds(
    User,
    name=TEXT,
    born=st.dates(),
    seen_at=st.none() | ZONED,
    friends=st.lists(st.builds(User, name=TEXT, born=st.dates()), max_size=2),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXT,
    "number": st.integers(),
    "ratio": FINITE,
    "flag": st.booleans(),
    "nothing": st.none(),
    "raw": st.binary(),
    "money": DECIMALS,
    "uid": st.uuids(),
    "day": st.dates(),
    "at": ZONED,
    "hour": st.times(),
    "span": st.timedeltas(min_value=timedelta(-999_999), max_value=timedelta(999_999)),
    "colour": st.sampled_from(Colour),
    "size": st.sampled_from(Size),
    "order": ORDERS,
    "address": st.fixed_dictionaries({"street": TEXT, "flat": st.none() | st.integers()}),
    "point": st.builds(Point, x=FINITE, y=FINITE),
    "user": USERS,
    "maybe": st.none() | st.dates(),
    "many": st.lists(ORDERS, max_size=3),
    "pair": st.tuples(st.integers(), TEXT),
    "members": st.frozensets(st.integers()),
    "table": st.dictionaries(TEXT, DECIMALS, max_size=3),
    "plain": JSON_VALUES,
}


def everything(
    text: str, number: int, ratio: float, flag: bool, nothing: None, raw: bytes, money: Decimal,
    uid: UUID, day: date, /, at: datetime, hour: time, span: timedelta, colour: Colour, size: Size,
    *, order: Order, address: Address, point: Point, user: User, maybe: date | None,
    many: list[Order], pair: tuple[int, str], members: frozenset[int], table: dict[str, Decimal],
    plain: object,
) -> None:  # fmt: skip
    """Takes one of each; a call of it binds exactly as a plain call would."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenure]:
    with Tenure(f"sqlite:///{tmp_path_factory.mktemp('round_trip') / 'jobs.db'}") as app:
        app.task(name="everything")(everything)
        yield app


@settings(max_examples=30)
@given(values=st.fixed_dictionaries(VALUES))
def test_what_was_enqueued_arrives_equal(here: Tenure, values: dict[str, Any]) -> None:
    task = here.find("everything")
    assert task is not None
    positional_only, names = list(VALUES)[:9], list(VALUES)[9:]
    handle = task.enqueue(
        *(values[name] for name in positional_only), **{name: values[name] for name in names}
    )

    args, kwargs = task.signature.unpack(here.get(handle.id).args_json)
    arrived = dict(zip(VALUES, args, strict=False)) | kwargs
    assert len(args) == 14  # what may be given either way arrives by position
    for name, value in values.items():
        assert arrived[name] == value, name
        assert type(arrived[name]) is type(value), name


@settings(max_examples=15)
@given(
    values=st.lists(ORDERS, max_size=3),
    more=st.dictionaries(st.from_regex(r"\A[a-z]{1,5}\Z"), ORDERS),
)
def test_star_arguments_arrive_equal(
    here: Tenure, values: list[Order], more: dict[str, Order]
) -> None:
    task = here.find("stars")
    if task is None:

        @here.task(name="stars")
        def stars(*orders: Order, **named: Order) -> None: ...

        task = stars
    handle = task.enqueue(*values, **more)
    assert task.signature.unpack(here.get(handle.id).args_json) == (values, more)


def test_arguments_and_results_arrive_equal_through_a_worker(app: Tenure) -> None:
    @app.task()
    def echo(order: Order, user: User, raw: bytes) -> tuple[Order, User, bytes]:
        assert isinstance(order, Order)
        assert isinstance(user, User)
        return order, user, raw

    order = Order(UUID(int=7), Decimal("1E+2"), Colour.BLUE, (1, 2**70))
    user = User(
        name="Ada \N{SNOWMAN} \\u0000 'quoted' \"twice\"",
        born=date(1815, 12, 10),
        seen_at=datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC),
        friends=[User(name="Charles", born=date(1791, 12, 26))],
    )
    with working(app):
        handle = echo.enqueue(order, user, bytes(range(256)))
        assert handle.wait(timeout_seconds=30) == (order, user, bytes(range(256)))
