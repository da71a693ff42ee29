"""A worker beside thousands of jobs that cannot pass their gate: all others are served."""

from __future__ import annotations

import pytest

from tenure import State, Tenure
from tenure.rules.claim import Claimed
from tenure.rules.gates import Limits
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import succeed
from tenure.store.gates import passing as gates
from tests.support.plain import Plain
from tests.worker.support import ended, working

KEYS, TURNS = 300, 40
QUEUES = {"shut": 10, "plain": 10}


@pytest.fixture
def running(app: Tenure) -> list[Claimed]:
    """Jobs of another queue, which run. For each, ten of the same key wait, with a turn each."""

    @app.task(name="keyed", queue="shut")
    async def keyed() -> None: ...

    @app.task(name="plain", queue="plain")
    async def plain() -> None: ...

    def of(queue: str) -> list[NewJob]:
        return [
            NewJob(task="keyed", queue=queue, gate="each", gate_key=str(n)) for n in range(KEYS)
        ]

    store = app.whole_store
    store.declare_gates({"each": Limits(max_running=1, keyed=True)})
    store.enqueue(of("elsewhere"))
    leases = store.claim("elsewhere", {"elsewhere": KEYS}, lease_seconds=3600)
    jobs = [job for lease in leases for job in lease.jobs]
    assert len(jobs) == KEYS
    for _ in range(TURNS):
        store.enqueue(of("shut"))
    return jobs


@pytest.mark.slow
@pytest.mark.usefixtures("running")
def test_others_are_served_while_claims_walk_past_those_who_cannot_pass(
    app: Tenure, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ready, what is due and what a dead worker had, long before the walk has ended."""
    monkeypatch.setattr(gates, "TURNS_PER_NEXT_PAGE", 1)
    task = app.find("plain")
    assert task is not None
    lost = task.enqueue().id
    app.whole_store.claim("dead", {"plain": 1}, lease_seconds=0.5)
    with working(app, QUEUES):
        due = task.options(delay_seconds=0.5).enqueue().id
        for id in (task.enqueue().id, due, lost):
            assert ended(app, id).state is State.SUCCEEDED
        with Plain(url) as plain:  # as soon as a walk has ended, each line has one
            assert plain.one("select count(*) from tenure.turn where queue = 'shut'") > KEYS


@pytest.mark.slow
def test_who_can_pass_behind_thousands_who_cannot_does(app: Tenure, running: list[Claimed]) -> None:
    """Who comes behind them, and one of them when its line is free."""
    with working(app, QUEUES):
        [behind] = app.whole_store.enqueue(
            [NewJob(task="keyed", queue="shut", gate="each", gate_key="free")]
        )
        assert ended(app, behind.id).state is State.SUCCEEDED
        [*_, last] = app.whole_store.enqueue(
            [NewJob(task="keyed", queue="shut", gate="each", gate_key=str(KEYS - 1))]
        )
        app.whole_store.settle("elsewhere", [succeed(running[-1])])
        assert ended(app, last.id).state is State.SUCCEEDED
