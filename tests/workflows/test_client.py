"""Workflows as users build, enqueue and follow them, in both colours."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tenure import Running, Tenure, Workflow
from tenure.errors import (
    InvalidInput,
    InvalidWorkflow,
    JobFailed,
    TenantMismatch,
    WaitTimeout,
    WorkflowFailed,
    WorkflowNotFound,
)
from tenure.rules.graph import Outcome
from tenure.rules.job import State, When
from tests.worker.support import working


class Shop:
    """An application with tasks that hand numbers on."""

    def __init__(self, url: str) -> None:
        self.app = app = Tenure(url)

        @app.task()
        def one(value: int) -> int:
            return value

        @app.task()
        async def total(job: Running) -> int:
            return sum(await job.results_async(one))

        @app.task()
        def fan(job: Running, width: int) -> None:
            more = job.workflow
            first = more.add(one.call(100))
            for n in range(width):
                more.add(one.call(n), after=[first], before=["total"])
            more.enqueue()

        @app.task(max_attempts=1)
        def broken() -> None:
            raise ValueError("no")

        @app.task()
        async def tell(job: Running) -> list[str]:
            return [f"{end.name} {end.state}" for end in await job.parents_async()]

        self.one, self.total, self.fan, self.broken, self.tell = one, total, fan, broken, tell


@pytest.fixture
def shop(url: str) -> Any:
    made = Shop(url)
    with made.app:
        yield made


def test_results_go_from_parents_to_children(shop: Shop) -> None:
    flow = shop.app.workflow("sum")
    parts = [flow.add(shop.one.call(n)) for n in range(5)]
    total = flow.add(shop.total.call(), after=parts)
    told = flow.add(shop.tell.call(), after=[total], when="all_finished")
    run = flow.enqueue()
    with working(shop.app):
        assert run.wait(timeout_seconds=60).outcome is Outcome.SUCCEEDED
    assert run.result(total) == 10
    assert run.result(told) == ["total succeeded"]
    assert [node.name for node in run.nodes()] == [
        "one", "one-2", "one-3", "one-4", "one-5", "total", "tell",
    ]  # fmt: skip


def test_a_running_job_adds_to_its_own_workflow(shop: Shop) -> None:
    flow = shop.app.workflow("fan")
    fan = flow.add(shop.fan.call(4))
    total = flow.add(shop.total.call(), after=[fan], name="total")
    run = flow.enqueue()
    with working(shop.app):
        run.wait(timeout_seconds=60)
    assert run.result(total) == 6
    assert run.status().total == 7


def test_both_colours_do_the_same(shop: Shop) -> None:
    async def scene() -> None:
        flow = shop.app.workflow("async", finaliser=shop.tell.call())
        one = flow.add(shop.one.call(7), name="first")
        total = flow.add(shop.total.call(), after=["first"])
        run = await flow.enqueue_async()
        assert await run.pause_async()
        assert (await run.status_async()).state == "paused"
        assert await run.resume_async()
        again = shop.app.workflow_run(run.id)
        assert await again.job_id_async("first") == await run.job_id_async(one)
        with pytest.raises(WaitTimeout, match="0 of 3 nodes"):
            await run.wait_async(timeout_seconds=0.01)
        assert "first: queued" in await run.draw_async()
        assert len(await run.nodes_async()) == 3
        with working(shop.app):
            await run.wait_async(timeout_seconds=60)
            assert await run.result_async(total) == 7
        assert not await run.cancel_async()
        assert await run.replay_async(one)
        assert [seen.id for seen in await shop.app.workflows_async(open=True)] == [run.id]
        assert await run.cancel_async(reason="enough")
        assert await run.cancel_async()
        assert (await run.status_async()).outcome is Outcome.CANCELLED
        await shop.app.close_async()

    asyncio.run(scene())


def test_a_failed_workflow_raises_and_is_replayed(shop: Shop) -> None:
    flow = shop.app.workflow("bad")
    bad = flow.add(shop.broken.call())
    flow.add(shop.one.call(1), after=[bad])
    told = flow.add(shop.tell.call(), after=[bad], when=When.ANY_FAILED)
    run = flow.enqueue()
    with working(shop.app):
        with pytest.raises(WorkflowFailed, match="1 failed, 1 skipped, 1 succeeded") as raised:
            run.wait(timeout_seconds=60)
        assert raised.value.outcome == "failed"
        assert run.result(told) == ["broken failed"]
        with pytest.raises(JobFailed):
            run.result(bad)
    assert run.replay(bad)
    assert run.status().counts == {State.QUEUED: 1, State.WAITING: 1, State.SUCCEEDED: 1}
    run.cancel()


def test_a_key_gives_the_workflow_that_is_there(shop: Shop) -> None:
    first, second = (shop.app.workflow("keyed", key="doc") for _ in range(2))
    for flow in (first, second):
        flow.add(shop.one.call(1))
    run, again = first.enqueue(), second.enqueue()
    assert (run.created, again.created, again.id) == (True, False, run.id)
    run.cancel()


def test_a_draft_can_be_enqueued_twice(shop: Shop) -> None:
    flow = shop.app.workflow("twice")
    flow.add(shop.one.call(1))
    assert flow.enqueue().id != flow.enqueue().id
    for seen in shop.app.workflows():
        shop.app.workflow_run(seen.id).cancel()


def _circle(flow: Workflow, one: Any) -> None:
    flow.add(one.call(1), name="a", after=["c"])
    flow.add(one.call(1), name="b", after=["a"])
    flow.add(one.call(1), name="c", after=["b"])


def _before(flow: Workflow, one: Any) -> None:
    first = flow.add(one.call(1), name="a")
    flow.add(one.call(1), name="b", after=[first], before=[first])


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (_circle, "cycle: .* -> .* -> "),
        (_before, "cycle"),
        (lambda flow, one: flow.add(one.call(1), name="a", after=["a"]), "a waits for itself"),
        (lambda flow, one: flow.add(one.call(1), after=["x"]), "names x, but"),
        (lambda flow, one: flow.add(one.call(1), before=["x"]), "names x, but"),
        (lambda flow, one: [flow.add(one.call(1), name="a") for _ in "ab"], "named a"),
        (lambda flow, one: flow.add(one.call(1), name="no name"), "not a valid name"),
        (lambda flow, one: flow.add(one.call(1), after="one"), "a list of nodes"),
        (lambda flow, one: flow.add(one.call(1), after=[7]), "nodes or their names"),
        (lambda flow, one: flow.add(one.call(1), when="sometimes"), "any_failed, not 'sometimes'"),
        (lambda flow, one: flow.add(one), "task.call"),
        (lambda flow, one: flow.add(one.options(parents=[1]).call(1)), "has parents="),
        (lambda *_: None, "must have 1 to"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused_before_anything_is_written(
    shop: Shop, build: Any, match: str
) -> None:
    flow = shop.app.workflow("wrong")

    def attempt() -> None:
        build(flow, shop.one)
        flow.enqueue()

    with pytest.raises(InvalidInput, match=match):
        attempt()
    assert shop.app.workflows() == []
    assert shop.app.count_live() == []


def test_nodes_of_another_workflow_and_wrong_options_are_refused(shop: Shop) -> None:
    stranger = shop.app.workflow("other").add(shop.one.call(1))
    with pytest.raises(InvalidWorkflow, match="another workflow"):
        shop.app.workflow("wrong").add(shop.one.call(1), after=[stranger])
    with pytest.raises(InvalidWorkflow, match="finish"):
        shop.app.workflow("wrong", on_failure="explode")  # type: ignore[arg-type]
    with pytest.raises(WorkflowNotFound):
        shop.app.workflow_run(12345).status()
    with pytest.raises(WorkflowNotFound):
        shop.app.workflow_run(12345).wait()


def test_order_of_adding_is_free(shop: Shop) -> None:
    flow = shop.app.workflow("backwards")
    total = flow.add(shop.total.call(), after=["x", "y"])
    flow.add(shop.one.call(1), name="x")
    flow.add(shop.one.call(2), name="y", before=["x"])
    run = flow.enqueue()
    with working(shop.app):
        run.wait(timeout_seconds=60)
    assert run.result(total) == 3


def test_a_tenants_workflow_belongs_to_the_tenant(shop: Shop) -> None:
    flow = shop.app.workflow("owned")
    flow.add(shop.one.options(tenant="mine").call(1))
    flow.add(shop.one.call(2))
    run = flow.enqueue()
    assert run.status().tenant == "mine"
    assert {shop.app.get(node.id).tenant for node in run.nodes()} == {"mine"}
    run.cancel()
    mixed = shop.app.workflow("mixed", tenant="mine")
    mixed.add(shop.one.options(tenant="theirs").call(1))
    with pytest.raises(TenantMismatch):
        mixed.enqueue()


def test_a_workflow_in_the_callers_own_transaction(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    shop = Shop(f"sqlite:///{path}?driver=sqlite3&allow_affected_sqlite=1")
    with shop.app:
        flow = shop.app.workflow("mine")
        first = flow.add(shop.one.call(1))
        flow.add(shop.one.call(2), after=[first])
        shop.app.migrate()
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("begin immediate")
        flow.enqueue(on=connection)
        connection.execute("rollback")
        assert shop.app.workflows() == []
        connection.execute("begin immediate")
        run = flow.enqueue(on=connection)
        connection.execute("commit")
        connection.close()
        assert run.status().counts == {State.QUEUED: 1, State.WAITING: 1}


def test_the_same_on_postgres(pg_migrated_url: str) -> None:
    import psycopg

    shop = Shop(pg_migrated_url)
    with shop.app, psycopg.connect(pg_migrated_url) as connection:
        flow = shop.app.workflow("mine", finaliser=shop.tell.call())
        first = flow.add(shop.one.call(1))
        flow.add(shop.one.call(2), after=[first])
        flow.enqueue(on=connection)
        assert shop.app.workflows() == []
        connection.rollback()
        run = flow.enqueue(on=connection)
        connection.commit()
        with working(shop.app):
            run.wait(timeout_seconds=60)


@pytest.mark.slow
def test_a_large_result_is_read_by_reference(shop: Shop) -> None:
    """Children do not carry what their parents returned: the cap on results is all there is."""
    big = "x" * 900_000

    @shop.app.task()
    def make() -> str:
        return big

    @shop.app.task()
    def measure(job: Running) -> int:
        return len(job.results(make)[0])

    flow = shop.app.workflow("large")
    made = flow.add(make.call())
    sizes = [flow.add(measure.call(), after=[made]) for _ in range(20)]
    run = flow.enqueue()
    with working(shop.app):
        run.wait(timeout_seconds=60)
    assert [run.result(size) for size in sizes] == [len(big)] * 20
    assert all(len(shop.app.get(node.id).args) < 100 for node in run.nodes())


@pytest.mark.slow
def test_a_result_that_is_too_large_fails_its_node_and_the_workflow_ends(
    shop: Shop,
) -> None:
    @shop.app.task(max_attempts=1)
    def make() -> str:
        return "x" * 20_000_000

    flow = shop.app.workflow("heavy")
    made = flow.add(make.call())
    for _ in range(1000):
        flow.add(shop.total.call(), after=[made])
    run = flow.enqueue()
    with working(shop.app), pytest.raises(WorkflowFailed):
        run.wait(timeout_seconds=60)
    assert run.status().counts == {State.FAILED: 1, State.SKIPPED: 1000}
    with pytest.raises(JobFailed, match="the maximum is"):
        run.result(made)


@pytest.mark.slow
def test_a_circle_of_a_hundred_thousand_nodes_is_refused(shop: Shop) -> None:
    flow = shop.app.workflow("large")
    call = shop.one.call(0)
    last = flow.add(call)
    for _ in range(99_998):
        last = flow.add(call, after=[last])
    flow.add(call, after=[last], before=["one"])
    with pytest.raises(InvalidWorkflow, match="cycle"):
        flow.enqueue()
    assert shop.app.workflows() == []
    assert shop.app.count_live() == []
