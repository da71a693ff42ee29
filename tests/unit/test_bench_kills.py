"""The ledger by which killed queues are judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.kills.__main__ import HEAD, NAMES, Toll, main
from bench.kills.ledger import Ledger
from bench.peers.catalogue import load


def test_a_ledger_tells_who_was_cut_off_and_what_was_repeated(tmp_path: Path) -> None:
    board = tmp_path / "board"
    seen = Ledger(board, 5)
    seen.go()
    worker = Ledger(board, 5)  # as another process opens it
    worker.wait_for_go(1)
    for job in (0, 1, 2):
        worker.ran(job)
    worker.linger(0)
    for _ in range(2):
        worker.linger(1)
    assert seen.in_hands_of(1) == [2]
    assert seen.in_hands_of(0) == []
    assert seen.without_effect() == [2, 3, 4]
    assert seen.repeated() == 1
    assert 0 < seen.ended_at(0) <= seen.ended_at(1)


def test_a_dead_worker_is_waited_for(tmp_path: Path) -> None:
    seen = Ledger(tmp_path / "board", 1)
    seen.go()
    Ledger(tmp_path / "board", 1).wait_for_go(0)
    assert seen.is_ready(1)
    seen.gone(0)
    assert not seen.is_ready(1)


def test_a_row_has_as_many_cells_as_the_head() -> None:
    for recoveries, last in ([], None), ([3.0, 1.0], 12.5):
        row = Toll("huey", "", 1500, 3, 2, 2, 0, 0, recoveries, last).row()
        assert row.count("|") == HEAD.splitlines()[0].count("|")


def test_everybody_named_is_known() -> None:
    assert [load(name).name for name in NAMES] == list(NAMES)


def test_an_unknown_queue_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["celery"])
    assert stopped.value.code == 2
    assert "known are tenure-postgres" in capsys.readouterr().err
