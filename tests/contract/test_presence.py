"""announce, retire, workers: who works here, for people to look at."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tenure.errors import InvalidInput, InvalidName, OutOfRange, PayloadInvalid, TenantMismatch
from tenure.rules.job import State, WorkerInfo, WorkerSeen
from tenure.rules.lifecycle import succeed
from tenure.store import Store, Swept
from tests.support.plain import Plain
from tests.support.stores import Clock, open_face
from tests.support.work import add, take_one

INFO = WorkerInfo(
    name="host-1a2b",
    host="host.example",
    pid=4711,
    queues={"default": 100, "gpu": 1},
    tasks=("app.send", "app.train"),
    settings={"lease_seconds": 30.0, "isolation": "process", "drain": None, "quick": True},
    counts={"succeeded": 12, "failed": 1},
)

SQLITE_STYLES = ("sqlite-apsw", "sqlite-sqlite3", "sqlite-async")
on_sqlite = pytest.mark.parametrize("style", SQLITE_STYLES, indirect=True)


def info(name: str, **options: Any) -> WorkerInfo:
    return WorkerInfo(name=name, host="here", pid=1, **options)


def names(workers: list[WorkerSeen]) -> list[str]:
    return [worker.name for worker in workers]


def test_a_worker_is_seen_as_it_announced_itself(store: Store, clock: Clock) -> None:
    store.announce(INFO, now=clock.now)
    [seen] = store.workers(now=clock.now)
    told = msgspec.structs.asdict(INFO)
    assert seen == WorkerSeen(**told, started_at=clock.now, seen_at=clock.now, alive=True)


def test_its_running_jobs_are_those_it_has_now(store: Store, clock: Clock) -> None:
    store.announce(INFO, now=clock.now)
    store.announce(info("idle"), now=clock.now)

    def running() -> dict[str, int]:
        return {worker.name: worker.running for worker in store.workers(now=clock.now)}

    for _ in range(2):
        add(store, clock.now)
    first = take_one(store, clock.now, worker=INFO.name)
    take_one(store, clock.now, worker=INFO.name)
    assert running() == {INFO.name: 2, "idle": 0}
    store.settle(INFO.name, [succeed(first)], now=clock.now)
    assert running() == {INFO.name: 1, "idle": 0}


def test_a_second_announcement_keeps_the_start_and_changes_the_rest(
    store: Store, clock: Clock
) -> None:
    started = clock.now
    store.announce(info("w1", queues={"a": 1}), now=started)
    later = clock.advance(10)
    store.announce(INFO, now=later)
    store.announce(msgspec.structs.replace(INFO, name="w1"), now=later)
    assert {seen.name: (seen.started_at, seen.seen_at) for seen in store.workers(now=later)} == {
        "w1": (started, later),
        INFO.name: (later, later),
    }
    [seen] = [seen for seen in store.workers(now=later) if seen.name == "w1"]
    assert (seen.host, seen.pid, seen.queues) == (INFO.host, INFO.pid, INFO.queues)


def test_alive_is_who_was_seen_within_the_time(store: Store, clock: Clock) -> None:
    store.announce(INFO, now=clock.now)

    def alive(alive_seconds: float = 30.0) -> bool:
        [seen] = store.workers(now=clock.now, alive_seconds=alive_seconds)
        return seen.alive

    clock.advance(29.999)
    assert alive()
    clock.advance(0.001)
    assert not alive()
    assert alive(alive_seconds=30.001)
    clock.advance(3600)
    assert not alive()
    store.announce(INFO, now=clock.now)
    assert alive()


def test_without_now_the_databases_clock_counts(store: Store) -> None:
    store.announce(INFO)
    [seen] = store.workers()
    assert seen.alive
    assert seen.seen_at == seen.started_at
    assert abs(seen.seen_at.timestamp() - time.time()) < 60
    [seen] = store.workers(alive_seconds=0)
    assert not seen.alive


def test_those_alive_come_first_and_of_these_the_newest(store: Store, clock: Clock) -> None:
    for name in ("dead-old", "alive-old", "dead-new"):
        store.announce(info(name), now=clock.advance(1))
    clock.advance(60)
    store.announce(info("alive-old"), now=clock.now)
    store.announce(info("alive-new"), now=clock.advance(1))
    store.announce(info("alive-newest-a"), now=clock.advance(1))
    store.announce(info("alive-newest-b"), now=clock.now)
    in_order = [
        "alive-newest-a", "alive-newest-b", "alive-new", "alive-old", "dead-new", "dead-old",
    ]  # fmt: skip
    assert names(store.workers(now=clock.now)) == in_order
    assert names(store.workers(now=clock.now, limit=3)) == in_order[:3]


def test_a_retired_worker_is_gone(store: Store, clock: Clock) -> None:
    store.announce(INFO, now=clock.now)
    store.announce(info("w2"), now=clock.now)
    store.retire(INFO.name, now=clock.now)
    store.retire("never-heard-of", now=clock.now)
    assert names(store.workers(now=clock.now)) == ["w2"]


def test_prune_forgets_who_was_last_seen_a_day_ago(store: Store, clock: Clock) -> None:
    store.announce(info("dead"), now=clock.now)
    store.announce(info("alive"), now=clock.now)
    clock.advance(86_390)
    store.announce(info("alive"), now=clock.now)
    store.prune(now=clock.now)
    assert names(store.workers(now=clock.now)) == ["alive", "dead"]
    clock.advance(11)
    store.prune(now=clock.now)
    assert names(store.workers(now=clock.now)) == ["alive"]


@pytest.mark.parametrize("forgotten", [True, False])
def test_rescue_goes_by_leases_alone(
    store: Store, plain: Plain, clock: Clock, forgotten: bool
) -> None:
    """Neither a list without the worker changes what a sweep does, nor one with it."""
    id = add(store, clock.now)
    store.announce(info("w1"), now=clock.now)
    take_one(store, clock.now)
    if forgotten:
        plain.rows("delete from tenure.worker")
    assert store.sweep(now=clock.advance(29)) == Swept()
    assert store.get(id).state is State.RUNNING
    clock.advance(1)
    if not forgotten:
        store.announce(info("w1"), now=clock.now)
    assert store.sweep(now=clock.now) == Swept(requeued=1)
    assert store.get(id).state is State.QUEUED
    assert take_one(store, clock.now, worker="not-announced").id == id


@on_sqlite
@pytest.mark.parametrize("jump_seconds", [-1e6, 1e6])
def test_a_jump_of_the_wall_clock_kills_nobody(
    store: Store, monkeypatch: pytest.MonkeyPatch, jump_seconds: float
) -> None:
    real = time.time_ns
    store.announce(INFO)
    monkeypatch.setattr(time, "time_ns", lambda: real() + int(jump_seconds * 1e9))
    store.prune(force=True)
    [seen] = store.workers()
    assert seen.alive
    store.announce(INFO)
    monkeypatch.setattr(time, "time_ns", real)
    store.prune(force=True)
    [seen] = store.workers()
    assert seen.alive


@on_sqlite
def test_nobody_survives_another_boot(
    store: Store, style: str, store_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.announce(INFO, now=clock.now)
    monkeypatch.setattr("tenure.store.sqlite.session.boot_id", lambda: "another boot")
    after_boot = open_face(style, store_url)
    try:
        [seen] = after_boot.workers(now=clock.now)
        assert not seen.alive
        after_boot.prune(now=clock.advance(86_399))
        assert names(after_boot.workers(now=clock.now)) == [INFO.name]
        after_boot.prune(now=clock.advance(2))
        assert after_boot.workers(now=clock.now) == []
    finally:
        after_boot.close()


@pytest.mark.parametrize("kept", ['{"queues": 5}', "[]", "{}", '{"later": {"version": 2}}'])
def test_a_worker_of_another_version_is_shown_all_the_same(
    store: Store, plain: Plain, clock: Clock, kept: str
) -> None:
    store.announce(INFO, now=clock.now)
    plain.rows("update tenure.worker set info = ?", kept)
    [seen] = store.workers(now=clock.now)
    assert (seen.name, seen.host, seen.pid, seen.alive) == (INFO.name, INFO.host, INFO.pid, True)
    assert (seen.queues, seen.tasks, seen.settings, seen.counts) == ({}, (), {}, {})


def test_it_concerns_all_tenants(store: Store, clock: Clock) -> None:
    acme = store.for_tenant("acme")
    for call in (
        lambda: acme.announce(INFO, now=clock.now),
        lambda: acme.retire(INFO.name, now=clock.now),
        lambda: acme.workers(now=clock.now),
    ):
        with pytest.raises(TenantMismatch, match="concerns all tenants"):
            call()
    assert store.workers(now=clock.now) == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": "no spaces"}, InvalidName),
        ({"host": "a\nb"}, InvalidName),
        ({"host": "h" * 256}, InvalidName),
        ({"pid": -1}, OutOfRange),
        ({"pid": 2**31}, OutOfRange),
        ({"pid": True}, OutOfRange),
        ({"queues": {"no spaces": 1}}, InvalidName),
        ({"queues": {"default": -1}}, OutOfRange),
        ({"queues": [("default", 1)]}, InvalidInput),
        ({"tasks": ["app.send"]}, InvalidInput),
        ({"tasks": ("no spaces",)}, InvalidName),
        ({"settings": None}, InvalidInput),
    ],
)
def test_what_a_worker_may_say_of_itself_is_checked(
    change: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        WorkerInfo(**(msgspec.structs.asdict(INFO) | change))


@pytest.mark.parametrize("bad", [float("nan"), "\x00", object()])
def test_settings_that_are_not_json_are_refused_and_nothing_is_written(
    store: Store, clock: Clock, bad: Any
) -> None:
    with pytest.raises(PayloadInvalid):
        store.announce(info("w1", settings={"bad": bad}), now=clock.now)
    assert store.workers(now=clock.now) == []


def test_wrong_calls_are_refused(store: Store, clock: Clock) -> None:
    wrong: Any = "w1"
    with pytest.raises(InvalidInput, match="WorkerInfo"):
        store.announce(wrong, now=clock.now)
    with pytest.raises(InvalidName):
        store.retire("no spaces", now=clock.now)
    with pytest.raises(OutOfRange):
        store.workers(limit=0, now=clock.now)
    with pytest.raises(OutOfRange):
        store.workers(alive_seconds=-1, now=clock.now)
    with pytest.raises(OutOfRange):
        store.workers(now=clock.now.replace(tzinfo=None))


def test_the_end_of_a_worker_says_when_it_was_last_seen(store: Store, clock: Clock) -> None:
    store.announce(INFO, now=clock.now)
    clock.advance(3600)
    [seen] = store.workers(now=clock.now)
    assert clock.now - seen.seen_at == timedelta(hours=1)
