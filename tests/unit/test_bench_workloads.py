"""The workloads run at tiny sizes, count what they say, and audit themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from bench.harness import BenchmarkFailed, Result
from bench.lab import Lab
from bench.registry import BENCHMARKS
from bench.report import Report
from bench.workloads import (
    backlog,
    counting,
    drain,
    enqueue,
    footprint,
    held_snapshot,
    promote,
    scaling,
    scheduled,
    variety,
)
from bench.workloads.crew import crew
from bench.workloads.meter import metered_place
from bench.workloads.place import KINDS, Kind, fresh_place, plain
from bench.workloads.targets import TARGETS
from bench.workloads.turns import against_limit, compare_sides, part, take_turns
from tests.support.postgres import Server

MODULES = (
    backlog, counting, drain, enqueue, footprint, held_snapshot, promote, scaling, scheduled,
    variety,
)  # fmt: skip


class SharedLab(Lab):
    """A lab whose server is the tests' own: nothing here is a measurement."""

    def __init__(self, server: Server, *asked: str, rounds: int = 1) -> None:
        super().__init__(quick=True, asked=asked, rounds=rounds, scale=0.0001)
        self.__dict__["server"] = server


@pytest.fixture
def lab(pg_server: Server) -> Iterator[SharedLab]:
    with SharedLab(pg_server) as one:
        yield one


def ask(lab: Lab, *names: str) -> dict[str, Result]:
    """The figures of these names."""
    lab.asked = names
    found = {
        result.name: result
        for module in MODULES
        if set(module.NAMES) & set(names)
        for result in module.run(lab)
    }
    assert set(found) >= set(names)
    assert all(result.ratio > 0 for result in found.values())
    return found


def test_all_workloads_are_registered_on_request() -> None:
    listed = {name for each in BENCHMARKS if each.on_request for name in each.names}
    assert listed >= {name for module in MODULES for name in module.NAMES}


def test_every_target_is_that_of_a_workload() -> None:
    assert set(TARGETS) <= {name for module in MODULES for name in module.NAMES}


def test_sides_take_turns_there_and_back(lab: SharedLab) -> None:
    lab.rounds = 3
    order: list[str] = []
    values = {"a": [30.0, 10.0, 50.0], "b": [10.0, 10.0, 10.0]}

    def side(name: str) -> tuple[float, str]:
        order.append(name)
        return values[name].pop(0), name

    rounds = take_turns(lab, {"a": lambda: side("a"), "b": lambda: side("b")})
    figure = compare_sides("x", part(rounds, lambda seen: seen[0]), "a", "b", unit="jobs/s")
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert (figure.value, figure.ratio, figure.spread) == (30.0, 3.0, (1.0, 5.0))
    assert figure.against == "b: 10"


def test_a_count_keeps_its_digits_beside_a_limit() -> None:
    figure = against_limit("x", [0.0123, 0.0125, 0.0121], 0.05, unit="commits")
    assert (figure.value, figure.ratio) == (0.0123, 0.246)


@pytest.mark.parametrize("kind", KINDS)
def test_pages_are_counted_while_the_store_works(lab: SharedLab, kind: Kind) -> None:
    with metered_place(lab, kind) as (place, count):
        place.fill(plain(2))
        assert count(lambda: None) == 0
        one, many = (count(lambda jobs=jobs: place.fill(plain(jobs))) for jobs in (1, 300))  # type: ignore[misc]
        assert 0 < one < many


@pytest.mark.parametrize("kind", KINDS)
def test_a_drain_that_left_a_job_has_no_figure(lab: SharedLab, kind: Kind) -> None:
    with fresh_place(lab, kind) as place:
        place.fill(plain(2))
        with pytest.raises(BenchmarkFailed, match="ready has 2 rows, not 0"):
            place.check_finished(2)


def test_looks_in_a_quiet_block_are_one_commit(lab: SharedLab) -> None:
    commits = "select xact_commit from pg_stat_database where datname = current_database()"
    with fresh_place(lab, "postgres") as place, psycopg.connect(place.url, autocommit=True) as me:

        def count() -> int:
            place.look("select pg_stat_force_next_flush()::text")
            row = me.execute(commits.encode()).fetchone()
            assert row is not None
            return int(row[0])

        before = count()
        with place.quietly():
            for _ in range(50):
                place.number("select count(*) from {t}job")
        assert count() - before < 25


@pytest.mark.slow
@pytest.mark.parametrize("store", KINDS)
def test_enqueuers_are_compared_with_bare_commits(lab: SharedLab, store: Kind) -> None:
    found = ask(lab, *(f"workloads.{store}.{figure}" for figure in enqueue.FIGURES))
    assert all(result.against.startswith(enqueue.BARE) for result in found.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["workloads.postgres.backlog_pages", "workloads.sqlite.promote_pages"]
)
def test_a_large_database_is_compared_with_a_small_one_by_pages(lab: SharedLab, name: str) -> None:
    assert 0.2 < ask(lab, name)[name].ratio < 5  # both sides are as small here


@pytest.mark.slow
@pytest.mark.parametrize(("store", "figure"), [("postgres", "retries"), ("sqlite", "queues100")])
def test_variety_is_drained(lab: SharedLab, store: Kind, figure: str) -> None:
    assert variety.drain_variety(lab, store, figure, jobs=201) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "side"), [("postgres", "with statistics"), ("sqlite", "without")]
)
def test_a_worker_counts_or_does_not(lab: SharedLab, store: Kind, side: str) -> None:
    assert counting.drain_counted(lab, store, side, jobs=201) > 0


@pytest.mark.slow
def test_process_handlers_are_drained(lab: SharedLab) -> None:
    assert drain.drain(lab, "sqlite", "process", workers=1, jobs=20) > 0


@pytest.mark.slow
def test_lateness_is_told_by_the_handlers(lab: SharedLab) -> None:
    found = ask(lab, "workloads.sqlite.scheduled_p50", "workloads.sqlite.scheduled_p99")
    p50, p99 = (found[f"workloads.sqlite.scheduled_{which}"].value for which in ("p50", "p99"))
    assert 0 < p50 <= p99


@pytest.mark.slow
def test_a_held_snapshot_gives_a_curve_and_a_plot(lab: SharedLab, tmp_path: Path) -> None:
    found = ask(lab, *held_snapshot.NAMES)
    report = Report(tmp_path)
    for result in found.values():
        assert result.detail is not None
        curve = result.detail["curve"]
        assert isinstance(curve, list)
        assert len(curve) == held_snapshot.ROUNDS
        report.add(result)
    report.finish([])
    assert {path.stem for path in tmp_path.glob("*.svg")} == set(held_snapshot.NAMES)


@pytest.mark.slow
def test_the_footprint_counts_everything(lab: SharedLab) -> None:
    found = ask(lab, *footprint.COUNTS)
    wal, commits, dead = (found[name].value for name in footprint.COUNTS)
    assert wal > 300
    assert 0 < commits < 1
    assert dead >= 2


@pytest.mark.slow
def test_a_worker_that_ends_is_an_error(lab: SharedLab) -> None:
    with (
        fresh_place(lab, "sqlite") as place,
        pytest.raises(BenchmarkFailed, match="a worker has ended"),
        crew(place, queues=["no queue!"]),
    ):
        pass
