"""claim by task names, and in one order across queues: bounded, and no job loses its place."""

from __future__ import annotations

import pytest

from tenure.errors import InvalidInput
from tenure.rules.claim import Claimed
from tenure.rules.job import State
from tenure.rules.lifecycle import release, succeed
from tenure.store import LANDED, Store
from tenure.store.jobs import choose
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import add, add_many, ids_of, take, take_one


def claim(store: Store, clock: Clock, count: int = 1, **options: object) -> list[Claimed]:
    """Claim from the queue `default`, or from those given."""
    queues: dict[str, int] = options.pop("queues", {"default": count})  # type: ignore[assignment]
    leases = store.claim("w1", queues, now=clock.now, **options)  # type: ignore[arg-type]
    return [job for lease in leases for job in lease.jobs]


def test_only_jobs_of_the_named_tasks_are_taken_in_order(store: Store, clock: Clock) -> None:
    mails = [add(store, clock.now, task="mail", priority=-n) for n in range(3)]
    audio = add_many(store, clock.now, 3, task="audio")
    assert ids_of(claim(store, clock, 2, tasks=["audio"])) == audio[:2]
    assert ids_of(claim(store, clock, 5, tasks=["mail", "video"])) == mails[::-1]
    assert claim(store, clock, 5, tasks=["mail", "video"]) == []
    assert ids_of(take(store, clock.now)) == audio[2:]


def test_the_others_keep_their_places(store: Store, plain: Plain, clock: Clock) -> None:
    """Seen failing with the head of the line taken in place of the tickets that were chosen."""
    others = add_many(store, clock.now, 4, task="mail")
    add(store, clock.now, task="audio")
    before = plain.rows("select job_id, token, position from tenure.ready order by position")
    [job] = claim(store, clock, tasks=["audio"])
    after = plain.rows("select job_id, token, position from tenure.ready order by position")
    assert after == before[:4]
    assert ids_of(take(store, clock.now)) == others
    assert store.settle("w1", [succeed(job)], now=clock.now) == [LANDED]


def test_one_order_of_priority_across_queues(store: Store, clock: Clock) -> None:
    late = add(store, clock.now, queue="a", priority=5)
    first = add(store, clock.now, queue="b", priority=-5)
    second = add(store, clock.now, queue="a")
    third = add(store, clock.now, queue="c", task="mail")
    queues = {"a": 9, "b": 9, "c": 9}
    assert ids_of(claim(store, clock, queues=queues, most=3)) == [first, second, third]
    assert ids_of(claim(store, clock, queues=queues, most=3)) == [late]


def test_a_job_behind_many_others_is_found_by_going_on(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim looks at two pages of a lane at most: the next one goes on behind them.

    Seen failing with every claim at the head of the line again: the job was never found.
    """
    monkeypatch.setattr(choose, "LOOK_AHEAD", 10)
    add_many(store, clock.now, 45, task="mail")
    audio = add(store, clock.now, task="audio")
    tries = 1
    while not (found := claim(store, clock, tasks=["audio"])):
        tries += 1
        assert tries < 20
    assert ids_of(found) == [audio]
    assert 2 <= tries <= 5
    first = add(store, clock.now, task="audio", priority=-1)
    assert ids_of(claim(store, clock, tasks=["audio"])) == [first]


def test_the_next_claim_begins_where_the_last_one_found_a_job(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen failing with every walk at its start again: each job took as many claims as the first.

    After as many claims as there are tickets on a page it does start again: a job with a better
    priority is found while there are always more jobs at the end of the line.
    """
    monkeypatch.setattr(choose, "LOOK_AHEAD", 10)
    add_many(store, clock.now, 45, task="mail")
    audio = add_many(store, clock.now, 5, task="audio")
    while not (found := claim(store, clock, tasks=["audio"])):
        pass
    for _ in audio[1:]:
        found += claim(store, clock, tasks=["audio"])
    assert ids_of(found) == audio
    add_many(store, clock.now, 20, task="mail", priority=-2)
    better = add(store, clock.now, task="audio", priority=-1)
    for _ in range(40):
        add(store, clock.now, task="audio")
        found += claim(store, clock, tasks=["audio"])
    assert better in ids_of(found)


def test_a_claim_by_tasks_is_bounded(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = choose._look

    async def look(tx: object, lanes: object) -> object:
        tickets = await real(tx, lanes)  # type: ignore[arg-type]
        seen.append(len(tickets))
        return tickets

    monkeypatch.setattr(choose, "_look", look)
    add_many(store, clock.now, 3000, task="mail")
    assert claim(store, clock, tasks=["audio"]) == []
    assert seen == [choose.LOOK_AHEAD] * 2


def test_suspects_paused_queues_and_cancelled_jobs_are_as_in_other_claims(
    store: Store, clock: Clock
) -> None:
    add_many(store, clock.now, 2, task="audio")
    take(store, clock.now)
    store.sweep(now=clock.advance(31))
    [suspect] = claim(store, clock, 5, tasks=["audio"])
    assert suspect.crashes == 1
    store.settle("w1", [release(suspect)], now=clock.now)
    store.pause("default", now=clock.now)
    assert claim(store, clock, 5, tasks=["audio"]) == []
    store.resume("default", now=clock.now)
    assert len(claim(store, clock, 1, tasks=["audio"])) == 1


def test_void_tickets_are_dropped(store: Store, plain: Plain, clock: Clock) -> None:
    ids = add_many(store, clock.now, 3, task="audio")
    for id in ids[:2]:
        plain.rows("update tenure.job set position = position + 100000 where id = ?", id)
    assert ids_of(claim(store, clock, 1, tasks=["audio"])) == [ids[2]]
    plain.rows("delete from tenure.job where id in (?, ?)", *ids[:2])
    assert claim(store, clock, 1, tasks=["audio"]) == []
    assert plain.count("ready") == 0


@pytest.mark.parametrize("tasks", ["audio", [], ["not a name"], 7])
def test_names_of_tasks_are_checked(store: Store, clock: Clock, tasks: object) -> None:
    with pytest.raises(InvalidInput):
        claim(store, clock, tasks=tasks)


def test_held_tells_what_a_worker_has(store: Store, clock: Clock) -> None:
    assert store.held("w1", now=clock.now) == []
    add_many(store, clock.now, 3)
    claimed = store.claim("w1", {"default": 2}, lease_seconds=60, now=clock.now)
    other = take_one(store, clock.now, worker="w2")
    assert store.held("w1", now=clock.now) == list(claimed)
    assert [lease.jobs for lease in store.held("w2", now=clock.now)] == [(other,)]
    [lease] = store.held("w1", now=clock.advance(1))
    assert store.settle("w1", [succeed(lease.jobs[0])], now=clock.now) == [LANDED]
    [lease] = store.held("w1", now=clock.now)
    assert ids_of(list(lease.jobs)) == [claimed[0].jobs[1].id]
    assert store.held("w1", now=clock.advance(60)) == []
    store.sweep(now=clock.now)
    assert store.get(lease.jobs[0].id).state is State.QUEUED
