"""What is enqueued arrives as it was, or is refused before anything is written."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from tenure import Tenure
from tenure.errors import InvalidInput, PayloadInvalid
from tests.support.working import working


@dataclass
class Order:
    id: UUID
    total: Decimal
    placed_at: datetime


def test_values_arrive_with_the_types_of_the_annotations(app: Tenure) -> None:
    received = []

    @app.task()
    def ship(order: Order, *labels: str, express: bool = False) -> Decimal:
        received.append((order, labels, express))
        return order.total

    order = Order(uuid4(), Decimal("19.90"), datetime(2026, 3, 1, 12, tzinfo=UTC))
    with working(app):
        handle = ship.enqueue(order, "fragile", "heavy", express=True)
        assert handle.wait(timeout_seconds=30) == Decimal("19.90")
    assert received == [(order, ("fragile", "heavy"), True)]


def test_a_call_that_does_not_fit_is_refused_where_it_is_made(app: Tenure) -> None:
    @app.task()
    def charge(user: int, amount: Decimal) -> None: ...

    with pytest.raises(InvalidInput, match="missing a required argument: 'amount'"):
        charge.enqueue(42)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match=r"Expected `int`, got `str` - at `\$.user`"):
        charge.enqueue("42", Decimal(1))  # type: ignore[arg-type]
    assert app.list_jobs().jobs == ()


def test_what_json_cannot_say_is_refused_too(app: Tenure) -> None:
    @app.task()
    def measure(value: float) -> None: ...

    with pytest.raises(PayloadInvalid, match=r"\$.value is NaN; JSON has no such number"):
        measure.enqueue(float("nan"))
    assert app.list_jobs().jobs == ()
