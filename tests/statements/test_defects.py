"""Defects that earlier systems of this kind had, as tests that would show them here.

J, F, B and C are four job systems that were surveyed before this one was designed; the numbers are
those of the survey. Many of their defects are shown absent by tests of other files of this folder,
tied to them with `@defect`; here are the rest. What concerns parts that are not built yet is listed
in coverage.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

import msgspec
import pytest

from tenure.errors import InvalidInput, JobNotFound
from tenure.rules.codec import encode
from tenure.rules.job import NewJob, State, Unique
from tenure.rules.lifecycle import Outcome, fail, release, retry, succeed
from tenure.rules.retry import Fixed, dump_policy, load_policy
from tenure.store import LANDED, STALE, Store
from tests.statements.conftest import Opener
from tests.statements.support import (
    ERROR,
    SETTLEMENTS,
    Database,
    add,
    at_once,
    claim_jobs,
    claim_one,
    defect,
    expire,
    lose_the_answer_to_a_commit,
    new_jobs,
    rule,
    running,
)
from tests.support.stores import Clock


@defect("J-1")
def test_a_workers_name_is_no_fence(store: Store, clock: Clock, database: Database) -> None:
    """The same worker has the job again, in a second attempt. The first attempt is refused all the
    same: what counts is the token, not who is asking."""
    old = running(store, clock, "gpu-0")
    expire(store, clock)
    new = claim_one(store, clock, "gpu-0")
    before = database.snapshot()
    for outcome in Outcome:
        assert store.settle("gpu-0", [SETTLEMENTS[outcome](old)], now=clock.now) == [STALE]
    assert store.report_progress("gpu-0", [(old, 0.1, None)], now=clock.now) == [STALE]
    assert database.snapshot() == before
    assert store.settle("gpu-0", [succeed(new)], now=clock.now) == [LANDED]


@defect("J-3", "F-10")
def test_a_commit_without_an_answer_keeps_its_result(
    pg: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after COMMIT was sent and before its answer. The settlement is sent
    again, found to have landed, and answered so; the result is there, once."""
    job = running(pg, clock)
    seen: list[State] = []
    lose_the_answer_to_a_commit(monkeypatch, lambda: seen.append(pg.get(job.id).state))
    assert pg.settle("w1", [succeed(job, encode("result"))], now=clock.now) == [LANDED]
    assert seen == [State.SUCCEEDED]
    assert pg.get(job.id).result == '"result"'


@defect("J-5", "F-16")
def test_the_operations_that_were_missing_exist(store: Store, clock: Clock) -> None:
    """Errors are retried with a delay, jobs can be cancelled, failed ones replayed, and finished
    ones removed, by age or one by one; successes are on record."""
    job = running(store, clock)
    store.settle("w1", [retry(job, ERROR, 30.0)], now=clock.now)
    assert store.get(job.id).state is State.SCHEDULED
    assert store.cancel(job.id, now=clock.now) is State.CANCELLED
    assert store.replay(job.id, now=clock.now)
    again = claim_one(store, clock)
    store.settle("w1", [succeed(again, encode("ok"))], now=clock.now)
    assert store.get(job.id).result == '"ok"'
    other = running(store, clock)
    store.settle("w1", [fail(other, ERROR)], now=clock.now)
    store.delete(other.id, now=clock.now)
    assert store.prune(now=clock.advance(8 * 86_400)) == 1
    for id in (job.id, other.id):
        with pytest.raises(JobNotFound):
            store.get(id)


@defect("J-6", "F-14")
def test_postgres_times_are_the_servers(pg: Store, pg_sql: Database) -> None:
    """Creation, due time and deadline come from one clock, the database's; no client's clock is
    asked, so the skew between hosts shortens no lease."""

    def server_clock() -> datetime:
        now: datetime = pg_sql.one("select clock_timestamp()")
        return now

    before = server_clock()
    [now, later] = pg.enqueue(new_jobs(1) + new_jobs(1, delay_seconds=3600))
    [lease] = pg.claim("w1", {"default": 1}, lease_seconds=60)
    after = server_clock()
    assert before <= pg.get(now.id).created_at <= lease.claimed_at <= after
    assert lease.expires_at - lease.claimed_at == timedelta(seconds=60)
    due = pg.get(later.id).due_at
    assert due is not None
    assert before <= due - timedelta(hours=1) <= after


@defect("J-11")
def test_lists_come_in_pages_and_the_cap_is_the_jobs_own(store: Store, clock: Clock) -> None:
    ids = add(store, clock, 5, max_attempts=9)
    seen: list[int] = []
    page = store.list_jobs(limit=2)
    while True:
        assert len(page.jobs) <= 2
        seen += [job.id for job in page.jobs]
        if page.next is None:
            break
        page = store.list_jobs(limit=2, before=page.next)
    assert seen == sorted(ids, reverse=True)
    assert store.get(ids[0]).max_attempts == 9


