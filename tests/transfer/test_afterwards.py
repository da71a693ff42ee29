"""Life goes on in the target: a worker drains it, keys hold, the line stays the line."""

from __future__ import annotations

import pytest

from tenure import State, Tenure, Unique, Until
from tenure.store import open_store
from tenure.store.copy import run as transfer
from tests.support.audit import audit
from tests.support.patience import until
from tests.support.working import working
from tests.transfer.conftest import Urls, across


def application(url: str, seen: list[int]) -> Tenure:
    """The same application on any database."""
    app = Tenure(url)

    @app.task(name="shop.count", queue="counts")
    def count(n: int) -> int:
        seen.append(n)
        if n == 13:
            raise ValueError("unlucky")
        return n

    @app.task(name="shop.sum", queue="counts")
    def total() -> int:
        return sum(seen)

    return app


@across
@pytest.mark.slow
def test_a_worker_drains_the_target_and_unique_keys_hold(urls: Urls) -> None:
    seen: list[int] = []
    before = application(urls[0], seen)
    count, total = before.find("shop.count"), before.find("shop.sum")
    assert count is not None
    assert total is not None
    few = [count.options(key=f"n {n}").enqueue(n) for n in range(3)]
    with working(before, {"counts": 1}):
        until(lambda: not before.count_live())
    rest = [count.options(key=f"n {n}", max_attempts=1).enqueue(n) for n in range(3, 20)]
    parents = [*few, *rest]
    child = total.options(parents=parents[:10]).enqueue()
    once = count.options(unique=Unique(key="once", until=Until.FOREVER)).enqueue(100)
    before.close()

    with open_store(urls[0]) as source, open_store(urls[1]) as target:
        assert transfer.copy(source, target, int) == transfer.Copied(live=19, finished=3)

    after = application(urls[1], seen)
    again = after.find("shop.count")
    assert again is not None
    assert again.options(key="n 19").enqueue(19).id == parents[19].id
    with working(after, {"counts": 1}):
        until(lambda: not after.count_live())
    assert seen == [*range(20), 100]
    ended = {job.id: job.state for job in after.list_jobs(limit=100).jobs}
    assert ended.pop(parents[13].id) is State.FAILED
    assert set(ended.values()) == {State.SUCCEEDED}
    # It came free in the target, behind all that stood in line.
    assert after.get(child.id).result_json == str(sum(range(20)) + 100)
    assert again.options(unique=Unique(key="once", until=Until.FOREVER)).enqueue(100).id == once.id
    assert again.options(key="n 19").enqueue(19).id > once.id
    after.close()
    audit(urls[1])
