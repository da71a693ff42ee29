"""Gates of tasks: keys of calls, what is declared when, and what `why` says."""

from __future__ import annotations

import asyncio

import pytest

from tenure import Gate, TaskSet, Tenure
from tenure.errors import InvalidInput
from tenure.rules.job import WorkerInfo
from tenure.testing import drain


def test_the_key_is_worked_out_from_the_arguments(app: Tenure) -> None:
    @app.task(gate=Gate("doc", max_running=1, key=lambda doc_id, part: f"{doc_id}.{part}"))
    def index(doc_id: int, text: str, *, part: str = "all") -> None: ...

    calls = [index.call(7, "..."), index.call(text="...", doc_id=8, part="x")]
    assert [(call.job.gate, call.job.gate_key) for call in calls] == [
        ("doc", "7.all"), ("doc", "8.x"),
    ]  # fmt: skip


def test_a_key_that_wants_what_the_task_does_not_have(app: Tenure) -> None:
    @app.task(gate=Gate("doc", max_running=1, key=lambda page: page))
    def index(doc_id: int) -> None: ...

    with pytest.raises(InvalidInput, match="the key of gate doc needs the argument 'page'"):
        index.call(7)


def test_every_key_contains_the_tenant(app: Tenure) -> None:
    @app.task(gate=Gate("doc", max_running=1, key=lambda doc_id: doc_id))
    def index(doc_id: int) -> None: ...

    with app:
        handles = [index.options(tenant=tenant).enqueue(7) for tenant in ("a", "b")]
        keys = {app.get(handle.id).gate_key for handle in handles}
    assert keys == {"a\x1f7", "b\x1f7"}


def test_tasks_may_share_a_gate_if_they_say_the_same_of_it() -> None:
    tasks = TaskSet()
    tasks.task(name="a", gate=Gate("gpu", max_running=1))(lambda: None)
    tasks.task(name="b", gate=Gate("gpu", max_running=1))(lambda: None)
    with pytest.raises(InvalidInput, match="gives gate gpu other limits"):
        tasks.task(name="c", gate=Gate("gpu", max_running=2))(lambda: None)


def test_a_gate_is_a_gate() -> None:
    with pytest.raises(InvalidInput, match="gate must be a Gate"):
        TaskSet().task(gate="gpu")  # type: ignore[arg-type]


@pytest.mark.parametrize("colour", ["blocking", "awaiting"])
def test_the_first_enqueue_declares_the_gates(app: Tenure, colour: str) -> None:
    @app.task(gate=Gate("gpu", max_running=1))
    def work() -> None: ...

    async def enqueue() -> None:
        async with app:
            await work.enqueue_async()

    if colour == "awaiting":
        asyncio.run(enqueue())
    with app:
        if colour == "blocking":
            work.enqueue()
        [gate] = app.gates()
        assert (gate.name, gate.limits.max_running, gate.waiting) == ("gpu", 1, 1)


def test_why_explains_the_gate(app: Tenure) -> None:
    @app.task(name="work", gate=Gate("gpu", max_running=1))
    def work() -> None: ...

    @app.task(name="call", queue="calls", gate=Gate("api", rate=0.1, burst=1))
    def call() -> None: ...

    with app:
        ids = [work.enqueue().id for _ in range(3)]
        assert app.why(ids[2]).startswith("at gate gpu in queue default since ")
        for queue in ("default", "calls"):
            app.whole_store.claim("w1", {queue: 1})
        info = WorkerInfo(
            name="w1", host="here", pid=1, queues={"default": 0, "calls": 0}, tasks=("work", "call")
        )
        app.whole_store.announce(info)
        assert app.why(ids[2]) == "waits at gate gpu: 1 of 1 running, 1 before it"
        call.enqueue()
        app.whole_store.claim("w1", {"calls": 1})
        told = app.why(call.enqueue().id)
        assert told.startswith("waits at gate api: the next may start in ")
        assert told.endswith(" s, 0 before it")


def test_jobs_at_gates_run_in_tests_too(app: Tenure) -> None:
    seen: list[int] = []

    @app.task(gate=Gate("doc", max_running=1, key=lambda n: n % 2))
    async def work(n: int) -> None:
        seen.append(n)

    with app:
        app.enqueue_many([work.call(n) for n in range(6)])
        drain(app)
    assert sorted(seen) == list(range(6))
    assert [n for n in seen if n % 2] == [1, 3, 5]
