"""The guard complains: each kind of regression, put into the real code, is noticed and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.store.postgres.tx import PostgresTx
from tenure.store.sqlite.tx import SQLiteTx
from tenure.worker import settler
from tests.guard import test_database_work, test_growth, test_python_work
from tests.guard.budgets import BUDGETS, TooExpensive, check
from tests.guard.calls import OURS
from tests.guard.counts import Counts, count_growth
from tests.guard.places import Place

TXS: tuple[type[Any], ...] = (SQLiteTx, PostgresTx)

ONE_CALL_MORE = """
def extra(): pass
def add(self, holding, settlement):
    extra()
    before(self, holding, settlement)
"""
TWO_C_CALLS_MORE = """
def add(self, holding, settlement):
    len(()), len(())
    before(self, holding, settlement)
"""
ONE_LOG_LINE_MORE = """
import logging
def add(self, holding, settlement):
    logging.getLogger("tenure").isEnabledFor(10)
    before(self, holding, settlement)
"""


def as_ours(source: str, name: str, before: object) -> Any:
    """A function that counts as one of the package's own."""
    scope: dict[str, Any] = {"before": before}
    exec(compile(source, str(Path(OURS, "worker", "extra.py")), "exec"), scope)
    return scope[name]


def costs_more(what: str, where: str = "") -> str:
    """The pattern of a complaint about this count, with this among the parts."""
    return rf"costs more ([\w ]+ and )?{what}( and [\w ]+)? than(?s:.*){where}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        pytest.param(
            ONE_CALL_MORE,
            costs_more("python calls", r"\b1\.000  python calls: worker/extra\.py extra"),
            id="of ours",
        ),
        pytest.param(
            TWO_C_CALLS_MORE,
            costs_more("C calls", r"\b2\.000  C calls: worker/extra\.py add -> len"),
            id="of C functions",
        ),
        pytest.param(
            ONE_LOG_LINE_MORE,
            costs_more("library calls", r"\b1\.00\d  library calls: logging/\S+ Logger\.isEnabled"),
            id="of a library",
        ),
    ],
)
def test_a_call_more_per_job(
    place: Place, monkeypatch: pytest.MonkeyPatch, source: str, complaint: str
) -> None:
    before = settler.Backlog.add
    monkeypatch.setattr(settler.Backlog, "add", as_ours(source, "add", before))
    with pytest.raises(TooExpensive, match=complaint):
        check(f"{place.name}.worker_calls.async", test_python_work.drain_calls(place, "async"))


def look_again(monkeypatch: pytest.MonkeyPatch, method: str, statement: str, per_job: bool) -> None:
    """Have a step of both stores run a statement more: once, or once for each of its jobs."""
    for tx in TXS:
        monkeypatch.setattr(tx, method, _with(getattr(tx, method), statement, per_job=per_job))


def _with(step: Callable[..., Any], statement: str, *, per_job: bool) -> Callable[..., Any]:
    async def slower(self: Any, *args: Any) -> Any:
        answer = await step(self, *args)
        for _ in getattr(answer, "jobs", answer) if per_job else [None]:
            await self.fetch(statement, **({"tenant": None} if statement == "count_live" else {}))
        return answer

    return slower


def test_a_statement_more_per_job(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    look_again(monkeypatch, "succeed_jobs", "clock", per_job=True)
    with (
        place.store() as (store, meter),
        pytest.raises(TooExpensive, match=costs_more("statements", r"\b500\.000  select")),
    ):
        check(f"{place.name}.settle", test_database_work.settle(store, meter))


def test_a_statement_more_per_claim(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    look_again(monkeypatch, "take_tickets", "clock", per_job=False)
    with (
        place.store() as (store, meter),
        pytest.raises(TooExpensive, match=costs_more("statements")),
    ):
        check(f"{place.name}.claim", test_database_work.claim(store, meter))


def test_small_batches(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settler, "MAX_BATCH", 10)
    with pytest.raises(TooExpensive, match=costs_more("commits")):
        check(
            f"{place.name}.drain.async",
            count_growth(lambda jobs: place.drain("async", jobs), 500, 1_500),
        )


def test_an_index_more(place: Place) -> None:
    with (
        place.store(change="create index extra on tenure.job (task, id)") as (store, meter),
        pytest.raises(TooExpensive, match=costs_more("pages")),
    ):
        check(f"{place.name}.enqueue_bulk", test_database_work.enqueue_bulk(store, meter))


@pytest.mark.slow
def test_a_claim_that_reads_all_that_waits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    look_again(monkeypatch, "take_tickets", "count_live", per_job=False)
    small = test_growth.measure(place, waiting=2_000)
    large = test_growth.measure(place, waiting=20_000)
    with pytest.raises(AssertionError, match="claim of 500: the pages grow with the tables"):
        test_growth.check_growth(small, large)


def test_a_count_without_a_budget() -> None:
    with pytest.raises(AssertionError, match="other names"):
        check("postgres.life", Counts({"WAL bytes": 1.0, "locks": 1.0}))


def test_every_budget_is_measured() -> None:
    stores = ("sqlite", "postgres")
    steps = [step.__name__ for step in test_database_work.STEPS]
    runs = [f"{what}.{kind}" for what in ("drain", "worker_calls") for kind in ("async", "thread")]
    others = ["enqueue_calls.bulk", "enqueue_calls.one", "idle_minute"]
    measured = {f"{store}.{scene}" for store in stores for scene in (*steps, *runs, *others)}
    assert set(BUDGETS) == measured | {"postgres.life", "postgres.life_without_history"}
