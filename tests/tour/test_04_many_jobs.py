"""Many jobs in one transaction: all of them, or none."""

import pytest

from tenure import Tenure
from tenure.errors import InvalidInput
from tests.support.working import working


def test_one_transaction_for_all(app: Tenure) -> None:
    @app.task()
    async def square(n: int) -> int:
        return n * n

    handles = app.enqueue_many(square.call(n) for n in range(250))
    with working(app):
        results = [handle.wait(timeout_seconds=30) for handle in handles]
    assert results == [n * n for n in range(250)]


def test_each_call_may_have_options_of_its_own(app: Tenure) -> None:
    @app.task()
    def send(to: str) -> None: ...

    first, second = app.enqueue_many(
        [send.call("ada@example.org"), send.options(queue="slow").call("bob@example.org")]
    )
    assert app.get(first.id).queue == "default"
    assert app.get(second.id).queue == "slow"


def test_one_bad_call_and_nothing_is_written(app: Tenure) -> None:
    @app.task()
    def send(to: str) -> None: ...

    with pytest.raises(InvalidInput):
        app.enqueue_many([send.call("ada@example.org"), send.options(priority=1000).call("b")])
    assert app.list_jobs().jobs == ()
