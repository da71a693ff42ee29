"""claim: tickets are consumed in order, once, and their jobs go on a lease."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import InvalidInput, StoreFull, TenureError
from tenure.rules.job import State
from tenure.rules.lifecycle import fail, release, retry, succeed
from tenure.rules.limits import MAX_PRIORITY, MIN_PRIORITY
from tenure.store import LANDED, Store
from tenure.store.jobs import claim
from tests.support.plain import Plain
from tests.support.rules import rule
from tests.support.stores import Clock
from tests.support.work import ERROR, add, add_many, expire, ids_of, running, settle, take, take_one


def test_a_claim_takes_no_more_than_it_asks_for(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 5)
    assert ids_of(take(store, clock.now, 2)) == ids[:2]
    assert ids_of(take(store, clock.now, 2)) == ids[2:4]
    assert ids_of(take(store, clock.now, 2)) == ids[4:]
    assert take(store, clock.now, 2) == []


def test_a_block_is_one_lease_with_a_deadline(store: Store, plain: Plain, clock: Clock) -> None:
    add_many(store, clock.now, 3)
    [lease] = store.claim("w1", {"default": 10}, lease_seconds=12.5, now=clock.now)
    assert (lease.worker, lease.claimed_at) == ("w1", clock.now)
    assert lease.expires_at == clock.now + timedelta(seconds=12.5)
    assert {job.lease_id for job in lease.jobs} == {lease.id}
    assert plain.one("select count(*) from tenure.lease") == 1
    shown = store.get(lease.jobs[0].id, now=clock.now)
    assert (shown.state, shown.worker) == (State.RUNNING, "w1")
    assert (shown.claimed_at, shown.expires_at) == (clock.now, lease.expires_at)
    assert (shown.token, shown.attempts) == (lease.jobs[0].token, lease.jobs[0].attempts)


def test_a_claim_does_not_write_the_jobs(store: Store, plain: Plain, clock: Clock) -> None:
    add_many(store, clock.now, 3)
    before = plain.table("job")
    take(store, clock.now)
    assert plain.table("job") == before


def test_nothing_ready_means_no_lease(store: Store, plain: Plain, clock: Clock) -> None:
    assert store.claim("w1", {"default": 10}, now=clock.now) == []
    assert plain.one("select count(*) from tenure.lease") == 0


def test_each_queue_has_its_own_capacity(store: Store, clock: Clock) -> None:
    a = add_many(store, clock.now, 4, queue="a")
    b = add_many(store, clock.now, 4, queue="b", priority=-5)
    add_many(store, clock.now, 4, queue="c")
    leases = store.claim("w1", {"a": 3, "b": 2}, now=clock.now)
    taken = [job for lease in leases for job in lease.jobs]
    assert [job.id for job in taken if job.queue == "a"] == a[:3]
    assert [job.id for job in taken if job.queue == "b"] == b[:2]
    assert len(taken) == 5


def test_a_new_priority_is_found_while_others_are_being_claimed(store: Store, clock: Clock) -> None:
    for priority in (0, 50):
        add_many(store, clock.now, 10, priority=priority)
    take(store, clock.now, 5)
    extremes = [add(store, clock.now, priority=p) for p in (MAX_PRIORITY, MIN_PRIORITY, 7, -1)]
    highest, lowest, seven, minus_one = extremes
    assert ids_of(take(store, clock.now, 2)) == [lowest, minus_one]
    assert [job.priority for job in take(store, clock.now, 6)] == [0] * 5 + [7]
    rest = take(store, clock.now, 100)
    assert [job.priority for job in rest] == [50] * 10 + [MAX_PRIORITY]
    assert rest[-1].id == highest
    assert seven not in ids_of(rest)


def test_a_job_put_back_stands_at_the_end_of_its_line(store: Store, clock: Clock) -> None:
    first, second, third = add_many(store, clock.now, 3)
    claimed = take_one(store, clock.now)
    settle(store, clock.now, release(claimed))
    assert ids_of(take(store, clock.now)) == [second, third, first]


def test_tickets_of_jobs_that_are_gone_or_have_moved_on_are_dropped(
    store: Store, plain: Plain, clock: Clock
) -> None:
    id = add(store, clock.now)
    plain.rows("insert into tenure.ready (queue, priority, position, job_id, token)"
               f" values ('default', -9, 1, {id}, 0)")  # fmt: skip
    plain.rows("insert into tenure.ready (queue, priority, position, job_id, token)"
               " values ('default', -9, 2, 777777, 1)")  # fmt: skip
    assert ids_of(take(store, clock.now, 3)) == [id]
    assert plain.one("select count(*) from tenure.ready") == 0


@pytest.mark.parametrize("state", ["finished", "running", "held"])
def test_a_stray_ticket_starts_nothing(
    store: Store, plain: Plain, clock: Clock, state: str
) -> None:
    """A claim looks at the job behind the ticket. A job that has finished, that runs, or that an
    operator holds is not started by a ticket that was left behind, whatever its token."""
    job = running(store, clock.now)
    if state == "finished":
        settle(store, clock.now, succeed(job))
    if state == "held":
        store.hold(job.id, now=clock.now)
        settle(store, clock.now, release(job))
    before = store.get(job.id)
    for position, token in enumerate((before.token - 1, before.token, before.token + 1), start=900):
        plain.rows("insert into tenure.ready (queue, priority, position, job_id, token)"
                   f" values ('default', 0, {position}, {job.id}, {token})")  # fmt: skip
    assert take(store, clock.now, worker="w2") == []
    assert store.get(job.id) == before
    assert plain.count("ready") == 0


@rule("one-ticket")
def test_a_second_ticket_is_not_a_second_attempt(store: Store, plain: Plain, clock: Clock) -> None:
    """The job names the position of its ticket. A second ticket with the right token is void: one
    attempt is started, by one worker.

    Seen failing with the position taken out of the claim: two workers had one token.
    """
    id = add(store, clock.now)
    plain.rows("insert into tenure.ready (queue, priority, position, job_id, token)"
               f" values ('default', 0, 900, {id}, 1)")  # fmt: skip
    [claimed] = take(store, clock.now, 1)
    assert take(store, clock.now, 1, worker="w2") == []
    assert settle(store, clock.now, succeed(claimed)) == [LANDED]
    assert plain.count("ready") == 0


@rule("void-tickets")
def test_a_claim_that_met_only_void_tickets_goes_on_at_once(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """A claim that returns nothing means that nothing is ready; a worker may go to sleep on it.

    Seen failing with the loop of claim ended after its first round: nothing was claimed though a
    job stood behind the void tickets.
    """
    for position in range(1, 8):
        plain.rows("insert into tenure.ready (queue, priority, position, job_id, token)"
                   f" values ('default', -9, {position}, {800_000 + position}, 1)")  # fmt: skip
    id = add(store, clock.now)
    assert ids_of(take(store, clock.now, 2)) == [id]


def test_only_void_tickets_are_an_empty_line(store: Store, plain: Plain, clock: Clock) -> None:
    plain.rows("insert into tenure.ready (queue, priority, position, job_id, token)"
               " values ('default', 0, 1, 777777, 1)")  # fmt: skip
    assert take(store, clock.now) == []
    assert plain.one("select count(*) from tenure.ready") == 0


@rule("flagged-not-handed-out")
def test_a_job_whose_cancellation_is_requested_is_finished_and_not_handed_out(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """Seen failing with all live tickets handed out: the worker got the cancelled job, too."""
    flagged, good = add_many(store, clock.now, 2)
    child = add(store, clock.now, parents=(flagged,))
    plain.rows(f"update tenure.job set cancel_requested = true where id = {flagged}")
    assert ids_of(take(store, clock.now, 1)) == [good]
    ended = store.get(flagged)
    assert (ended.state, ended.reason, ended.attempts) == (State.CANCELLED, "cancelled", 0)
    assert store.get(child).state is State.SKIPPED


def test_when_a_cancellation_fails_the_claim_keeps_what_it_took_and_the_sweep_cancels(
    store: Store, clock: Clock, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise StoreFull("the disk is full")

    flagged, good = add_many(store, clock.now, 2)
    plain.rows(f"update tenure.job set cancel_requested = true where id = {flagged}")
    with monkeypatch.context() as patched:
        patched.setattr(claim, "_end", full)
        assert [job.id for job in take(store, clock.now)] == [good]
    assert store.get(flagged).state is State.RUNNING
    clock.advance(31)
    store.sweep(now=clock.now)
    assert store.get(flagged).state is State.CANCELLED


def test_a_claim_whose_lease_cannot_be_written_claims_nothing(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """The caller gets an error, not a job, and the next claim gets the same attempt."""
    add(store, clock.now)
    before = plain.everything()
    plain.refuse_inserts("lease")
    with pytest.raises(TenureError, match="refused by the test"):
        take(store, clock.now)
    assert plain.everything() == before
    plain.allow_inserts("lease")
    assert take_one(store, clock.now).token == 1


def test_a_claim_hands_out_arguments_that_cannot_be_read(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """The engine does not look into arguments: damaged ones are the worker's problem, and the next
    job of the queue comes out."""
    damaged = '"not what the task expects"' if plain.is_postgres else "{damaged"
    first, second = add_many(store, clock.now, 2)
    plain.rows("update tenure.job set args = ? where id = ?", damaged, first)
    jobs = take(store, clock.now)
    assert [(job.id, job.args) for job in jobs] == [(first, damaged), (second, "{}")]
    assert settle(store, clock.now, fail(jobs[0], ERROR), succeed(jobs[1])) == [LANDED, LANDED]


def test_jobs_that_failed_do_not_delay_the_next_one(store: Store, clock: Clock) -> None:
    """Failed for good, out of attempts, or waiting for a retry, and all of a lower priority."""
    worst: dict[str, Any] = {"priority": -50, "max_attempts": 1}
    failed, errored = add_many(store, clock.now, 2, **worst)
    first, second = take(store, clock.now)
    settle(store, clock.now, fail(first, ERROR), retry(second, ERROR, 0))
    again = running(store, clock.now, priority=-50)
    settle(store, clock.now, retry(again, ERROR, 600))
    crashed = running(store, clock.now, **worst)
    expire(store, clock)
    assert {store.get(id).state for id in (failed, errored, crashed.id)} == {State.FAILED}
    next_one = add(store, clock.now)
    assert ids_of(take(store, clock.now, 1)) == [next_one]


def test_nothing_is_claimed_from_a_paused_queue(store: Store, clock: Clock) -> None:
    id, other = add(store, clock.now), add(store, clock.now, queue="other")
    store.pause("default", reason="deploy", now=clock.now)
    leases = store.claim("w1", {"default": 5, "other": 5}, now=clock.now)
    assert [job.id for lease in leases for job in lease.jobs] == [other]
    assert store.get(id).queue_paused
    store.resume("default", now=clock.now)
    assert ids_of(take(store, clock.now)) == [id]


def test_a_held_job_is_passed_over(store: Store, clock: Clock) -> None:
    held, free = add_many(store, clock.now, 2)
    store.hold(held, now=clock.now)
    assert ids_of(take(store, clock.now)) == [free]


@rule("suspects-alone")
def test_a_suspect_is_tried_alone_and_one_at_a_time(store: Store, clock: Clock) -> None:
    """So the job that kills its worker is found: the next death has one suspect.

    Seen failing with all jobs on one lease: the blocks died together again and again.
    """
    suspects = add_many(store, clock.now, 3)
    take(store, clock.now)
    store.sweep(now=clock.advance(31))
    trusted = add_many(store, clock.now, 2)
    leases = store.claim("w2", {"default": 10}, now=clock.now)
    assert sorted([job.id for job in lease.jobs] for lease in leases) == [suspects[:1], trusted]
    assert [job.crashes for job in leases[-1].jobs] == [1]
    for suspect in suspects[1:]:
        [lease] = store.claim("w2", {"other": 1, "default": 10}, now=clock.now)
        assert ids_of(list(lease.jobs)) == [suspect]
    assert store.claim("w2", {"default": 10}, now=clock.now) == []


def test_only_one_suspect_comes_with_a_claim_from_several_queues(
    store: Store, clock: Clock
) -> None:
    for queue in ("one", "two"):
        add_many(store, clock.now, 2, queue=queue)
    store.claim("w1", {"one": 2, "two": 2}, now=clock.now)
    store.sweep(now=clock.advance(31))
    for queue in ("one", "one", "two", "two"):
        [lease] = store.claim("w2", {"one": 5, "two": 5}, now=clock.now)
        assert [job.queue for job in lease.jobs] == [queue]


def test_a_suspect_keeps_its_turn_by_priority(store: Store, clock: Clock) -> None:
    suspect = add(store, clock.now, priority=5)
    take(store, clock.now)
    store.sweep(now=clock.advance(31))
    urgent, later = add(store, clock.now, priority=1), add(store, clock.now, priority=9)
    order = [ids_of(take(store, clock.now, most=1))[0] for _ in range(3)]
    assert order == [urgent, suspect, later]


def test_a_dying_worker_never_fails_a_job_that_has_not_run(store: Store, clock: Clock) -> None:
    """The first job of each claim kills its worker; only that one may be charged."""
    ids = add_many(store, clock.now, 10, max_attempts=3)
    ran: list[int] = []
    while any(not store.get(id).state.final for id in ids):
        leases = store.claim("w", {"default": 10}, now=clock.now)
        ran.append(leases[0].jobs[0].id)
        store.sweep(now=clock.advance(31))
    assert all(ran.count(id) >= store.get(id).attempts == 3 for id in ids)


@pytest.mark.parametrize(
    ("worker", "queues", "lease_seconds"),
    [
        ("w1", {}, 30.0),
        ("w1", {"default": 0}, 30.0),
        ("w1", {"default": 10_001}, 30.0),
        ("w1", {"no spaces": 1}, 30.0),
        ("", {"default": 1}, 30.0),
        ("w1", {"default": 1}, 0.0),
        ("w1", {"default": 1}, float("nan")),
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(
    store: Store, worker: str, queues: dict[str, int], lease_seconds: float
) -> None:
    with pytest.raises(InvalidInput):
        store.claim(worker, queues, lease_seconds=lease_seconds)
