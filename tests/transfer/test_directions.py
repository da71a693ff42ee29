"""A copy is the same: whatever a store tells, hands out and holds, in all four directions."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from random import Random

import pytest

from tenure.rules.codec import encode
from tenure.rules.job import State
from tenure.store import Store, open_store
from tenure.store.copy import run as transfer
from tenure.store.copy import tables as cargo
from tests.support.audit import audit
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import add, add_many, job, take
from tests.transfer import worlds
from tests.transfer.conftest import CROSSING, NewUrl, Urls, across
from tests.transfer.looks import all_jobs, handed_out, rows, told


@pytest.mark.slow
def test_a_copy_tells_and_hands_out_the_same(
    urls: Urls, stores: tuple[Store, Store], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    worlds.everything(source, clock)
    before = told(source, clock.now)
    total = transfer.count(source)
    monkeypatch.setattr(cargo, "CHUNK_ROWS", 37)
    progress: list[int] = []

    copied = transfer.copy(source, target, progress.append, now=clock.now)

    jobs = list(all_jobs(source, clock.now))
    assert {job.state for job in jobs} == frozenset(State) - {State.RUNNING}
    assert copied == transfer.Copied(
        live=sum(not job.state.final for job in jobs),
        finished=sum(job.state.final for job in jobs),
    )
    assert sum(progress) == total == len(jobs) == copied.live + copied.finished
    assert max(progress) == 37
    assert told(source, clock.now) == before
    assert told(target, clock.now) == before
    audit(urls[1])
    assert handed_out(source, clock) == handed_out(target, clock)
    audit(urls[1])


@pytest.mark.slow
def test_the_other_driver_of_sqlite_copies_the_same(new_url: NewUrl, clock: Clock) -> None:
    with_driver = [f"{new_url('sqlite')}?driver=sqlite3&allow_affected_sqlite=1" for _ in range(2)]
    way = [with_driver[0], new_url("postgres"), with_driver[1]]
    with ExitStack() as stack:
        opened = [stack.enter_context(open_store(url)) for url in way]
        worlds.everything(opened[0], clock)
        for source, target in pairwise(opened):
            transfer.copy(source, target, int, now=clock.now)
        assert told(opened[0], clock.now) == told(opened[2], clock.now)


@across
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_copy_of_whatever_may_have_happened_is_the_same(
    urls: Urls, stores: tuple[Store, Store], clock: Clock, seed: int
) -> None:
    source, target = stores
    worlds.wander(source, clock, Random(seed), steps=250)
    audit(urls[0])

    transfer.copy(source, target, int, now=clock.now)

    assert told(target, clock.now) == told(source, clock.now)
    audit(urls[1])
    assert handed_out(source, clock) == handed_out(target, clock)
    audit(urls[1])


@pytest.mark.slow
@pytest.mark.parametrize("engines", CROSSING)
def test_there_and_back_again_every_row_is_the_same(
    engines: Urls, new_url: NewUrl, clock: Clock
) -> None:
    here, there = engines
    way = [new_url(here), new_url(here), new_url(there), new_url(there), new_url(here)]
    with ExitStack() as stack:
        opened = [stack.enter_context(open_store(url)) for url in way]
        worlds.everything(opened[0], clock)
        worlds.wander(opened[0], clock, Random(7), steps=100)
        for source, target in pairwise(opened):
            transfer.copy(source, target, int, now=clock.now)
    assert rows(way[0]) == rows(way[1]) == rows(way[4])
    assert rows(way[2]) == rows(way[3])


def test_nothing_of_the_tables_is_forgotten(urls: Urls) -> None:
    """A column that a later migration adds must be copied, too."""
    others = (
        cargo.UNIQUE_KEYS, cargo.QUEUES, cargo.GATES, cargo.WORKFLOWS, cargo.SCHEDULES, cargo.TICKS,
        cargo.STATISTICS, cargo.FEED, cargo.FEED_END, cargo.FEED_READERS, cargo.FAILURE_HOOKS,
    )  # fmt: skip
    carried = {table.name: table.columns for table in (*cargo.JOB_TABLES, *others)}
    apart = {
        "lease",
        "gate_hold",
        "gate_live",
        "gate_share",
        "gate_used",
        "turn",
        "bucket",
        "worker",
        "counter",
        "schema_version",
        "history_default",
        "live",
        "jobs",
        "all_jobs",
        "holding",
        "edge",
        "prune_clock",
        "depth",
        "depth_sample",
        "feed_new",
    }
    with Plain(urls[0]) as plain:
        if plain.is_postgres:
            found = plain.rows(
                "select table_name, column_name from information_schema.columns"
                " where table_schema = 'tenure'"
            )
        else:
            found = plain.rows(
                "select substr(m.name, 8), c.name from sqlite_schema m, pragma_table_info(m.name) c"
                " where m.name like 'tenure@_%' escape '@' and m.type in ('table', 'view')"
            )
    columns: dict[str, set[str]] = {}
    for table, column in found:
        columns.setdefault(table, set()).add(column)
    columns["event"].remove("seq")
    columns["parent"].discard("silent")  # how an end is written, not which it is
    assert columns.keys() - apart == carried.keys()
    assert {name: columns[name] for name in carried} == {
        name: set(names) for name, names in carried.items()
    }


def test_a_copied_job_keeps_its_place_and_new_ones_come_behind_it(
    stores: tuple[Store, Store], clock: Clock
) -> None:
    source, target = stores
    ids = add_many(source, clock.now, 5)
    source.move(ids[0], priority=0, now=clock.now)
    gone = add(source, clock.now)
    source.cancel(gone, now=clock.now)
    source.delete(gone, now=clock.now)

    transfer.copy(source, target, int, now=clock.now)

    more = add_many(target, clock.now, 3)
    assert min(more) > gone
    claimed = [job.id for job in take(target, clock.now)]
    assert claimed == [*ids[1:], ids[0], *more]


def test_void_tickets_and_the_story_of_jobs_that_are_gone_stay_behind(
    urls: Urls, stores: tuple[Store, Store], clock: Clock
) -> None:
    source, target = stores
    [id] = add_many(source, clock.now, 1)
    with Plain(urls[0]) as plain:
        plain.rows(
            "insert into tenure.ready (queue, priority, position, job_id, token) values"
            " ('default', 0, 999999, 77, 1), ('default', 0, 999998, ?, 9)", id,
        )  # fmt: skip
        plain.rows("insert into tenure.parent (job_id, parent_id) values (77, 76)")
    transfer.copy(source, target, int, now=clock.now)
    with Plain(urls[1]) as plain:
        assert plain.rows("select job_id, token from tenure.ready") == [(id, 1)]
        assert plain.rows("select job_id from tenure.parent") == []
    audit(urls[1])


def test_a_chunk_is_bounded_in_bytes(
    stores: tuple[Store, Store], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    monkeypatch.setattr(cargo, "CHUNK_BYTES", 1_000_000)
    for size in (400_000, 400_000, 400_000, 900_000, 10, 10):
        add(source, clock.now, args=encode("x" * size))
    progress: list[int] = []
    transfer.copy(source, target, progress.append, now=clock.now)
    assert progress == [2, 1, 3]


def test_an_empty_store_is_copied_too(stores: tuple[Store, Store], clock: Clock) -> None:
    source, target = stores
    assert transfer.copy(source, target, int) == transfer.Copied(live=0, finished=0)
    assert add(target, clock.now) == 1


def test_what_finished_today_lies_in_the_partition_of_today(new_url: NewUrl) -> None:
    """Were it in the default one, the day could never be dropped as a whole."""
    file, url = new_url("sqlite"), new_url("postgres")
    with open_store(file) as source, open_store(url) as target:
        source.cancel(source.enqueue([job()])[0].id)
        transfer.copy(source, target, int)
    with Plain(url) as plain:
        assert plain.one("select count(*) from tenure.history_default") == 0
        assert plain.one("select count(*) from tenure.history") == 1