@defect("F-1", "C-9")
def test_a_late_worker_releases_nothing_of_its_successor(
    store: Store, clock: Clock, database: Database
) -> None:
    """Giving a job back is guarded like every other end: the new owner's lease, token and claim
    stay, and its result lands."""
    old = running(store, clock, "old")
    expire(store, clock)
    new = claim_one(store, clock, "new")
    before = database.snapshot()
    answers = store.settle("old", [release(old)], done_leases=[old.lease_id, new.lease_id])
    assert answers == [STALE]
    assert database.snapshot() == before
    assert store.settle("new", [succeed(new)], now=clock.now) == [LANDED]


@defect("F-2", "B-7")
def test_a_job_that_runs_longer_than_its_lease_is_kept_by_heartbeats(
    store: Store, clock: Clock
) -> None:
    """Ten leases long, renewed in time: no sweep takes it, nobody else gets it."""
    job = running(store, clock)
    for _ in range(30):
        clock.advance(10)
        beat = store.extend("w1", {job.lease_id: [job.id]}, lease_seconds=30, now=clock.now)
        assert beat.lost == ()
        assert store.sweep(now=clock.now).requeued == 0
        assert claim_jobs(store, clock, "w2") == []
    assert store.settle("w1", [succeed(job)], now=clock.now) == [LANDED]
    assert store.get(job.id).attempts == 1


@defect("F-3")
def test_a_claim_takes_no_more_than_was_asked_for(store: Store, clock: Clock) -> None:
    """What one worker has no room for is left to the others."""
    add(store, clock, 5)
    assert len(claim_jobs(store, clock, "w1", most=2)) == 2
    assert len(claim_jobs(store, clock, "w2", most=100)) == 3


@defect("F-6", "F-16")
def test_every_state_is_counted(store: Store, clock: Clock) -> None:
    """Delayed, running, waiting and queued jobs, and all that finished: none is invisible."""
    add(store, clock, 4, delay_seconds=60)
    done = running(store, clock)
    store.settle("w1", [succeed(done)], now=clock.now)
    parent = running(store, clock)
    store.enqueue(new_jobs(2, parents=(parent.id,)), now=clock.now)
    add(store, clock, 3)
    live = {count.state: count.jobs for count in store.count_live()}
    assert live == {State.SCHEDULED: 4, State.RUNNING: 1, State.WAITING: 2, State.QUEUED: 3}
    hour = timedelta(hours=1)
    finished = store.count_finished(clock.now - hour, clock.now + hour)
    assert [(count.state, count.jobs) for count in finished] == [(State.SUCCEEDED, 1)]


@defect("F-11")
def test_arguments_that_nobody_can_read_block_no_queue(
    store: Store, clock: Clock, database: Database
) -> None:
    """The engine hands arguments out as text and does not look inside: a damaged one is its
    worker's problem, and the next in line comes out."""
    damaged = '"not what the task expects"' if database.is_postgres else "{damaged"
    first, second = add(store, clock, 2)
    database.rows(f"update tenure.job set args = '{damaged}' where id = {first}")
    jobs = claim_jobs(store, clock)
    assert [(job.id, job.args) for job in jobs] == [(first, damaged), (second, "{}")]
    answers = store.settle("w1", [fail(jobs[0], ERROR), succeed(jobs[1])], now=clock.now)
    assert answers == [LANDED, LANDED]


@defect("F-13")
def test_a_tenants_job_keeps_its_own_back_off(store: Store, clock: Clock) -> None:
    """The policy that was stored with it comes with every claim, after a retry too."""
    acme = store.for_tenant("acme")
    add(acme, clock, retry=dump_policy(Fixed(77.0)))
    job = claim_one(store, clock)
    assert load_policy(job.retry) == Fixed(77.0)
    store.settle("w1", [retry(job, ERROR, 0.0)], now=clock.now)
    assert load_policy(claim_one(store, clock).retry) == Fixed(77.0)


@defect("B-6")
def test_a_row_that_the_database_refuses_is_not_called_a_duplicate(
    store: Store, database: Database
) -> None:
    """An insert that fails for another reason than its key is an error, and leaves nothing, the key
    included."""
    before = database.snapshot()
    bad = NewJob(task="app.work", unique=Unique(key="k"))
    msgspec.structs.force_setattr(bad, "max_attempts", 0)
    with pytest.raises(InvalidInput, match="refused a value"):
        store.enqueue([bad])
    assert [table for table, rows in database.snapshot().items() if rows != before[table]] in (
        [],
        ["tenure_counter"],
    )


@defect("B-9")
def test_what_does_not_exist_is_an_error_and_no_queues_claim_nothing(
    store: Store, clock: Clock, database: Database
) -> None:
    """An unknown id is not `queued`; an empty list of queues is not all of them; a finished job is
    on no lease."""
    for call in (store.get, store.cancel, store.hold, store.unhold, store.replay, store.delete):
        with pytest.raises(JobNotFound):
            call(4711)
    with pytest.raises(InvalidInput):
        store.claim("w1", {})
    job = running(store, clock)
    store.settle("w1", [fail(job, ERROR)], done_leases=[job.lease_id], now=clock.now)
    assert database.count("lease") == 0
    assert store.get(job.id).expires_at is None


