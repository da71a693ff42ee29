"""The checker as a program: it asks what the test has asked, and says what it could not ask."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tenure.rules import lifecycle
from tenure.store import open_store
from tenure.testing.recorder import RecordingEnvironment
from tests.crash import ledger
from tests.crash.forger import LEASE_SECONDS, Forger
from tests.support.books import Blow, Books, Stall
from tests.support.invariants import main
from tests.support.known import (
    FORGOTTEN_SECONDS,
    SERVER_CRASHED,
    Known,
    expected_of,
    remembered,
    unasked,
)
from tests.support.plain import Plain
from tests.support.work import add, settle, take_one

KNOWN = Known(
    blows=[Blow(1, 2.0, "kill")], stalls=[Stall("no idle CPU", 1.0, 2.0)], start_seconds=2.5,
    ledger="ledger", writers=["app.books"],
)  # fmt: skip


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Of a database in which one job has written its row and succeeded, on record in the folder."""
    found = f"sqlite:///{tmp_path}/jobs.db"
    now = datetime.fromtimestamp(time.time(), UTC)
    store = RecordingEnvironment(tmp_path).wrap(open_store(found))
    id = add(store, now, task="app.books")
    settle(store, now, lifecycle.succeed(take_one(store, now)))
    store.close()
    ledger.create(found)
    with Plain(found) as plain:
        plain.rows("insert into ledger values (?, 1)", id)
    return found


def test_what_could_not_be_asked_is_said(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(str(tmp_path), url)
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "1 jobs, 3 calls: no invariant that was asked for is broken"
    assert [line.partition(",")[0] for line in others] == [
        "not asked: 5", "not asked: 6", "not asked: 8", "not asked: 13",
    ]  # fmt: skip


def test_what_the_test_knew_is_asked(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    KNOWN.keep(tmp_path)
    main(str(tmp_path), url)
    assert capsys.readouterr().out == "1 jobs, 3 calls: no invariant is broken\n"
    expected = expected_of(tmp_path, url)
    assert (expected.disturbed, expected.blows, expected.stalls) == ({1}, KNOWN.blows, KNOWN.stalls)
    assert expected.start_seconds == 2.5
    assert [*unasked(expected)] == []


def test_an_effect_that_is_missing_is_noticed(url: str, tmp_path: Path) -> None:
    KNOWN.keep(tmp_path)
    with Plain(url) as plain:
        plain.rows("delete from ledger")
    with pytest.raises(SystemExit, match="effect missing"):
        main(str(tmp_path), url)


def test_who_writes_no_ledger_needs_no_row(url: str, tmp_path: Path) -> None:
    Known(ledger="ledger").keep(tmp_path)
    with Plain(url) as plain:
        plain.rows("delete from ledger")
    main(str(tmp_path), url)


@pytest.mark.parametrize(
    ("why", "began", "is_certain"),
    [
        (SERVER_CRASHED, FORGOTTEN_SECONDS / 2, False),
        (SERVER_CRASHED, FORGOTTEN_SECONDS * 2, True),
        (SERVER_CRASHED, -FORGOTTEN_SECONDS, True),
        ("the server was away", FORGOTTEN_SECONDS / 2, True),
    ],
)
def test_a_heartbeat_may_be_forgotten_only_by_a_crash_right_after_it(
    why: str, began: float, is_certain: bool
) -> None:
    """`began`: so long after the answer the server went away, for a moment."""
    forger = Forger()
    forger.enqueue(1)
    forger.claim(1, lease=7)
    forger.extend(7)
    [beat] = forger.records.of("extend")
    away = Stall(why, beat.ended + began, beat.ended + began + 0.1)
    books = Books(remembered(forger.records, [away]), forger.final)
    least, _ = books.deadlines[7]
    [grant] = books.grants[1]
    assert (least > grant.claimed_at + LEASE_SECONDS) is is_certain
