"""Replace, as a caller of tasks sees it."""

from __future__ import annotations

import asyncio

import pytest

from tenure import Replace, Tenure, Unique
from tenure.errors import InvalidInput


def test_a_call_replaces_the_waiting_job(app: Tenure) -> None:
    @app.task()
    def index(n: int) -> int:
        return n

    first = index.options(key="a").enqueue(1)
    second = index.options(key="a", replace=True).enqueue(2)
    assert (second.id, second.created, second.replaced) == (first.id, False, True)
    assert app.get(first.id).args == {"n": 2}
    assert not index.options(key="a").enqueue(3).replaced

    async def main() -> bool:
        quiet = Replace(postpone=True, postpone_at_most_seconds=60)
        options = index.options(key="a", replace=quiet, delay_seconds=5)
        return (await options.enqueue_async(4)).replaced

    assert asyncio.run(main())
    assert app.get(first.id).due_at is not None


def test_wrong_options_say_what_to_write(app: Tenure) -> None:
    @app.task()
    def index() -> None: ...

    with pytest.raises(InvalidInput, match="replace= needs key="):
        index.options(replace=True).enqueue()
    with pytest.raises(InvalidInput, match="on_conflict"):
        index.options(unique=Unique(key="a"), replace=True).enqueue()
    with pytest.raises(InvalidInput, match="True or a Replace"):
        index.options(key="a", replace="yes").enqueue()  # type: ignore[arg-type]