@defect("C-2")
@pytest.mark.parametrize("place", ["finished", "running", "held"])
def test_a_stray_ticket_starts_nothing(
    store: Store, clock: Clock, database: Database, place: str
) -> None:
    """A claim looks at the job behind the ticket: one that has finished, that runs, or that stands
    elsewhere is not started by a ticket that lies about."""
    job = running(store, clock)
    if place == "finished":
        store.settle("w1", [succeed(job)], now=clock.now)
    if place == "held":
        store.hold(job.id, now=clock.now)
        store.settle("w1", [release(job)], now=clock.now)
    token = store.get(job.id).token
    for number, stray in enumerate({token, token - 1, token + 1}):
        database.rows(
            "insert into tenure.ready (queue, priority, position, job_id, token) "
            f"values ('default', 0, {900 + number}, {job.id}, {stray})"
        )
    before = store.get(job.id)
    assert claim_jobs(store, clock, "w2") == []
    assert store.get(job.id) == before
    assert database.count("ready") == 0


@defect("C-3")
@rule("one-ticket")
def test_a_second_ticket_is_not_a_second_attempt(
    store: Store, clock: Clock, database: Database
) -> None:
    """The job names its ticket's place. A second ticket with the right token, however it came to
    be, is void: one attempt is started, by one worker.

    Seen failing with the place taken out of the claim: two workers held one token.
    """
    [id] = add(store, clock)
    database.rows(
        "insert into tenure.ready (queue, priority, position, job_id, token) "
        f"values ('default', 0, 900, {id}, 1)"
    )
    [job] = claim_jobs(store, clock, "w1", most=1)
    assert claim_jobs(store, clock, "w2", most=1) == []
    assert store.settle("w1", [succeed(job)], now=clock.now) == [LANDED]
    assert database.count("ready") == 0


@defect("C-4")
def test_nothing_is_left_behind_when_all_is_done(
    store: Store, clock: Clock, database: Database
) -> None:
    """After a drained day with retries, crashes, cancellations and keys, the tables of the living
    are empty: nothing grows that nobody reads."""
    store.enqueue(new_jobs(3) + new_jobs(1, unique=Unique(key="k")), now=clock.now)
    add(store, clock, delay_seconds=5)
    store.cancel(add(store, clock)[0], now=clock.now)
    first, *_ = claim_jobs(store, clock)
    store.settle("w1", [retry(first, ERROR, 5.0)], now=clock.now)
    expire(store, clock)
    for _ in range(10):
        store.promote(now=clock.advance(5))
        for lease in store.claim("w1", {"default": 10}, now=clock.now):
            ends = [succeed(job) for job in lease.jobs]
            store.settle("w1", ends, done_leases=[lease.id], now=clock.now)
    assert {
        table: database.count(table) for table in ("job", "ready", "due", "lease", "unique_key")
    } == {"job": 0, "ready": 0, "due": 0, "lease": 0, "unique_key": 0}
    assert database.count("history") == 6


@defect("C-8")
def test_every_line_of_a_story_names_its_worker(store: Store, clock: Clock) -> None:
    job = running(store, clock, "w1")
    store.settle("w1", [retry(job, ERROR, 0.0)], now=clock.advance(1))
    claim_one(store, clock, "w2")
    expire(store, clock)
    story = [(event.kind, event.token, event.worker) for event in store.timeline(job.id)]
    assert story == [
        ("enqueued", 1, None),
        ("claimed", 1, "w1"),
        ("retried", 1, "w1"),
        ("claimed", 2, "w2"),
        ("crashed", 2, "w2"),
    ]


@defect("C-13")
def test_a_paused_queue_and_a_cancelled_job_start_nothing(store: Store, clock: Clock) -> None:
    """Neither is only a note that the next claim overlooks; what was running may finish."""
    job = running(store, clock)
    [cancelled] = add(store, clock)
    assert store.cancel(cancelled, now=clock.now) is State.CANCELLED
    [waiting] = add(store, clock)
    store.pause("default", reason="maintenance", now=clock.now)
    assert claim_jobs(store, clock) == []
    assert store.get(waiting).queue_paused
    assert store.settle("w1", [succeed(job)], now=clock.now) == [LANDED]
    assert store.resume("default", now=clock.now)
    assert [job.id for job in claim_jobs(store, clock)] == [waiting]


@defect("C-18", "B-10")
def test_claims_do_not_wait_for_jobs_that_run(open_shared: Opener) -> None:
    """On SQLite as on PostgreSQL: while one job runs, others are claimed and finished."""
    stores = [open_shared() for _ in range(4)]
    stores[0].enqueue(new_jobs(5))
    [slow] = stores[0].claim("slow", {"default": 1})

    def work(store: Store) -> int:
        [lease] = store.claim("fast", {"default": 1})
        [answer] = store.settle("fast", [succeed(lease.jobs[0])])
        return int(answer.landed)

    assert sum(at_once([partial(work, store) for store in stores])) == 4
    assert stores[0].get(slow.jobs[0].id).state is State.RUNNING
