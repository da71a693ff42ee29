"""The bell of a SQLite file: what it looks at, how often, and what it leaves alone."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenure.errors import InvalidInput, StoreBusy, StoreUnavailable
from tenure.store import Store, open_store
from tenure.store.sqlite import bell as bell_sqlite
from tenure.store.sqlite.bell import Signs, SQLiteBell
from tenure.store.sqlite.session import SQLite
from tests.bells.acts import QUIET, RINGING, SOON
from tests.bells.rings import Rings, bell_threads, cpu_share
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.stores import Clock
from tests.support.work import add, add_many

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


@pytest.fixture
def rings() -> Rings:
    return Rings()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def local(path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{path}") as opened:
        yield opened


def session_of(store: Store) -> SQLite:
    return cast(SQLite, cast(Any, store)._scope.session)


def is_watched(store: Store) -> bool:
    return session_of(store)._processes[-1].watcher is not None


class Lines:
    """A session of which one can ask how often it was looked at, and that fails when told to."""

    def __init__(self, session: SQLite) -> None:
        self._session = session
        self.path = session.path
        self.looks = 0
        self.failure: Exception | None = None
        self.looking = threading.Lock()
        """Whoever has it knows that no look is going on."""

    def look(self) -> Signs:
        with self.looking:
            self.looks += 1
            if self.failure is not None:
                raise self.failure
            return self._session.look()

    def look_away(self) -> None:
        self._session.look_away()

    def wait_for_looks(self, more: int) -> None:
        wanted = self.looks + more
        until(lambda: self.looks >= wanted)


@pytest.fixture
def lines(local: Store) -> Lines:
    return Lines(session_of(local))


@pytest.fixture
def bell(lines: Lines, rings: Rings) -> Iterator[SQLiteBell]:
    started = SQLiteBell(lines, rings)
    started.start()
    assert rings.wait_for(1)
    yield started
    started.stop()


@pytest.mark.parametrize("name", [*RINGING, *SOON])
def test_whatever_puts_a_ticket_in_line_shows(local: Store, clock: Clock, name: str) -> None:
    act = (RINGING | SOON)[name](local, clock)
    before = session_of(local).look()
    act()
    assert session_of(local).look() != before


@pytest.mark.parametrize("name", QUIET)
def test_nothing_else_shows(local: Store, clock: Clock, name: str) -> None:
    act = QUIET[name](local, clock)
    before = session_of(local).look()
    act()
    assert session_of(local).look() == before


@pytest.mark.usefixtures("bell")
def test_it_does_not_ring_for_what_does_not_show(
    local: Store, clock: Clock, lines: Lines, rings: Rings
) -> None:
    act = QUIET["heartbeat"](local, clock)
    assert rings.wait_for(2)
    lines.wait_for_looks(2)
    rung = rings.count
    for _ in range(5):
        act()
        lines.wait_for_looks(2)
    assert rings.count == rung


def test_it_holds_no_snapshot(local: Store, lines: Lines, bell: SQLiteBell, clock: Clock) -> None:
    """One that was held would keep the log from being emptied."""
    add_many(local, clock.now, 3000)
    lines.wait_for_looks(1)
    connection = session_of(local)._processes[-1].writer
    assert connection is not None
    with lines.looking:
        [(busy, pages, moved)] = connection.execute("pragma wal_checkpoint(truncate)")
    assert (busy, pages, moved) == (0, 0, 0)
    assert bell.alive


def test_a_long_read_does_not_hold_it_up(
    local: Store, clock: Clock, rings: Rings, bell: SQLiteBell
) -> None:
    process = session_of(local)._processes[-1]
    assert process.read_lock.acquire()
    try:
        add(local, clock.now)
        assert rings.wait_for(2)
    finally:
        process.read_lock.release()
    assert bell.alive


# --- when to look ---------------------------------------------------------------------------------


@pytest.mark.slow
@linux_only
def test_an_idle_bell_sleeps(bell: SQLiteBell, lines: Lines, rings: Rings) -> None:
    """The target was 1.5 % of a core."""
    rings.stay_quiet(bell_sqlite.AWAKE_SECONDS + 0.2)
    [thread] = bell_threads()
    before, began = lines.looks, time.monotonic()
    assert cpu_share(thread, rings) < 0.01
    passed = time.monotonic() - began
    assert lines.looks - before <= passed / bell_sqlite.ASLEEP_SECONDS + 1
    assert bell.alive


@pytest.mark.slow
@linux_only
def test_a_sleeping_bell_wakes_for_a_commit(
    local: Store, clock: Clock, rings: Rings, bell: SQLiteBell
) -> None:
    for round in range(2, 5):
        rings.stay_quiet(bell_sqlite.AWAKE_SECONDS + 0.1)
        assert add(local, clock.now)
        assert rings.wait_for(round)
    assert bell.alive


class Told(bell_sqlite.Watch):
    """A kernel that tells of one write, and of no other."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.asked.append(seconds)
        return len(self.asked) == 1


