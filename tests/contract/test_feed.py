"""The feed of finished jobs: every end, in order, for readers with positions of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenure.errors import FeedMissed, InvalidInput, OutOfRange, ReaderNotFound, StoreBusy
from tenure.rules.ends import Ended
from tenure.rules.job import State
from tenure.rules.lifecycle import EXPIRED, abort, fail, release, retry, skip, succeed
from tenure.store import Store
from tenure.store.feed import readers as feed
from tenure.store.feed.readers import KEPT_SECONDS, MAX_ENDS
from tenure.store.jobs.operate import cancel
from tenure.store.jobs.settle import settle as settle_op
from tests.contract.conftest import Begin
from tests.support.flows import added, failing, run_all
from tests.support.plain import Plain
from tests.support.races import Background, wait_until
from tests.support.stores import Clock
from tests.support.work import (
    ERROR,
    add,
    add_many,
    expire,
    run,
    running,
    settle,
    take,
    take_one,
)


def read(store: Store, clock: Clock, reader: str = "r", limit: int = MAX_ENDS) -> list[Ended]:
    return list(store.read_feed(reader, limit=limit, now=clock.now).ends)


def read_on(store: Store, clock: Clock, reader: str = "r", limit: int = MAX_ENDS) -> list[Ended]:
    page = store.read_feed(reader, limit=limit, now=clock.now)
    store.move_reader(reader, page.position, now=clock.now)
    return list(page.ends)


def ends_of(ends: list[Ended]) -> list[tuple[int, State]]:
    return [(end.id, end.state) for end in ends]


def rows(plain: Plain) -> int:
    """How many ends are stored."""
    count: int = plain.one("select count(*) from tenure.feed")
    return count


def test_a_reader_gets_the_jobs_that_end_after_it_was_added(store: Store, clock: Clock) -> None:
    add(store, clock.now)
    run(store, clock.now, succeed)
    assert store.add_reader("r", now=clock.now) is True
    id = add(store, clock.now, queue="mail", max_attempts=3)
    claimed = take_one(store, clock.now, queue="mail")
    settle(store, clock.now, succeed(claimed, duration_seconds=2.5))
    [end] = read(store, clock)
    assert end == Ended(
        place=end.place, id=id, token=claimed.token, state=State.SUCCEEDED, task="app.work",
        queue="mail", tenant="", attempts=1, finished_at=clock.now, duration_seconds=2.5,
        worker="w1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [
        (lambda job: fail(job, ERROR), State.FAILED, "error"),
        (skip, State.SKIPPED, "skipped"),
        (abort, State.CANCELLED, "cancelled"),
    ],
)
def test_every_end_by_a_worker_is_in_the_feed(
    store: Store, clock: Clock, end: Callable[[Any], Any], state: State, reason: str
) -> None:
    store.add_reader("r", now=clock.now)
    add(store, clock.now)
    job = run(store, clock.now, end)
    [told] = read(store, clock)
    assert (told.id, told.state, told.worker) == (job.id, state, "w1")
    assert reason in str(told.reason)
    assert told.attempts == job.attempts
    if state is State.FAILED:
        assert (told.error_type, told.error_message) == ("ValueError", "no")


def test_an_attempt_that_is_not_the_last_is_not_in_the_feed(store: Store, clock: Clock) -> None:
    store.add_reader("r", now=clock.now)
    add_many(store, clock.now, 2)
    run(store, clock.now, lambda job: retry(job, ERROR, 0))
    run(store, clock.now, release)
    assert read(store, clock) == []


def test_a_job_that_a_sweep_ends_is_in_the_feed(store: Store, clock: Clock) -> None:
    """The OOM killer has ended its worker, and no worker settles it."""
    store.add_reader("r", now=clock.now)
    claimed = running(store, clock.now, max_attempts=1)
    expire(store, clock)
    [end] = read(store, clock)
    assert (end.id, end.token, end.state) == (claimed.id, claimed.token, State.FAILED)
    assert end.attempts == 1


@pytest.mark.parametrize("by_claim", [True, False])
def test_jobs_that_were_not_started_in_time_are_in_the_feed(
    store: Store, clock: Clock, by_claim: bool
) -> None:
    """With their children. Whether a claim meets them, or upkeep does, they are there once."""
    store.add_reader("r", now=clock.now)
    late = [add(store, clock.now, start_within_seconds=1) for _ in range(3)]
    child = add(store, clock.now, parents=(late[0],))
    clock.advance(2)
    if by_claim:
        assert take(store, clock.now) == []
    else:
        assert store.expire(most=2, now=clock.now) == 3
    assert store.expire(now=clock.now) == 0
    ends = read(store, clock)
    assert sorted(ends_of(ends)) == [(id, State.SKIPPED) for id in (*late, child)]
    assert {end.reason for end in ends if end.id in late} == {EXPIRED}
    assert {end.attempts for end in ends} == {0}


def test_ends_by_an_operator_are_in_the_feed(store: Store, clock: Clock) -> None:
    store.add_reader("r", now=clock.now)
    one, *many = add_many(store, clock.now, 4)
    store.cancel(one, reason="too late", now=clock.now)
    store.cancel_many(many, reason="too late", now=clock.now)
    ends = read(store, clock)
    assert sorted(ends_of(ends)) == [(id, State.CANCELLED) for id in (one, *many)]
    assert {end.reason for end in ends} == {"too late"}


def test_a_job_that_is_cancelled_at_its_claim_is_in_the_feed(store: Store, clock: Clock) -> None:
    store.add_reader("r", now=clock.now)
    claimed = running(store, clock.now)
    store.cancel(claimed.id, now=clock.now)
    settle(store, clock.now, release(claimed))
    assert take(store, clock.now) == []
    assert ends_of(read(store, clock)) == [(claimed.id, State.CANCELLED)]


def test_the_ends_that_a_workflow_decides_are_in_the_feed(store: Store, clock: Clock) -> None:
    store.add_reader("r", now=clock.now)
    added(store, clock.now, {"a": [], "b": ["a"], "c": ["b"]})
    run_all(store, clock.now, {"a": failing})
    ends = read(store, clock)
    assert [end.state for end in ends] == [State.FAILED, State.SKIPPED, State.SKIPPED]
    assert [end.id for end in ends] == sorted(end.id for end in ends)


def test_children_of_a_cancelled_job_are_in_the_feed(store: Store, clock: Clock) -> None:
    store.add_reader("r", now=clock.now)
    parent = add(store, clock.now)
    child = add(store, clock.now, parents=(parent,))
    store.cancel(parent, now=clock.now)
    assert ends_of(read(store, clock)) == [(parent, State.CANCELLED), (child, State.SKIPPED)]


@pytest.mark.parametrize("end", [succeed, lambda job: fail(job, ERROR)])
def test_a_job_that_is_not_kept_is_in_the_feed(
    store: Store, clock: Clock, end: Callable[[Any], Any]
) -> None:
    store.add_reader("r", now=clock.now)
    id = add(store, clock.now, keep_succeeded_seconds=0, keep_other_seconds=0)
    settle(store, clock.now, end(take_one(store, clock.now)))
    assert [each.id for each in read(store, clock)] == [id]


def test_a_replayed_job_ends_again(store: Store, clock: Clock) -> None:
    store.add_reader("r", now=clock.now)
    id = add(store, clock.now)
    run(store, clock.now, lambda job: fail(job, ERROR))
    store.replay(id, now=clock.now)
    run(store, clock.now, succeed)
    first, second = read(store, clock)
    assert ends_of([first, second]) == [(id, State.FAILED), (id, State.SUCCEEDED)]
    assert first.token < second.token


def test_a_settlement_that_does_not_land_is_not_in_the_feed(store: Store, clock: Clock) -> None:
    store.add_reader("r", now=clock.now)
    add_many(store, clock.now, 4)
    claimed = take(store, clock.now)
    settle(store, clock.now, release(claimed[0]), release(claimed[1]))
    answers = settle(
        store, clock.now, succeed(claimed[0]), fail(claimed[1], ERROR), succeed(claimed[2]),
        fail(claimed[3], ERROR),
    )  # fmt: skip
    assert len(answers) == 4
    assert sorted(ends_of(read(store, clock))) == [
        (claimed[2].id, State.SUCCEEDED),
        (claimed[3].id, State.FAILED),
    ]


def test_readers_move_on_their_own_and_passed_ends_are_removed(
    store: Store, plain: Plain, clock: Clock
) -> None:
    for name in ("fast", "slow"):
        store.add_reader(name, now=clock.now)
    ids = add_many(store, clock.now, 5)
    settle(store, clock.now, *map(succeed, take(store, clock.now)))
    assert [end.id for end in read_on(store, clock, "fast", 3)] == ids[:3]
    assert [end.id for end in read_on(store, clock, "fast", 3)] == ids[3:]
    assert read_on(store, clock, "fast") == []
    assert rows(plain) == 5
    assert [end.id for end in read(store, clock, "slow", 2)] == ids[:2]
    assert [end.id for end in read_on(store, clock, "slow", 2)] == ids[:2]
    assert rows(plain) == 3
    by_name = {reader.name: reader for reader in store.readers(now=clock.now)}
    assert (by_name["fast"].unread, by_name["slow"].unread) == (0, 3)
    assert store.remove_reader("slow", now=clock.now) is True
    assert store.remove_reader("slow", now=clock.now) is False
    assert rows(plain) == 0


def test_a_reader_that_does_not_move_gets_the_same_ends_again(store: Store, clock: Clock) -> None:
    store.add_reader("r", now=clock.now)
    add_many(store, clock.now, 2)
    settle(store, clock.now, *map(succeed, take(store, clock.now)))
    first = store.read_feed("r", now=clock.now)
    assert store.read_feed("r", now=clock.now) == first
    store.move_reader("r", first.ends[0].place, now=clock.now)
    assert store.read_feed("r", now=clock.now).ends == first.ends[1:]
    store.move_reader("r", 0, now=clock.now)
    assert store.read_feed("r", now=clock.now).ends == first.ends[1:]


def test_a_reader_cannot_pass_ends_that_do_not_exist_yet(store: Store, clock: Clock) -> None:
    store.add_reader("r", now=clock.now)
    store.move_reader("r", 1_000_000, now=clock.now)
    id = add(store, clock.now)
    run(store, clock.now, succeed)
    assert [end.id for end in read(store, clock)] == [id]


def test_places_go_up_even_if_the_feed_is_empty_in_between(store: Store, clock: Clock) -> None:
    store.add_reader("r", now=clock.now)
    places = []
    for _ in range(3):
        add(store, clock.now)
        run(store, clock.now, succeed)
        places += [end.place for end in read_on(store, clock)]
    assert places == sorted(set(places))
    assert len(places) == 3


def test_without_a_reader_no_end_is_written(store: Store, plain: Plain, clock: Clock) -> None:
    store.add_reader("r", now=clock.now)
    store.remove_reader("r", now=clock.now)
    add_many(store, clock.now, 3)
    first, second, third = take(store, clock.now)
    settle(store, clock.now, succeed(first), fail(second, ERROR), skip(third))
    store.add_reader("r", now=clock.now)
    assert read(store, clock) == []
    assert rows(plain) == 0


def test_a_reader_of_a_tenant_gets_its_own_and_global_jobs(store: Store, clock: Clock) -> None:
    acme = store.for_tenant("acme")
    acme.add_reader("r", now=clock.now)
    assert store.add_reader("r", now=clock.now) is True
    ids = {tenant: add(store, clock.now, tenant=tenant) for tenant in ("acme", "", "other")}
    settle(store, clock.now, *map(succeed, take(store, clock.now)))
    page = acme.read_feed("r", now=clock.now)
    assert {end.id for end in page.ends} == {ids["acme"], ids[""]}
    assert {end.id for end in read(store, clock)} == set(ids.values())
    assert [reader.tenant for reader in store.readers(now=clock.now)] == ["", "acme"]
    assert [reader.tenant for reader in acme.readers(now=clock.now)] == ["acme"]
    add(store, clock.now, tenant="other")
    run(store, clock.now, succeed)
    page = acme.read_feed("r", limit=1, now=clock.now)
    acme.move_reader("r", page.position, now=clock.now)
    while (page := acme.read_feed("r", now=clock.now)).position > page.since:
        acme.move_reader("r", page.position, now=clock.now)
    [mine, _] = store.readers(now=clock.now)[::-1]
    assert (mine.tenant, mine.unread) == ("acme", 0)


def test_a_reader_that_was_away_for_a_week_is_told(
    store: Store, plain: Plain, clock: Clock
) -> None:
    store.add_reader("away", now=clock.now)
    store.add_reader("here", now=clock.now)
    add(store, clock.now)
    run(store, clock.now, succeed)
    store.prune(now=clock.advance(KEPT_SECONDS - 1))
    assert len(read(store, clock, "here")) == 1
    store.prune(now=clock.advance(2))
    with pytest.raises(FeedMissed, match=r"away was last seen at .*remove_reader and add_reader"):
        store.read_feed("away", now=clock.now)
    with pytest.raises(FeedMissed):
        store.move_reader("away", 1, now=clock.now)
    assert store.add_reader("away", now=clock.now) is False
    [away, here] = store.readers(now=clock.now)
    assert away.lost_at == clock.now
    assert here.lost_at is not None  # its next end is a week old
    assert rows(plain) == 0
    id = add(store, clock.now)
    run(store, clock.now, succeed)
    assert rows(plain) == 0  # no reader wants it
    store.remove_reader("away", now=clock.now)
    assert store.add_reader("away", now=clock.now) is True
    assert id not in [end.id for end in read(store, clock, "away")]


def test_a_reader_that_only_looks_is_not_lost(store: Store, clock: Clock) -> None:
    store.add_reader("r", now=clock.now)
    for _ in range(4):
        clock.advance(KEPT_SECONDS / 2)
        assert read(store, clock) == []
        store.prune(now=clock.now)
    add(store, clock.now)
    run(store, clock.now, succeed)
    assert len(read(store, clock)) == 1


def test_a_reader_for_a_short_time_leaves_nothing_behind(
    store: Store, plain: Plain, clock: Clock
) -> None:
    store.add_reader("short", kept_seconds=600, now=clock.now)
    add(store, clock.now)
    run(store, clock.now, succeed)
    store.prune(now=clock.advance(601))
    assert store.readers(now=clock.now) == []
    assert rows(plain) == 0
    with pytest.raises(ReaderNotFound):
        store.read_feed("short", now=clock.now)


def test_many_ends_are_read_in_pages_and_removed_in_batches(
    store: Store, plain: Plain, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_BATCH", 7)
    store.add_reader("r", now=clock.now)
    ids = add_many(store, clock.now, 40)
    while held := take(store, clock.now, 8):
        settle(store, clock.now, *map(succeed, held))
    found: list[int] = []
    while page := read_on(store, clock, limit=9):
        found += [end.id for end in page]
    assert found == ids
    store.prune(now=clock.now)
    assert rows(plain) == 0


def test_what_a_caller_does_wrong_is_said(store: Store, clock: Clock) -> None:
    with pytest.raises(ReaderNotFound, match="no reader 'nobody'; add it with add_reader"):
        store.read_feed("nobody", now=clock.now)
    with pytest.raises(ReaderNotFound):
        store.move_reader("nobody", 1, now=clock.now)
    with pytest.raises(InvalidInput, match="reader"):
        store.add_reader("", now=clock.now)
    store.add_reader("r", now=clock.now)
    for limit in (0, MAX_ENDS + 1, "5"):
        with pytest.raises(OutOfRange, match="limit"):
            store.read_feed("r", limit=limit, now=clock.now)  # type: ignore[arg-type]
    with pytest.raises(OutOfRange, match="position"):
        store.move_reader("r", -1, now=clock.now)
    with pytest.raises(OutOfRange, match="kept_seconds"):
        store.add_reader("s", kept_seconds=1, now=clock.now)


# --- commits that come late -----------------------------------------------------------------------


@pytest.mark.parametrize("both", [True, False], ids=["read-between", "read-after"])
def test_an_end_that_commits_late_is_not_skipped(
    pg: Store, clock: Clock, begin: Begin, both: bool
) -> None:
    """A has ended its job and stays open; B ends a later one and commits; the reader reads and
    moves on; A commits: the reader gets its end, and the end of B not again.

    Seen failing with places that are drawn with the end: the reader had passed that of A.
    """
    pg.add_reader("r", now=clock.now)
    first, second = (running(pg, clock.now, worker=worker) for worker in ("w1", "w2"))
    late = begin()
    late.do(settle_op, "w1", [succeed(first)], now=clock.now)
    settle(pg, clock.now, succeed(second), worker="w2")
    if both:
        assert ends_of(read_on(pg, clock)) == [(second.id, State.SUCCEEDED)]
        assert read_on(pg, clock) == []
    late.commit()
    expected = [first.id] if both else [first.id, second.id]
    assert [end.id for end in read_on(pg, clock)] == expected
    assert read_on(pg, clock) == []


def test_an_end_that_is_rolled_back_is_not_in_the_feed(
    pg: Store, clock: Clock, begin: Begin
) -> None:
    pg.add_reader("r", now=clock.now)
    id = add(pg, clock.now)
    undone = begin()
    undone.do(cancel, id, now=clock.now)
    undone.rollback()
    assert read_on(pg, clock) == []
    pg.cancel(id, now=clock.now)
    assert ends_of(read_on(pg, clock)) == [(id, State.CANCELLED)]


def test_a_new_reader_waits_for_ends_that_have_not_seen_it(
    pg: Store, clock: Clock, begin: Begin
) -> None:
    """Once `add_reader` has returned, a job that has not ended yet will be in the feed."""
    held = running(pg, clock.now)
    before = begin()
    before.do(settle_op, "w1", [succeed(held)], now=clock.now)
    adding = Background(lambda: pg.add_reader("r", now=clock.now))
    assert not adding.ends_within(0.05)
    wait_until(lambda: pg.readers(now=clock.now))
    before.commit()
    assert adding.result() is True
    assert pg.get(held.id).state is State.SUCCEEDED
    assert read(pg, clock) == []


def test_a_new_reader_says_that_an_older_end_is_still_open(
    pg: Store, clock: Clock, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_WAIT_SECONDS", 0.02)
    held = running(pg, clock.now)
    before = begin()
    before.do(settle_op, "w1", [succeed(held)], now=clock.now)
    with pytest.raises(StoreBusy, match="reader r is added"):
        pg.add_reader("r", now=clock.now)
    assert pg.add_reader("r", now=clock.now) is False


def test_readers_that_read_at_the_same_time_see_one_order(
    pg: Store, pg_plain: Plain, clock: Clock, begin: Begin
) -> None:
    """One reader gives places and has not committed: another one waits, and sees the same."""
    for name in ("a", "b"):
        pg.add_reader(name, now=clock.now)
    ids = add_many(pg, clock.now, 3)
    settle(pg, clock.now, *map(succeed, take(pg, clock.now)))
    placing = begin()
    placing.do(feed.add_reader, "c", now=clock.now)
    other = Background(lambda: read(pg, clock, "b"))
    assert not other.ends_within(0.05)
    placing.commit()
    ends = other.result()
    assert [end.id for end in ends] == ids
    assert read(pg, clock, "a") == ends
    assert pg_plain.one("select count(*) from tenure.feed_new") == 0
    assert [reader.unread for reader in pg.readers(now=clock.now)] == [3, 3, 0]


def test_a_reader_that_reads_and_never_moves_is_lost(store: Store, clock: Clock) -> None:
    """Its next end is a week old."""
    store.add_reader("slow", now=clock.now)
    add_many(store, clock.now, 3)
    settle(store, clock.now, *map(succeed, take(store, clock.now)))
    for _ in range(2):
        clock.advance(3 * 86_400)
        store.prune(now=clock.now)
        assert len(read(store, clock, "slow", 1)) == 1
    store.prune(now=clock.advance(86_401))
    with pytest.raises(FeedMissed):
        store.read_feed("slow", now=clock.now)
