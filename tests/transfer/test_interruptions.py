"""A copy that is killed is finished by the next one, wherever death comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tenure.store import Store, open_store
from tenure.store.copy import run as transfer
from tenure.store.copy import tables as cargo
from tenure.store.session import Tx
from tests.processes.crew import Crew, Member
from tests.support.audit import audit
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.transfer import worlds
from tests.transfer.conftest import Urls, across
from tests.transfer.looks import counters, handed_out, rows, told
from tests.transfer.mover import move as mover_role
from tests.worker.support import eventually

SECONDS = 60.0

# In the order in which a copy comes to them, so that each death finds something left to do.
POINTS = (
    "before:_make_days:1",
    "after:_write_missing:1",  # the paused queues
    "inside:job:1",
    "inside:history:1",
    "after:_write_missing:3",  # the first jobs; the counters have not been moved on
    "before:_raise_counters:2",
    "inside:parent:1",
    "inside:event:2",
    "after:_write_missing:6",
    "after:_raise_counters:5",
)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes that end with the test."""
    folder = tmp_path / "crew"
    folder.mkdir()
    with Crew(folder) as running:
        yield running


def move(crew: Crew, urls: Urls, point: str = "nowhere") -> Member:
    """Copy in a process of its own, and wait for its end."""
    mover = crew.start(mover_role, *urls, point)
    mover.process.join(SECONDS)
    assert not mover.said("error"), mover.said("error")[0]
    assert mover.process.exitcode == (0 if point == "nowhere" else -signal.SIGKILL), point
    return mover


@across
@pytest.mark.slow
def test_a_copy_that_is_killed_again_and_again_is_finished_by_the_last_one(
    crew: Crew, urls: Urls, stores: tuple[Store, Store], clock: Clock
) -> None:
    source, target = stores
    worlds.everything(source, clock)
    total = transfer.count(source)
    arrived = [0]
    for point in POINTS:
        move(crew, urls, point)
        arrived.append(transfer.count(target))
    assert arrived == sorted(arrived)
    assert len({*arrived}) >= 4
    assert arrived[-1] < total
    assert told(source, clock.now) != told(target, clock.now)

    [copied] = move(crew, urls).said("copied")

    assert sum(copied) == total == transfer.count(target)
    assert told(source, clock.now) == told(target, clock.now)
    audit(urls[1])
    assert handed_out(source, clock) == handed_out(target, clock)


@across
@pytest.mark.slow
def test_a_copy_that_is_killed_before_it_has_compared_has_only_that_left_to_do(
    crew: Crew, urls: Urls, stores: tuple[Store, Store], clock: Clock
) -> None:
    source, target = stores
    worlds.everything(source, clock)
    move(crew, urls, "before:_side_by_side:2")
    there = rows(urls[1])
    move(crew, urls)
    assert rows(urls[1]) == there
    assert told(source, clock.now) == told(target, clock.now)


@pytest.mark.slow
def test_to_copy_again_changes_nothing(
    urls: Urls, stores: tuple[Store, Store], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    monkeypatch.setattr(cargo, "CHUNK_ROWS", 50)
    worlds.everything(source, clock)
    first = transfer.copy(source, target, int, now=clock.now)
    there, given_out = rows(urls[1]), counters(urls[1])
    progress: list[int] = []
    assert transfer.copy(source, target, progress.append, now=clock.now) == first
    assert sum(progress) == transfer.count(source)
    assert (rows(urls[1]), counters(urls[1])) == (there, given_out)


@pytest.mark.slow
def test_two_copies_at_once_are_one_copy(
    urls: Urls, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cargo, "CHUNK_ROWS", 20)
    with open_store(urls[0]) as source:
        worlds.everything(source, clock)

    def copy(_: int) -> transfer.Copied:
        with open_store(urls[0]) as source, open_store(urls[1]) as target:
            return transfer.copy(source, target, int, now=clock.now)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(copy, range(2))
    assert first == second
    audit(urls[1])
    with open_store(urls[0]) as source, open_store(urls[1]) as target:
        assert told(source, clock.now) == told(target, clock.now)


@pytest.mark.slow
def test_a_copy_that_begins_during_the_first_look_of_another_one_is_no_stranger(
    urls: Urls, stores: tuple[Store, Store], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs are not in the snapshot of that look, its ids on PostgreSQL are."""
    source, target = stores
    monkeypatch.setattr(cargo, "CHUNK_ROWS", 20)
    worlds.everything(source, clock)
    require_same = transfer._require_same
    early: list[transfer.Copied] = []

    async def meanwhile(
        kind: cargo.Kind, here: Tx, there: Tx, names: tuple[str, str], fix: str
    ) -> None:
        await require_same(kind, here, there, names, fix)
        if transfer._require_same is meanwhile:
            monkeypatch.setattr(transfer, "_require_same", require_same)
            with open_store(urls[0]) as old, open_store(urls[1]) as new:
                early.append(transfer.copy(old, new, int, now=clock.now))

    monkeypatch.setattr(transfer, "_require_same", meanwhile)
    assert [transfer.copy(source, target, int, now=clock.now)] == early
    audit(urls[1])
    assert told(source, clock.now) == told(target, clock.now)


@pytest.mark.parametrize(
    "urls", [("sqlite", "postgres")], ids=["sqlite-to-postgres"], indirect=True
)
def test_a_copy_waits_for_whoever_makes_the_days_of_history(
    urls: Urls, stores: tuple[Store, Store]
) -> None:
    """Two at once would both give up, and all that is copied would lie in the default partition."""
    waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
    with Plain(urls[1]) as other, Plain(urls[1]) as plain, ThreadPoolExecutor(1) as threads:
        other.rows("begin")
        other.rows("select pg_advisory_xact_lock(7364882, 'tenure.job'::regclass::oid::int)")
        copied = threads.submit(transfer.copy, *stores, int)
        eventually(lambda: plain.one(waiting))
        other.rows("rollback")
        copied.result(SECONDS)
        days = "select count(*) from pg_inherits where inhparent = 'tenure.history'::regclass"
        assert plain.one(days) == 1 + 1 + transfer.HISTORY_DAYS


@pytest.mark.slow
def test_an_error_in_the_middle_leaves_what_was_copied_and_the_next_copy_goes_on(
    stores: tuple[Store, Store], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    monkeypatch.setattr(cargo, "CHUNK_ROWS", 50)
    worlds.everything(source, clock)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.copy(source, target, interrupt, now=clock.now)
    assert transfer.count(target) == 50
    transfer.copy(source, target, int, now=clock.now)
    assert told(source, clock.now) == told(target, clock.now)
