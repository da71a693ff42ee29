"""Notes: small values that a running job adds to itself, fenced like a settlement, and kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenure.errors import InvalidInput, PayloadTooLarge, TenantMismatch, TenureError
from tenure.rules.codec import encode
from tenure.rules.job import Progress, State
from tenure.rules.lifecycle import Settlement, abort, fail, release, retry, skip, snooze, succeed
from tenure.rules.notes import NoteValue
from tenure.store import LANDED, STALE, Store
from tests.support.plain import Plain
from tests.support.rules import rule
from tests.support.stores import Clock
from tests.support.work import ERROR, add, add_many, expire, settle, take, take_one


def test_values_are_merged_and_none_removes(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    assert store.get(id).notes == {}
    notes: dict[str, NoteValue] = {"loss": 0.5, "epoch": 1, "gpu": True, "out": "s3://a/é"}
    assert store.annotate("w1", [(job, notes)], now=clock.now) == [LANDED]
    assert store.get(id).notes == notes
    more = {"loss": 0.25, "gpu": None, "best": -3, "never": None}
    assert store.annotate("w1", [(job, more)], now=clock.now) == [LANDED]
    assert store.get(id).notes == {"epoch": 1, "out": "s3://a/é", "loss": 0.25, "best": -3}
    gone = dict.fromkeys(("epoch", "out", "loss", "best"))
    store.annotate("w1", [(job, gone)], now=clock.now)
    assert (store.get(id).notes, store.get(id).notes_json) == ({}, None)


def test_of_several_values_in_one_batch_all_are_merged(store: Store, clock: Clock) -> None:
    first, second = add_many(store, clock.now, 2)
    one, two = take(store, clock.now)
    batch: Any = [(one, {"a": 1}), (two, {"a": 2}), (one, {"b": 3})]
    assert store.annotate("w1", batch, now=clock.now) == [LANDED] * 3
    assert (store.get(first).notes, store.get(second).notes) == ({"a": 1, "b": 3}, {"a": 2})


@rule("note-fence")
def test_only_the_worker_that_holds_the_job_annotates_it(store: Store, clock: Clock) -> None:
    """Seen failing with the look at token and lease taken out: another worker's notes were kept."""
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    assert store.annotate("w2", [(job, {"a": 1})], now=clock.now) == [STALE]
    forged = msgspec.structs.replace(job, token=9)
    assert store.annotate("w1", [(forged, {"a": 1})], now=clock.now) == [STALE]
    expire(store, clock)
    again = take_one(store, clock.now, worker="w2")
    assert store.annotate("w1", [(job, {"a": 1})], now=clock.now) == [STALE]
    assert store.get(id).notes == {}
    settle(store, clock.now, succeed(again), worker="w2")
    assert store.annotate("w2", [(again, {"a": 1})], now=clock.now) == [STALE]
    assert store.get(id).notes == {}


ENDS: dict[str, Any] = {
    "succeed": succeed, "fail": lambda job: fail(job, ERROR), "skip": skip, "abort": abort,
    "retry": lambda job: retry(job, ERROR, 0), "release": release,
    "snooze": lambda job: snooze(job, 5),
}  # fmt: skip


@pytest.mark.parametrize("how", ENDS)
def test_notes_stay_however_the_attempt_ends(store: Store, clock: Clock, how: str) -> None:
    """Also those that no heartbeat has sent: they come with the settlement."""
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    store.annotate("w1", [(job, {"loss": 0.5, "epoch": 1})], now=clock.now)
    end: Settlement = ENDS[how](job)
    end = msgspec.structs.replace(end, notes={"loss": 0.25})
    assert settle(store, clock.now, end) == [LANDED]
    assert store.get(id).notes == {"epoch": 1, "loss": 0.25}


