"""The benchmark beside other queues audits itself. No peer is installed here: we race ourselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import plots
from bench.harness import BenchmarkFailed, Result
from bench.lab import Lab
from bench.peers import environments, sqlite_concurrent_enqueue
from bench.peers.adapter import Adapter, payload
from bench.peers.adapters.ours import Postgres, Sqlite, SqliteThread
from bench.peers.board import Board
from bench.peers.catalogue import OURS, PEERS, USUAL, load, peers_named
from bench.peers.contest import Competitor, Pair, Turn, compare_turns, compete, take_turns
from bench.peers.drain import drain
from bench.peers.targets import TARGETS, Target
from bench.peers.trial import trial
from bench.registry import BENCHMARKS
from bench.report import Report, markdown
from tenure.rules.codec import encode

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(quick=True, asked=["peers"], peers=USUAL, rounds=1, scale=0.001) as one:
        yield one


def competitor(name: str) -> Competitor:
    return Competitor(load(name), sys.executable)


def result(name: str, ratio: float = 2.0, **detail: object) -> Result:
    return Result(
        name=name, value=10.0, unit="jobs/s", ratio=ratio, against="x", spread=(1.0, 3.0),
        detail=detail or None,
    )  # fmt: skip


def test_the_payload_is_about_a_hundred_bytes() -> None:
    assert 90 <= len(encode(payload(123_456))) <= 110


def test_the_board_counts_what_ran_and_what_ran_twice(tmp_path: Path) -> None:
    here, there = (Board(tmp_path / "board", 5) for _ in range(2))
    for job in (0, 3, 3):
        there.committed(job)
        there.ran(job)
    assert (here.done(0, 5), here.done(1, 3), here.twice(0, 5)) == (2, 0, 1)
    assert len(here.waits(0, 5)) == 2


def test_workers_wait_for_the_go(tmp_path: Path) -> None:
    board = Board(tmp_path / "board", 1)
    assert not board.is_ready(1)
    started = board.go()
    board.wait_for_go(0)
    assert board.is_ready(1)
    assert started > 0
    board.reset_workers()
    assert not board.is_ready(1)


@pytest.mark.parametrize("name", [*OURS, *PEERS])
def test_every_adapter_says_how_it_competes(name: str) -> None:
    adapter = load(name)
    assert adapter.name == name
    assert adapter.settings
    assert adapter.stored
    assert adapter.unfinished
    assert adapter.drain_jobs > 0
    assert adapter.enqueue_jobs > 0
    assert all("==" in package for package in adapter.packages)
    assert bool(adapter.packages) == (name in PEERS)


def test_peers_are_chosen_by_name() -> None:
    assert peers_named(None) == USUAL
    assert set(peers_named("all")) == set(PEERS)
    assert peers_named("huey, awa") == ("huey", "awa")
    with pytest.raises(ValueError, match="nobody"):
        peers_named("awa,nobody")


def test_a_run_wants_what_was_asked_for() -> None:
    with Lab(quick=True, asked=["peers.postgres"], peers=("awa",)) as lab:
        assert lab.wants("peers.postgres.drain1.awa", peer="awa")
        assert not lab.wants("peers.postgres.drain1.saq", peer="saq")
        assert not lab.wants("peers.sqlite.drain1.awa", peer="awa")
    with Lab(quick=True, asked=["peers.postgres.drain1.saq"], peers=("awa",)) as lab:
        assert lab.wants("peers.postgres.drain1.saq", peer="saq")


def test_every_target_names_a_result() -> None:
    names = {name for benchmark in BENCHMARKS for name in benchmark.names}
    assert set(TARGETS) <= names


def test_the_ratio_is_the_median_of_the_rounds(lab: Lab) -> None:
    lab.rounds = 3
    pair = Pair("peers.x", "huey", competitor("tenure-sqlite"), competitor("huey"))
    rates = {"tenure-sqlite": [30.0, 10.0, 50.0], "huey": [10.0, 10.0, 10.0]}
    order: list[str] = []

    def measure(_: Lab, side: Competitor) -> Turn:
        order.append(side.adapter.name)
        return {"rate": rates[side.adapter.name].pop(0)}

    figure = compare_turns("peers.x.huey", pair, take_turns(lab, pair, measure), "rate", "jobs/s")
    assert (figure.value, figure.ratio, figure.spread) == (30.0, 3.0, (1.0, 5.0))
    assert order == ["tenure-sqlite", "huey", "huey", "tenure-sqlite", "tenure-sqlite", "huey"]


def test_a_peer_that_cannot_compete_does_not_end_the_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.setattr(environments, "_candidates", lambda _: [])
    lab.peers = ("absurd",)
    found = list(compete(lab, "peers.x", "tenure-sqlite", ["absurd"], lambda *_: iter(())))
    assert found == []
    [failure] = lab.failures
    assert "no Python 3.11 or newer was found" in failure


@pytest.mark.slow
@pytest.mark.parametrize("ours", [Postgres, Sqlite, SqliteThread])
def test_a_drain_is_audited(lab: Lab, ours: type[Adapter]) -> None:
    turn = drain(lab, Competitor(ours, sys.executable), workers=2)
    assert turn["jobs"] == lab.few(ours.drain_jobs)
    assert turn["jobs_per_second"] > 0
    assert turn["twice"] == 0
    assert ("wal_bytes_per_job" in turn) == (ours.store == "postgres")


@pytest.mark.slow
def test_a_drain_whose_completions_are_not_stored_has_no_figure(lab: Lab) -> None:
    class Forgetful(Sqlite):
        finished = "select count(*) - 1 from tenure_history"

    with pytest.raises(BenchmarkFailed, match="39 completions stored, not 40"):
        drain(lab, Competitor(Forgetful, sys.executable), workers=1)


@pytest.mark.slow
def test_a_trial_says_why_a_step_failed(lab: Lab) -> None:
    with trial(lab, Sqlite, sys.executable, jobs=10) as one:
        with pytest.raises(BenchmarkFailed, match="python -m bench"):
            one.step("no such step")
        one.enqueue_many(0, 10)
        with pytest.raises(BenchmarkFailed, match="10 jobs are stored, not 11"):
            one.check_stored(11)
        one.check_stored(10)


@pytest.mark.slow
def test_64_enqueuers_are_compared_with_a_commit_per_job(lab: Lab) -> None:
    results = list(sqlite_concurrent_enqueue.run(lab))
    assert [each.name for each in results] == list(sqlite_concurrent_enqueue.NAMES)
    assert all(each.ratio > 0 for each in results)


def test_the_report_shows_targets_and_failures() -> None:
    name = "peers.postgres.drain1.pgqueuer"
    page = markdown([result(name, 2.4), result("peers.other", 1.0)], ["2 cores"], ["awa: no\nwhy"])
    assert f"| {name} | 10.00 | jobs/s | x | 2.40 | 1.00..3.00 | at least 2.5 | **no** |" in page
    assert "| peers.other | 10.00 | jobs/s | x | 1.00 | 1.00..3.00 |  |  |" in page
    assert "- 2 cores" in page
    assert "- awa: no" in page
    assert Target(1.3, at_most=True).is_met(1.3)
    assert not Target(2.5).is_met(2.49)


def test_a_report_is_written_with_its_plots(tmp_path: Path) -> None:
    report = Report(tmp_path)
    report.add(result("peers.postgres.drain1.awa", theirs=5.0))
    report.add(result("peers.postgres.held_snapshot.awa", our_curve=[4, 4], their_curve=[4, 1]))
    report.finish([])
    pictures = {path.name for path in tmp_path.glob("*.svg")}
    assert pictures == {"peers.postgres.drain1.svg", "held_snapshot_curves.svg"}
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2
    page = (tmp_path / "report.md").read_text()
    assert all(picture in page for picture in pictures)


def test_plots_are_well_formed_and_to_scale() -> None:
    tree = ElementTree.fromstring(plots.bars("a < b", [plots.Bar("x", 1000.0, 10.0)]))
    back, ours, theirs = tree.iter("{http://www.w3.org/2000/svg}rect")
    assert float(ours.attrib["width"]) > float(theirs.attrib["width"]) > 0
    assert float(back.attrib["width"]) == plots.WIDTH
    curves = [plots.Line("x", [1.0, 0.5]), plots.Line("y", [1.0])]
    tree = ElementTree.fromstring(plots.lines("rates", curves))
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}polyline"))) == 2


def test_an_unknown_peer_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "peers", "--peers", "nobody"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "nobody" in done.stderr
