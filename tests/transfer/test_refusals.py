"""What is refused, and that nothing was written then; what is noticed, and said."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.errors import (
    CopyConflict,
    InvalidInput,
    SchemaTooNew,
    StillInUse,
    TenantMismatch,
    ValueRefused,
)
from tenure.rules import lifecycle
from tenure.rules.job import State, Unique, Until, WorkerInfo
from tenure.store import Store, open_store
from tenure.store.copy import run as transfer
from tenure.store.copy import tables as cargo
from tests.support.audit import audit
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import add, add_many, run, settle, take
from tests.transfer import worlds
from tests.transfer.conftest import CROSSING, NewUrl, Urls
from tests.transfer.looks import counters, rows, told

Pair = tuple[Store, Store]


@pytest.fixture(params=CROSSING, ids=lambda pair: f"{pair[0]}-to-{pair[1]}")
def urls(request: pytest.FixtureRequest, new_url: NewUrl) -> Urls:
    """Each engine as a source, and as a target."""
    source, target = request.param
    return new_url(source), new_url(target)


@pytest.mark.parametrize("side", [0, 1], ids=["source", "target"])
def test_a_worker_that_is_alive_is_named(stores: Pair, clock: Clock, side: int) -> None:
    source, target = stores
    add(source, clock.now)
    info = WorkerInfo(name="busy-1", host="host-7", pid=4711)
    stores[side].announce(info, now=clock.now)
    name = ["source", "target"][side]
    with pytest.raises(StillInUse, match=f"busy-1 .*4711 on host-7.* the {name}; stop it"):
        transfer.copy(source, target, int, now=clock.advance(29))
    assert transfer.count(target) == 0
    transfer.copy(source, target, int, now=clock.advance(2))  # dead


def test_a_worker_that_begins_meanwhile_is_named_though_it_has_done_nothing_yet(
    stores: Pair, clock: Clock
) -> None:
    """It would run the job when that is due, and a worker of the target would run it as well."""
    source, target = stores
    add(source, clock.now, delay_seconds=60)
    info = WorkerInfo(name="early-1", host="host-7", pid=4711)
    with pytest.raises(StillInUse, match=r"early-1 .* works on the source; stop it"):
        transfer.copy(source, target, lambda _: source.announce(info, now=clock.now), now=clock.now)
    source.retire("early-1", now=clock.now)
    assert transfer.copy(source, target, int, now=clock.now) == transfer.Copied(1, 0)


def test_a_worker_with_rare_heartbeats_is_alive_for_the_length_of_its_leases(
    stores: Pair, clock: Clock
) -> None:
    source, target = stores
    info = WorkerInfo(name="calm", host="h", pid=1, settings={"lease_seconds": 600.0})
    source.announce(info, now=clock.now)
    source.announce(WorkerInfo(name="dead", host="h", pid=2), now=clock.now)
    with pytest.raises(StillInUse, match=r"worker calm .* One that was killed counts for 600 s"):
        transfer.copy(source, target, int, now=clock.advance(599))
    transfer.copy(source, target, int, now=clock.advance(2))


def test_a_worker_that_signed_off_is_no_obstacle(stores: Pair, clock: Clock) -> None:
    source, target = stores
    source.announce(WorkerInfo(name="done", host="h", pid=1), now=clock.now)
    source.retire("done", now=clock.now)
    transfer.copy(source, target, int, now=clock.now)


@pytest.mark.slow
def test_a_running_job_is_named_and_those_of_the_dead_are_taken_back(
    urls: Urls, stores: Pair, clock: Clock
) -> None:
    source, target = stores
    worlds.everything(source, clock)
    ids = worlds.leave_a_lease(source, clock)
    with pytest.raises(StillInUse, match=f"4 jobs of the source .* job {ids[0]} .* worker dead "):
        transfer.copy(source, target, int, now=clock.advance(4))
    assert transfer.count(target) == 0

    transfer.copy(source, target, int, now=clock.advance(2))

    assert told(source, clock.now) == told(target, clock.now)
    audit(urls[1])
    started, asked, held, other = (target.get(id, now=clock.now) for id in ids)
    assert (started.state, started.attempts, started.crashes) == (State.QUEUED, 1, 1)
    assert asked.state is State.CANCELLED
    assert (held.state, held.held, held.attempts) == (State.QUEUED, True, 0)
    assert (other.state, other.attempts, other.crashes) == (State.QUEUED, 0, 1)


def test_a_job_that_runs_in_the_target_is_an_obstacle(stores: Pair, clock: Clock) -> None:
    source, target = stores
    add(target, clock.now)
    take(target, clock.now)
    with pytest.raises(StillInUse, match="1 jobs of the target are running"):
        transfer.copy(source, target, int, now=clock.now)


def test_a_lease_that_is_used_up_is_no_obstacle(stores: Pair, clock: Clock) -> None:
    source, target = stores
    add(source, clock.now)
    [held] = take(source, clock.now)
    source.settle("w1", [lifecycle.succeed(held)], now=clock.now)
    assert transfer.copy(source, target, int, now=clock.now) == transfer.Copied(0, 1)


def _own_job(_: Store, target: Store, clock: Clock) -> str:
    return f"job {add(target, clock.now, task='app.other')} differs"


def _stranger(_: Store, target: Store, clock: Clock) -> str:
    ids = add_many(target, clock.now, 20)
    for id in ids[:-1]:
        target.cancel(id, now=clock.now)
        target.delete(id, now=clock.now)
    return f"job {ids[-1]} is in the target and not in the source"


def _used_before(_: Store, target: Store, clock: Clock) -> str:
    """A worker counts its successes itself: they leave no statistics behind."""
    add(target, clock.now)
    target.delete(run(target, clock.now, lifecycle.succeed).id, now=clock.now)
    return "the target has no jobs, but it was used before"


def _own_key(_: Store, target: Store, clock: Clock) -> str:
    id = add(target, clock.now, unique=Unique(key="mine", until=Until.FOREVER))
    target.cancel(id, now=clock.now)
    target.prune(now=clock.advance(40 * 86_400))
    return "unique key 'mine' is in the target and not in the source"


def _own_pause(_: Store, target: Store, clock: Clock) -> str:
    target.pause("mine", now=clock.now)
    return "paused queue 'mine' is in the target and not in the source"


def _other_pause(source: Store, target: Store, clock: Clock) -> str:
    source.pause("both", reason="here", now=clock.now)
    target.pause("both", reason="there", now=clock.now)
    return "paused queue 'both' differs between source and target"


@pytest.mark.parametrize(
    "fill", [_own_job, _stranger, _used_before, _own_key, _own_pause, _other_pause]
)
def test_a_target_that_holds_anything_else_is_left_as_it_is(
    urls: Urls, stores: Pair, clock: Clock, fill: Callable[[Store, Store, Clock], str]
) -> None:
    source, target = stores
    add_many(source, clock.now, 10)
    told_to = fill(source, target, clock)
    before = rows(urls[1]), counters(urls[1])
    with pytest.raises(CopyConflict, match=re.escape(told_to)) as refused:
        transfer.copy(source, target, int, now=clock.now)
    assert "copy into a new database" in str(refused.value)
    assert (rows(urls[1]), counters(urls[1])) == before


def test_a_target_that_went_on_after_an_interrupted_copy_is_not_overwritten(
    urls: Urls, stores: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    monkeypatch.setattr(cargo, "CHUNK_ROWS", 5)
    ids = add_many(source, clock.now, 12)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.copy(source, target, interrupt, now=clock.now)
    settle(target, clock.now, *(lifecycle.succeed(held) for held in take(target, clock.now, 2)))
    before = rows(urls[1])
    with pytest.raises(CopyConflict, match=f"job {ids[0]} differs"):
        transfer.copy(source, target, int, now=clock.now)
    assert rows(urls[1]) == before


def _pauses(source: Store, _: Store, clock: Clock) -> None:
    source.pause("later", now=clock.now)


def _finishes(source: Store, _: Store, clock: Clock) -> None:
    settle(source, clock.now, *(lifecycle.succeed(held) for held in take(source, clock.now, 1)))


def _claims(source: Store, _: Store, clock: Clock) -> None:
    take(source, clock.now, 1)


def _moves(source: Store, _: Store, clock: Clock) -> None:
    source.move(1, priority=1, now=clock.now)  # no count changes


def _cancels_one_for_another(source: Store, _: Store, clock: Clock) -> None:
    source.cancel(1, now=clock.now)
    source.delete(1, now=clock.now)
    add(source, clock.now)


def _enqueues_there(_: Store, target: Store, clock: Clock) -> None:
    add(target, clock.now)


def _moves_there(_: Store, target: Store, clock: Clock) -> None:
    target.move(1, priority=1, now=clock.now)


WRITERS = (
    _pauses, _finishes, _claims, _moves, _cancels_one_for_another, _enqueues_there,
    _moves_there,
)  # fmt: skip


@pytest.mark.parametrize("write", WRITERS)
def test_a_writer_that_comes_in_between_is_noticed(
    stores: Pair,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Store, Store, Clock], None],
) -> None:
    source, target = stores
    monkeypatch.setattr(cargo, "CHUNK_ROWS", 5)
    add_many(source, clock.now, 12)
    done: list[int] = []

    def disturb(jobs: int) -> None:
        done.append(jobs)
        if len(done) == 3:  # all jobs have been copied
            write(source, target, clock)

    with pytest.raises(
        CopyConflict, match="another program has written meanwhile: stop all workers"
    ):
        transfer.copy(source, target, disturb, now=clock.now)


@pytest.mark.slow
def test_what_was_added_to_the_source_meanwhile_comes_with_the_next_copy(
    stores: Pair, clock: Clock
) -> None:
    source, target = stores
    add_many(source, clock.now, 3)
    with pytest.raises(CopyConflict, match=r"queued: \d+ in the source, \d+ in the target"):
        # Each time that something has arrived there is something new: it is not waited for.
        transfer.copy(source, target, lambda _: add(source, clock.now), now=clock.now)
    copied = transfer.copy(source, target, int, now=clock.now)
    assert copied.live == transfer.count(source)
    assert told(source, clock.now) == told(target, clock.now)
    assert add(target, clock.now) > copied.live


def test_a_store_is_not_copied_onto_itself(
    new_url: NewUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = new_url("sqlite")
    monkeypatch.chdir(tmp_path)
    for one, two in ((file, "sqlite:///jobs-0.db"), _twice(new_url("postgres"))):
        with open_store(one) as source, open_store(two) as target:
            for other in (source, target):
                with pytest.raises(InvalidInput, match="are the same database"):
                    transfer.copy(source, other, int)


def _twice(url: str) -> Urls:
    return url, f"{url}{'&' if '?' in url else '?'}application_name=other"


@pytest.mark.slow
def test_two_schemas_of_one_database_are_two_stores(new_url: NewUrl, clock: Clock) -> None:
    url = new_url("postgres")
    other = f"{url}{'&' if '?' in url else '?'}schema=order"
    with open_store(url) as source, open_store(other) as target:
        target.migrate()
        worlds.everything(source, clock)
        transfer.copy(source, target, int, now=clock.now)
        assert told(source, clock.now) == told(target, clock.now)


def test_a_store_of_one_tenant_is_refused(stores: Pair) -> None:
    source, target = stores
    for one, two in ((source.for_tenant("acme"), target), (source, target.for_tenant("acme"))):
        with pytest.raises(TenantMismatch, match="copy concerns all tenants"):
            transfer.copy(one, two, int)
    with pytest.raises(TenantMismatch):
        transfer.count(source.for_tenant("acme"))


@pytest.mark.parametrize("side", [0, 1], ids=["source", "target"])
def test_a_newer_schema_is_refused(urls: Urls, side: int) -> None:
    """It may have columns that this code would leave behind."""
    with Plain(urls[side]) as plain:
        plain.rows("update tenure.schema_version set version = version + 1")
    name = ["source", "target"][side]
    newer = pytest.raises(SchemaTooNew, match=f"the {name} is at version .* upgrade")
    with open_store(urls[0]) as source, open_store(urls[1]) as target, newer:
        transfer.copy(source, target, int)


def test_a_job_that_the_target_cannot_take_is_named(new_url: NewUrl, clock: Clock) -> None:
    file = new_url("sqlite")
    with open_store(file) as source, open_store(new_url("postgres")) as target:
        ids = add_many(source, clock.now, 30)
        with Plain(file) as plain:  # nothing of ours writes this
            plain.rows("update tenure.job set reason = 'a' || char(0) where id = ?", ids[17])
        with pytest.raises(ValueRefused, match=f"the target cannot take job {ids[17]} "):
            transfer.copy(source, target, int, now=clock.now)
        assert transfer.count(target) == 17
        source.cancel(ids[17], now=clock.now)
        source.delete(ids[17], now=clock.now)
        assert transfer.copy(source, target, int, now=clock.now).live == 29
