"""Claiming: statements 1 to 12."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tenure.rules.job import Lease, NewJob, State
from tenure.rules.lifecycle import fail, retry, succeed
from tenure.store import LANDED, Store
from tenure.store.jobs.claim import claim
from tests.statements.conftest import Opener
from tests.statements.support import (
    ERROR,
    Database,
    Held,
    add,
    at_once,
    claim_jobs,
    claim_one,
    defect,
    expire,
    new_jobs,
    running,
    statement,
)
from tests.support.stores import Clock

ROUNDS = 10


def ids_of(leases: list[Lease]) -> list[int]:
    """The jobs of these leases."""
    return [job.id for lease in leases for job in lease.jobs]


@statement(1)
@defect("B-1")
def test_of_many_concurrent_claims_on_one_job_one_gets_it(open_shared: Opener) -> None:
    """One job, many claimers at the same moment: one holds it, the rest get an empty answer and no
    error."""
    stores = [open_shared() for _ in range(6)]
    for _ in range(ROUNDS):
        [added] = stores[0].enqueue(new_jobs(1))
        answers = at_once(
            [partial(store.claim, f"w{n}", {"default": 1}) for n, store in enumerate(stores)]
        )
        assert [id for leases in answers for id in ids_of(leases)] == [added.id]
        assert sorted(len(leases) for leases in answers) == [0, 0, 0, 0, 0, 1]


@statement(2)
def test_two_claimers_and_two_jobs_get_one_each(open_shared: Opener) -> None:
    """Neither claimer goes away with nothing while a job is there for it."""
    first, second = open_shared(), open_shared()
    for _ in range(ROUNDS):
        added = {answer.id for answer in first.enqueue(new_jobs(2))}
        one, other = at_once(
            [lambda: first.claim("w1", {"default": 1}), lambda: second.claim("w2", {"default": 1})]
        )
        assert (len(ids_of(one)), len(ids_of(other))) == (1, 1)
        assert set(ids_of(one) + ids_of(other)) == added


@statement(3)
@defect("B-10")
def test_workers_that_drain_a_queue_together_see_every_job_once(
    open_shared: Opener, shared_database: Database
) -> None:
    """Claim and settle in several threads until nothing is left: no job missing, none twice."""
    stores = [open_shared() for _ in range(4)]
    added = {answer.id for answer in stores[0].enqueue(new_jobs(300))}

    def drain(store: Store, worker: str) -> list[int]:
        seen = []
        while leases := store.claim(worker, {"default": 7}):
            [lease] = leases
            seen += [job.id for job in lease.jobs]
            answers = store.settle(
                worker, [succeed(job) for job in lease.jobs], done_leases=[lease.id]
            )
            assert set(answers) == {LANDED}
        return seen

    seen = at_once([partial(drain, store, f"w{n}") for n, store in enumerate(stores)])
    everything = [id for part in seen for id in part]
    assert (len(everything), set(everything)) == (300, added)
    assert shared_database.count("history", "state = 'succeeded'") == 300
    assert shared_database.count("job") == shared_database.count("lease") == 0


@statement(4)
@defect("B-1")
def test_choosing_and_taking_are_one_step(
    pg: Store, clock: Clock, hold: Callable[[], Held]
) -> None:
    """A claimer that comes while another has chosen and not committed does not get the same job;
    it gets it if the other takes its claim back. (On SQLite the writer lock is taken before the
    choice; `test_a_transaction_that_reads_before_it_writes_waits_for_the_lock_first`.)"""
    [id] = add(pg, clock)
    first = hold()
    assert ids_of(first.do(claim, "w1", {"default": 1}, now=clock.now)) == [id]
    assert claim_jobs(pg, clock, "w2") == []
    first.rollback()
    assert [job.id for job in claim_jobs(pg, clock, "w2")] == [id]


@statement(5)
def test_a_claim_answers_with_the_job_as_it_is_after_the_claim(store: Store, clock: Clock) -> None:
    """Owner, deadline, token and attempts in the answer are those that everybody else sees."""
    add(store, clock)
    clock.advance(3)
    [lease] = store.claim("w1", {"default": 1}, lease_seconds=30, now=clock.now)
    [job] = lease.jobs
    seen = store.get(job.id)
    assert seen.state is State.RUNNING
    assert (seen.worker, seen.claimed_at, seen.expires_at) == (
        lease.worker,
        lease.claimed_at,
        lease.expires_at,
    )
    assert (seen.token, seen.attempts) == (job.token, job.attempts)
    assert (lease.expires_at - lease.claimed_at).total_seconds() == 30


@statement(6)
def test_a_ticket_that_somebody_locks_is_passed_over(
    pg: Store, clock: Clock, hold: Callable[[], Held]
) -> None:
    """A user's session that sits on the head of the line delays that job alone: a claim takes the
    others at once. (SQLite has one writer and no row locks.)"""
    first, second, third = add(pg, clock, 3)
    user = hold()
    user.sql(f"select from tenure.ready where job_id = {first} for update")
    assert [job.id for job in claim_jobs(pg, clock)] == [second, third]
    user.rollback()
    assert [job.id for job in claim_jobs(pg, clock)] == [first]


@statement(7)
def test_a_job_is_claimable_from_its_due_time_on_and_not_before(store: Store, clock: Clock) -> None:
    """A microsecond too early it is not there; at the due time it is: delays and dates alike."""
    store.enqueue(
        [
            NewJob(task="app.delayed", delay_seconds=60),
            NewJob(task="app.dated", due_at=clock.now.replace(minute=1)),
        ],
        now=clock.now,
    )
    clock.advance(59.999999)
    assert store.promote(now=clock.now) == 0
    assert claim_jobs(store, clock) == []
    clock.advance(0.000001)
    assert store.promote(now=clock.now) == 2
    assert [job.task for job in claim_jobs(store, clock)] == ["app.delayed", "app.dated"]


@statement(8)
@defect("J-7", "C-8")
def test_jobs_come_out_by_priority_and_then_in_the_order_they_came(
    store: Store, clock: Clock
) -> None:
    """Lower numbers first, whatever order they were enqueued in. Jobs of one priority, enqueued in
    the very same microsecond, keep their order, and so does a block claimed at once."""
    order = [5, 0, -3, 0, 5, -3, 0]
    added = [add(store, clock, priority=priority)[0] for priority in order]
    [lease] = store.claim("w1", {"default": 100}, now=clock.now)
    expected = [id for _, id in sorted(zip(order, added, strict=True))]
    assert [job.id for job in lease.jobs] == expected


@statement(8)
def test_jobs_with_default_values_are_first_in_first_out(store: Store, clock: Clock) -> None:
    """Whoever sets nothing gets a plain line, in blocks or one at a time."""
    added = add(store, clock, 5)
    leases = [store.claim("w1", {"default": most}, now=clock.now) for most in (1, 2, 2)]
    assert [id for block in leases for id in ids_of(block)] == added


@statement(9)
def test_a_held_job_is_passed_over_until_it_is_let_go(store: Store, clock: Clock) -> None:
    """Holding is no state of its own: the job stays `queued`, says that it is held, and can be
    claimed the moment it is let go."""
    held, other = add(store, clock, 2)
    assert store.hold(held, now=clock.now)
    assert [job.id for job in claim_jobs(store, clock)] == [other]
    seen = store.get(held)
    assert (seen.state, seen.held, seen.attempts) == (State.QUEUED, True, 0)
    assert store.unhold(held, now=clock.now)
    assert claim_one(store, clock).id == held


@statement(10)
@defect("F-15")
def test_a_queue_with_a_long_line_keeps_nobody_from_another(store: Store, clock: Clock) -> None:
    """A worker gets what it names and nothing else; naming two queues, it gets its share of each,
    however long the other line is."""
    store.enqueue(new_jobs(500, queue="busy"), now=clock.now)
    store.enqueue(new_jobs(2, queue="calm"), now=clock.now)
    [calm] = store.claim("w1", {"calm": 1}, now=clock.now)
    assert [job.queue for job in calm.jobs] == ["calm"]
    [both] = store.claim("w1", {"busy": 3, "calm": 3}, now=clock.now)
    assert sorted(job.queue for job in both.jobs) == ["busy", "busy", "busy", "calm"]


@statement(11)
@defect("B-4")
def test_jobs_that_failed_never_stand_in_the_way(store: Store, clock: Clock) -> None:
    """Failed for good, out of attempts, or waiting for a retry: the next in line comes out, even
    with the worst of them ahead by priority."""
    for _ in range(3):
        add(store, clock, priority=-50, max_attempts=1)
    lost, failed, errored = claim_jobs(store, clock)
    store.settle("w1", [fail(failed, ERROR), retry(errored, ERROR, 1.0)], now=clock.now)
    again = running(store, clock, priority=-50, max_attempts=3)
    store.settle("w1", [retry(again, ERROR, 600.0)], now=clock.now)
    expire(store, clock)
    while store.get(lost.id).state is not State.FAILED:  # its block was swept: it is tried alone
        claim_jobs(store, clock)
        expire(store, clock)
    [next_in_line] = add(store, clock)
    assert [job.id for job in claim_jobs(store, clock, most=1)] == [next_in_line]


@statement(12)
def test_the_best_ticket_that_nobody_locks_is_taken(
    pg: Store, clock: Clock, hold: Callable[[], Held]
) -> None:
    """Order and locks work together: not the next row on the page, the next in priority."""
    [low] = add(pg, clock, priority=10)
    [best] = add(pg, clock, priority=-10)
    [second] = add(pg, clock, priority=0)
    user = hold()
    user.sql(f"select from tenure.ready where job_id = {best} for update")
    assert [job.id for job in claim_jobs(pg, clock, most=1)] == [second]
    assert [job.id for job in claim_jobs(pg, clock, most=1)] == [low]
    user.rollback()
    assert [job.id for job in claim_jobs(pg, clock, most=1)] == [best]
