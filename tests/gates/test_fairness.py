"""A tenant with very many jobs does not delay those with few."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tenure import Gate, Tenure
from tests.support.patience import until
from tests.worker.support import working

pytestmark = pytest.mark.slow

LONG, SHORT, TENANTS = 4000, 40, 5
SLOTS = 10


def test_small_tenants_finish_as_if_each_had_an_equal_share(url: str) -> None:
    """Counted in jobs, not in seconds: when the last small one is done, how many ran in all?"""
    with Tenure(url) as app:
        order: list[str] = []

        @app.task(gate=Gate("mail", fair_by="tenant"))
        async def send(tenant: str) -> None:
            order.append(tenant)

        def calls(tenant: str, count: int) -> list[Any]:
            return [send.options(tenant=tenant).call(tenant) for _ in range(count)]

        app.enqueue_many(calls("large", LONG))
        for n in range(TENANTS):
            app.enqueue_many(calls(f"small-{n}", SHORT))
        with working(app, async_slots=SLOTS):
            until(lambda: len(order) - order.count("large") == SHORT * TENANTS, "they have run")
        last = max(n for n, tenant in enumerate(order) if tenant != "large")
        equal_share = SHORT * (TENANTS + 1)
        assert last <= 1.5 * equal_share, f"{last} jobs had run, {equal_share} would have been fair"


def test_without_a_gate_they_would_wait(url: str) -> None:
    """So that the test above can fail."""
    with Tenure(url) as app:
        order: list[str] = []

        @app.task()
        async def send(tenant: str) -> None:
            order.append(tenant)

        app.enqueue_many([send.call("large")] * LONG)
        app.enqueue_many([send.call("small")] * SHORT)
        with working(app, async_slots=SLOTS):
            until(lambda: order.count("small") == SHORT, "they have run")
        assert order.index("small") >= LONG - 1


def test_a_rate_is_kept_by_workers_that_sleep(url: str) -> None:
    """They wake for each start; idle polls every second would be far too slow."""
    with Tenure(url) as app:
        times: list[float] = []

        @app.task(gate=Gate("api", rate=50, burst=1))
        async def call() -> None:
            times.append(time.monotonic())

        app.enqueue_many([call.call() for _ in range(40)])
        with working(app):
            until(lambda: len(times) == 40, "all have run", seconds=30)
        assert times[-1] - times[0] >= 39 / 50 - 0.02