def test_it_looks_often_for_a_while_after_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written can be seen when the disk has it, and nobody tells of that moment."""
    now = 1000.0
    monkeypatch.setattr(bell_sqlite, "time", SimpleNamespace(monotonic=lambda: now))
    told = Told()
    nap = bell_sqlite._Nap(told)
    assert nap.take() == 0.0, "told of a write: look at once"
    assert [nap.take() for _ in range(3)] == list(bell_sqlite.SOON_SECONDS)
    asleep, often = bell_sqlite.ASLEEP_SECONDS, bell_sqlite.LOOK_SECONDS
    assert [nap.take(), nap.take()] == [0.0, 0.0]
    assert told.asked == [asleep, often, often], "awake, and woken by the next write"
    now += bell_sqlite.AWAKE_SECONDS + 0.001
    assert nap.take() == 0.0
    assert told.asked[3:] == [asleep], "asleep again"


@pytest.mark.slow
def test_without_help_of_the_kernel_it_looks_all_the_time(
    local: Store, clock: Clock, lines: Lines, rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell_sqlite, "watch_file", lambda _: None)
    bell = SQLiteBell(lines, rings)
    bell.start()
    assert rings.wait_for(1)
    rings.stay_quiet(bell_sqlite.AWAKE_SECONDS + 0.2)
    lines.wait_for_looks(20)
    add(local, clock.now)
    assert rings.wait_for(2)
    bell.stop()


class Deaf(bell_sqlite.Watch):
    """A kernel that tells nothing, as on some mounts of containers."""

    closed = False

    def __init__(self) -> None:
        pass

    def wait(self, seconds: float) -> bool:
        threading.Event().wait(seconds)
        return False

    def close(self) -> None:
        self.closed = True


@pytest.mark.slow
def test_a_kernel_that_does_not_tell_is_not_believed(
    local: Store, clock: Clock, lines: Lines, rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = Deaf()
    monkeypatch.setattr(bell_sqlite, "watch_file", lambda _: deaf)
    bell = SQLiteBell(lines, rings)
    bell.start()
    assert rings.wait_for(1)
    assert not deaf.closed
    add(local, clock.now)
    assert rings.wait_for(2), "a look now and then finds it all the same"
    until(lambda: deaf.closed)
    lines.wait_for_looks(20)
    bell.stop()


@linux_only
def test_a_watch_tells_of_writes_and_of_new_files(tmp_path: Path) -> None:
    file = tmp_path / "log"
    seen = bell_sqlite.watch_file(str(file))
    assert seen is not None
    assert not seen.wait(0), "there is no file"
    file.write_text("1")
    assert seen.wait(0), "there is one now"
    assert not seen.wait(0)
    with file.open("a") as more:
        more.write("2")
    assert seen.wait(PATIENCE_SECONDS)
    assert not seen.wait(0)
    file.unlink()
    assert seen.wait(PATIENCE_SECONDS), "it is gone"
    while seen.wait(0):
        pass
    file.write_text("3")
    assert seen.wait(PATIENCE_SECONDS), "and here again"
    seen.close()


# --- when it cannot look --------------------------------------------------------------------------


@pytest.mark.slow
def test_it_says_once_that_it_cannot_look_and_once_that_it_can(
    local: Store,
    clock: Clock,
    lines: Lines,
    rings: Rings,
    bell: SQLiteBell,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tenure.bell")
    lines.failure = StoreUnavailable("the disk is away")
    until(lambda: not bell.alive)
    lines.wait_for_looks(3)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the disk is away" in caplog.text
    add(local, clock.now)
    lines.failure = None
    assert rings.wait_for(2), "what came meanwhile is heard of"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert bell.alive


def test_a_busy_file_is_no_event(
    local: Store,
    clock: Clock,
    lines: Lines,
    rings: Rings,
    bell: SQLiteBell,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tenure.bell")
    lines.failure = StoreBusy("somebody recovers it")
    lines.wait_for_looks(2)
    assert bell.alive
    lines.failure = None
    add(local, clock.now)
    assert rings.wait_for(2)
    assert caplog.records == []


def test_a_stopped_bell_has_no_connection(
    local: Store, clock: Clock, rings: Rings, bell: SQLiteBell
) -> None:
    assert is_watched(local)
    bell.stop()
    assert not is_watched(local)
    bell.start()
    add(local, clock.now)
    assert rings.wait_for(2)


@pytest.mark.slow
def test_it_ends_with_its_store(path: Path, rings: Rings) -> None:
    store = open_store(f"sqlite:///{path}")
    bell = store.bell(rings)
    bell.start()
    assert rings.wait_for(1)
    store.close()
    until(lambda: not bell_threads())
    assert not bell.alive
    assert not Path(f"{path}-wal").exists(), "the last connection has tidied up"
    bell.stop()
    with pytest.raises(InvalidInput, match="closed"):
        store.bell(rings)