def test_notes_survive_a_crash_and_replays(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    store.annotate("w1", [(take_one(store, clock.now), {"a": 1})], now=clock.now)
    expire(store, clock)
    job = take_one(store, clock.now)
    store.annotate("w1", [(job, {"b": 2})], now=clock.now)
    store.save_checkpoint("w1", job, encode(7), now=clock.now)
    settle(store, clock.now, succeed(job))
    for afresh in (False, True):
        store.replay(id, afresh=afresh, now=clock.now)
        assert store.get(id).notes == {"a": 1, "b": 2}
        assert store.progress(id) == Progress()
        settle(store, clock.now, fail(take_one(store, clock.now), ERROR))
    store.replay_many([id], afresh=True, now=clock.now)
    assert store.get(id).notes == {"a": 1, "b": 2}


def test_notes_go_with_their_job(store: Store, plain: Plain, clock: Clock) -> None:
    add_many(store, clock.now, 2)
    for job in take(store, clock.now):
        store.annotate("w1", [(job, {"a": 1})], now=clock.now)
        settle(store, clock.now, succeed(job))
    store.delete(job.id, now=clock.now)
    assert len(plain.table("note")) == 1
    store.prune(now=clock.advance(8 * 86_400))
    assert plain.table("note") == []


@pytest.mark.parametrize("how", ["succeed", "fail", "skip", "abort"])
def test_a_job_that_is_not_kept_leaves_no_notes(
    store: Store, plain: Plain, clock: Clock, how: str
) -> None:
    """Neither those of a heartbeat nor those that come with the settlement."""
    add_many(store, clock.now, 2, keep_succeeded_seconds=0.0, keep_other_seconds=0.0)
    annotated, told = take(store, clock.now)
    store.annotate("w1", [(annotated, {"a": 1})], now=clock.now)
    last: Settlement = msgspec.structs.replace(ENDS[how](told), notes={"a": 1})
    assert settle(store, clock.now, ENDS[how](annotated), last) == [LANDED, LANDED]
    assert (plain.table("note"), plain.table("job"), plain.table("history")) == ([], [], [])


def test_the_oldest_notes_of_earlier_attempts_make_room(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    store.annotate("w1", [(job, {f"old{n}": n for n in range(64)})], now=clock.now)
    store.annotate("w1", [(job, {"old5": 0, "new": 1})], now=clock.now)
    notes = store.get(id).notes
    assert len(notes) == 64
    assert next(iter(notes)) == "old1"
    assert list(notes)[-2:] == ["old5", "new"]
    large = {f"t{n}": "x" * 1000 for n in range(8)}
    store.annotate("w1", [(job, large)], now=clock.now)
    kept = store.get(id)
    assert len(kept.notes_json or "") <= 8192
    assert kept.notes.items() >= large.items()


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "no dict": ([1], InvalidInput, "notes must be a dict"),
    "a name": ({"a b": 1}, InvalidInput, "a note needs a name"),
    "a number as name": ({5: 1}, InvalidInput, "a note needs a name"),
    "a long name": ({"a" * 65: 1}, InvalidInput, "a note needs a name"),
    "a list": ({"a": [1]}, InvalidInput, "note a must be a str, int, float, bool or None"),
    "bytes": ({"a": b"x"}, InvalidInput, "not bytes; convert it"),
    "nan": ({"a": float("nan")}, InvalidInput, "note a must be a finite number"),
    "infinity": ({"a": -float("inf")}, InvalidInput, "note a must be a finite number"),
    "a huge integer": ({"a": 2**63}, InvalidInput, "note a must fit into 64 bits"),
    "nul": ({"a": "x\0"}, InvalidInput, "note a contains NUL"),
    "surrogate": ({"a": "\ud800"}, InvalidInput, "note a contains NUL or a lone surrogate"),
    "long text": ({"a": "x" * 1001}, PayloadTooLarge, "the maximum is 1000"),
    "too many": ({f"a{n}": n for n in range(65)}, PayloadTooLarge, "at most 64 notes"),
    "too much": ({f"a{n}": "x" * 999 for n in range(9)}, PayloadTooLarge, "the maximum is 8192"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_kept_is_refused(store: Store, clock: Clock, what: str) -> None:
    bad, kind, message = BAD[what]
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    with pytest.raises(kind, match=message):
        store.annotate("w1", [(job, {"good": 1}), (job, bad)], now=clock.now)
    assert store.get(id).notes == {}


def test_the_edges_of_what_can_be_kept(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    edges: dict[str, NoteValue] = {
        "_": "", "least": -(2**63), "most": 2**63 - 1, "tiny": 5e-324, "huge": 1.7e308, "no": False,
        "text": "\n\t\"\\'%:x" + "𝄞" * 300,
    }  # fmt: skip
    store.annotate("w1", [(job, edges)], now=clock.now)
    notes = store.get(id).notes
    assert notes == edges
    assert {name: type(value) for name, value in notes.items()} == {
        name: type(value) for name, value in edges.items()
    }


def test_lists_show_notes_of_jobs_in_every_state(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 4)
    jobs = take(store, clock.now)
    store.annotate("w1", [(job, {"n": n}) for n, job in enumerate(jobs)], now=clock.now)
    settle(store, clock.now, succeed(jobs[0]), fail(jobs[1], ERROR), retry(jobs[2], ERROR, 0))
    shown = {job.id: job.notes for job in store.list_jobs()}
    assert shown == {id: {"n": n} for n, id in enumerate(ids)}
    [failed] = store.list_jobs(states=[State.FAILED])
    assert failed.as_dict()["notes"] == {"n": 1}


def test_numbers_of_notes_can_be_summed_in_sql(store: Store, plain: Plain, clock: Clock) -> None:
    add_many(store, clock.now, 3)
    jobs = take(store, clock.now)
    batch = [(job, {"gpu_seconds": 1.5 * n}) for n, job in enumerate(jobs)]
    store.annotate("w1", batch, now=clock.now)
    settle(store, clock.now, succeed(jobs[1]), fail(jobs[2], ERROR))
    total = plain.one(
        "select sum(cast(notes ->> 'gpu_seconds' as double precision)) from tenure.jobs"
        " where task = 'app.work'"
    )
    assert total == 4.5


def test_a_store_of_one_tenant_annotates_nothing(store: Store, clock: Clock) -> None:
    add(store, clock.now)
    job = take_one(store, clock.now)
    with pytest.raises(TenantMismatch):
        store.for_tenant("acme").annotate("w1", [(job, {"a": 1})])


def test_a_job_goes_on_though_its_notes_cannot_be_stored(
    store: Store, plain: Plain, clock: Clock
) -> None:
    id = add(store, clock.now)
    job = take_one(store, clock.now)
    plain.refuse_inserts("note")
    with pytest.raises(TenureError, match="refused by the test"):
        store.annotate("w1", [(job, {"a": 1})], now=clock.now)
    assert store.get(id).state is State.RUNNING
    assert settle(store, clock.now, succeed(job)) == [LANDED]


def test_a_job_without_notes_writes_none(store: Store, plain: Plain, clock: Clock) -> None:
    add_many(store, clock.now, 3)
    one, two, _ = take(store, clock.now)
    settle(store, clock.now, succeed(one), retry(two, ERROR, 0))
    expire(store, clock)
    assert plain.table("note") == []
