"""The rules that a model of the protocol broke without, one test each.

Each docstring says what was taken out and how the test failed then. `make bugs` repeats all of
that: it applies the patches of scripts/bugs/rules.py to a copy of the tree, one at a time.
Rules about the order of two transactions are in test_races.py.
"""

from __future__ import annotations

from typing import Any

import apsw
import psycopg
import pytest

from tenure.errors import KeyTaken, LeaseLost, OutcomeUnknown, StoreBusy
from tenure.rules.codec import encode
from tenure.rules.job import Enqueued, NewJob, State, Unique, Until
from tenure.rules.lifecycle import Outcome, fail, release, retry, snooze, succeed
from tenure.store import LANDED, STALE, Store
from tests.statements.support import (
    ERROR,
    SETTLEMENTS,
    Caller,
    Database,
    Presented,
    add,
    callers,
    claim_jobs,
    claim_one,
    expire,
    lose_the_answer_to_a_commit,
    new_jobs,
    rule,
    running,
    statement,
)
from tests.support.stores import Clock


@rule("void-tickets")
def test_a_claim_that_took_only_void_tickets_goes_on_at_once(
    store: Store, clock: Clock, database: Database
) -> None:
    """An empty answer means that nothing is ready; a worker may go to sleep on it.

    Seen failing with the loop of claim ended after its first round: the answer was empty though a
    job stood in line behind the void tickets.
    """
    *gone, live = add(store, clock, 5)
    for id in gone:
        database.rows(f"delete from tenure.job where id = {id}")
    assert [job.id for job in claim_jobs(store, clock, most=2)] == [live]
    assert database.count("ready") == 0


@rule("flagged-not-handed-out")
def test_a_job_asked_to_cancel_is_finished_by_the_claim_and_not_handed_out(
    store: Store, clock: Clock, database: Database
) -> None:
    """Seen failing with all live tickets handed out: the worker got the flagged job too."""
    flagged, other = add(store, clock, 2)
    database.rows(f"update tenure.job set cancel_requested = true where id = {flagged}")
    assert [job.id for job in claim_jobs(store, clock)] == [other]
    seen = store.get(flagged)
    assert (seen.state, seen.attempts) == (State.CANCELLED, 0)


@rule("lease-must-exist")
def test_a_settlement_without_its_lease_row_is_stale(
    store: Store, clock: Clock, database: Database
) -> None:
    """After a failover that lost the claim, two workers may hold one token; the lease row tells
    which of them the database knows.

    Seen failing with the lease taken out of the guard: the success (or the retry) landed.
    """
    for outcome in Outcome:
        job = running(store, clock)
        database.rows(f"delete from tenure.lease where id = {job.lease_id}")
        answers = store.settle("w1", [SETTLEMENTS[outcome](job)], now=clock.now)
        assert (outcome, answers) == (outcome, [STALE])
        assert store.get(job.id).state is State.RUNNING


@rule("token-guard")
def test_a_settlement_with_an_old_token_is_stale_even_on_a_live_lease(
    store: Store, clock: Clock
) -> None:
    """Seen failing with the token taken out of the guard: the old attempt settled the new one."""
    old = running(store, clock)
    expire(store, clock)
    new = claim_one(store, clock)
    for outcome in Outcome:
        settlement = SETTLEMENTS[outcome](Presented(old.id, old.token, new.lease_id))
        assert (outcome, store.settle("w1", [settlement], now=clock.now)) == (outcome, [STALE])
        seen = store.get(old.id)
        assert (outcome, seen.state, seen.token) == (outcome, State.RUNNING, new.token)


@rule("read-back")
@statement(48)
def test_a_settlement_repeated_after_an_unanswered_commit_has_landed(
    store: Store, clock: Clock
) -> None:
    """The worker cannot know whether its COMMIT was done; the store can, and says so.

    Seen failing without the look at what is there: every repeat was `stale`, and the worker would
    have reported a lost lease for work that is recorded as its own.
    """
    for outcome in Outcome:
        job = running(store, clock)
        settlement = SETTLEMENTS[outcome](job)
        assert store.settle("w1", [settlement], now=clock.now) == [LANDED]
        assert (outcome, store.settle("w1", [settlement], now=clock.now)) == (outcome, [LANDED])
        if not store.get(job.id).state.final:
            store.cancel(job.id, now=clock.now)


@rule("read-back-own")
def test_a_settlement_that_somebody_else_made_is_not_taken_for_ones_own(
    store: Store, clock: Clock
) -> None:
    """Neither another worker's, nor the sweep's, which writes the lost worker's name: whoever was
    swept hears `stale`, also when that was the job's last attempt.

    Seen failing with the worker taken out of the look: the other worker's repeat `landed`; and
    with the sweep's mark taken out of it: the zombie's success of a failed job `landed`.
    """
    job = running(store, clock)
    store.settle("w1", [succeed(job)], now=clock.now)
    assert store.settle("w2", [succeed(job)], now=clock.now) == [STALE]
    again = running(store, clock)
    store.settle("w1", [retry(again, ERROR, 60.0)], now=clock.now)
    assert store.settle("w2", [retry(again, ERROR, 60.0)], now=clock.now) == [STALE]
    lost = running(store, clock, max_attempts=1)
    expire(store, clock)
    assert store.settle("w1", [succeed(lost)], now=clock.now) == [STALE]
    assert store.get(lost.id).state is State.FAILED


@rule("read-back-not-in-callers")
@callers
def test_a_users_transaction_that_is_run_again_is_undone(
    store: Store, clock: Clock, caller: Caller
) -> None:
    """`landed` would let the user's rows be committed a second time for one success.

    Seen failing with the look allowed there: the effect was in the table twice.
    """
    job = running(store, clock)
    with caller.transaction(job.id) as connection:
        store.settle("w1", [succeed(job)], on=connection, now=clock.now)
    with pytest.raises(LeaseLost), caller.transaction(job.id) as connection:
        store.settle("w1", [succeed(job)], on=connection, now=clock.now)
    assert caller.effects() == [job.id]


@rule("lease-kept-while-live")
def test_a_lease_is_kept_while_one_of_its_jobs_is_live(
    store: Store, clock: Clock, database: Database
) -> None:
    """The worker believes that it is done; the tables know better. Without its lease the job would
    be running for ever: no sweep would find it.

    Seen failing with the condition taken out of `drop_leases`: the lease was gone, the job stayed
    `running`.
    """
    add(store, clock, 2)
    done, forgotten = claim_jobs(store, clock)
    store.settle("w1", [succeed(done)], done_leases=[done.lease_id], now=clock.now)
    assert database.count("lease") == 1
    expire(store, clock)
    assert store.get(forgotten.id).state is State.QUEUED
    assert database.count("lease") == 0


@rule("charge-started")
def test_an_innocent_job_of_a_block_never_fails_without_having_run(
    store: Store, clock: Clock
) -> None:
    """A worker dies with a block of three. Only the one that was reported started is charged. The
    others have one attempt, and keep it.

    Seen failing with every job of the block charged: two jobs `failed` that had never run; and with
    the reports ignored: the one that killed the worker was not charged.
    """
    ids = add(store, clock, 3, max_attempts=1)
    [lease] = store.claim("w1", {"default": 3}, lease_seconds=30, now=clock.now)
    store.extend("w1", {lease.id: [ids[1]]}, lease_seconds=30, now=clock.now)
    expire(store, clock)
    seen = [store.get(id) for id in ids]
    assert [(job.state, job.attempts, job.crashes) for job in seen] == [
        (State.QUEUED, 0, 1),
        (State.FAILED, 1, 1),
        (State.QUEUED, 0, 1),
    ]


@rule("charge-started")
def test_a_job_alone_on_its_lease_is_charged_without_a_report(store: Store, clock: Clock) -> None:
    """It may have killed its worker before the first heartbeat.

    Seen failing with only reported jobs charged: a job that kills its worker at once came back for
    ever.
    """
    job = running(store, clock, max_attempts=1)
    expire(store, clock)
    assert store.get(job.id).state is State.FAILED


@rule("suspects-alone")
def test_a_job_with_a_crash_on_record_is_tried_alone(store: Store, clock: Clock) -> None:
    """So the job that kills its worker is found: the next death has one suspect.

    Seen failing with all jobs on one lease: the blocks died together again and again.
    """
    suspects = add(store, clock, 2)
    claim_jobs(store, clock)
    expire(store, clock)
    others = add(store, clock, 2)
    leases = []
    while more := store.claim("w1", {"default": 9}, now=clock.now):
        leases += more
    assert sorted(sorted(job.id for job in lease.jobs) for lease in leases) == [
        [suspects[0]],
        [suspects[1]],
        others,
    ]


@rule("cancel-token")
@pytest.mark.parametrize("table", ["ready", "due"])
def test_cancel_takes_no_void_ticket_for_the_jobs_own(
    store: Store, clock: Clock, database: Database, table: str
) -> None:
    """A ticket with another token is void. A job that has no other is running, and its worker must
    be asked to stop, not overlooked.

    Seen failing with the token taken out of the match: a running job was answered `cancelled` and
    vanished under its worker.
    """
    [id] = add(store, clock, delay_seconds=60 if table == "due" else None)
    database.rows(f"update tenure.job set token = 2 where id = {id}")
    assert store.cancel(id, now=clock.now) is State.RUNNING
    assert database.count(table, "token = 1") == 1
    assert database.count("job", "cancel_requested") == 1


@rule("flagged-retry")
def test_a_job_asked_to_cancel_is_not_retried(store: Store, clock: Clock) -> None:
    """Seen failing with the flag ignored: the job stood in line again after its cancellation."""
    job = running(store, clock)
    store.cancel(job.id, now=clock.now)
    assert store.settle("w1", [retry(job, ERROR, 0.0)], now=clock.now) == [LANDED]
    assert store.get(job.id).state is State.CANCELLED


@rule("flagged-release")
@pytest.mark.parametrize("how", ["snooze", "release"])
def test_a_job_asked_to_cancel_is_not_put_back(store: Store, clock: Clock, how: str) -> None:
    """Seen failing with the flag ignored: the job was `scheduled` (snoozed) or `queued` again."""
    job = running(store, clock)
    store.cancel(job.id, now=clock.now)
    store.settle("w1", [snooze(job, 5.0) if how == "snooze" else release(job)], now=clock.now)
    assert store.get(job.id).state is State.CANCELLED


@rule("flagged-sweep")
def test_a_job_asked_to_cancel_is_not_requeued_by_a_sweep(store: Store, clock: Clock) -> None:
    """Seen failing with the flag ignored: the cancelled job was `queued` for another worker."""
    job = running(store, clock)
    store.cancel(job.id, now=clock.now)
    expire(store, clock)
    assert store.get(job.id).state is State.CANCELLED


@rule("flagged-free")
def test_a_child_asked_to_cancel_is_not_freed(
    store: Store, clock: Clock, database: Database
) -> None:
    """Seen failing with the flag ignored: the end of the parent put the child in line."""
    parent = running(store, clock)
    [child] = store.enqueue([NewJob(task="app.child", parents=(parent.id,))], now=clock.now)
    database.rows(f"update tenure.job set cancel_requested = true where id = {child.id}")
    store.settle("w1", [succeed(parent)], now=clock.now)
    assert store.get(child.id).state is State.CANCELLED


@rule("replay-token", "replay-attempts")
def test_replay_is_a_new_attempt_with_a_new_token(store: Store, clock: Clock) -> None:
    """The zombie of the last attempt is still about: its token must be old.

    Seen failing with the token kept: the zombie's name stood on the new attempt's token; and with
    the attempts kept: the replayed job failed at its first error.
    """
    job = running(store, clock, max_attempts=2)
    store.settle("w1", [retry(job, ERROR, 0.0)], now=clock.now)
    last = claim_one(store, clock)
    store.settle("w1", [retry(last, ERROR, 0.0)], now=clock.now)
    assert store.get(job.id).state is State.FAILED
    assert store.replay(job.id, now=clock.now)
    again = claim_one(store, clock)
    assert (again.token, again.attempts) == (last.token + 1, 0)
    store.settle("w1", [retry(again, ERROR, 0.0)], now=clock.now)
    assert store.get(job.id).state is State.QUEUED


@rule("replay-key")
def test_replay_takes_the_unique_key_again_or_is_refused(
    store: Store, clock: Clock, database: Database
) -> None:
    """Two live jobs never hold one key.

    Seen failing without taking the key: the replay went through beside the job that held the key.
    """
    keyed = NewJob(task="app.work", unique=Unique(key="k"))
    first = running(store, clock, unique=Unique(key="k"))
    store.settle("w1", [fail(first, ERROR)], now=clock.now)
    [second] = store.enqueue([keyed], now=clock.now)
    assert second.created
    before = database.snapshot()
    with pytest.raises(KeyTaken, match=f"job {second.id}"):
        store.replay(first.id, now=clock.now)
    assert database.snapshot() == before
    store.cancel(second.id, now=clock.now)
    assert store.replay(first.id, now=clock.now)
    assert store.enqueue([keyed], now=clock.now) == [Enqueued(first.id, created=False)]


@rule("enqueue-repeat")
def test_an_enqueue_repeated_after_an_unanswered_commit_adds_no_second_job(
    pg: Store, pg_sql: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try landed, and a worker has finished its job before the repeat: the insert meets
    no row that it could collide with, so it must look into history afterwards.

    Seen failing without that look: the job was in history and, with the same id, live again.
    """
    [warm] = add(pg, clock, queue="other")  # ids are drawn now; the next COMMIT is the enqueue's

    def finish() -> None:
        job = claim_one(pg, clock)
        pg.settle("w1", [succeed(job)], now=clock.now)

    lose_the_answer_to_a_commit(monkeypatch, finish)
    [added] = pg.enqueue(new_jobs(1), now=clock.now)
    assert added == Enqueued(warm + 1)
    assert pg_sql.count("history", f"id = {added.id}") == 1
    assert pg_sql.count("job", f"id = {added.id}") == 0
    assert claim_jobs(pg, clock) == []


def test_a_repeat_that_meets_a_lock_does_not_say_that_nothing_was_kept(
    pg: Store,
    pg_sql: Database,
    pg_migrated_url: str,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first try landed, its answer got lost, and somebody locks the table before the repeat."""
    [warm] = add(pg, clock, queue="other")
    with psycopg.connect(pg_migrated_url) as other:
        lose_the_answer_to_a_commit(
            monkeypatch, lambda: other.execute("lock table tenure.job in exclusive mode")
        )
        with pytest.raises(OutcomeUnknown, match="may have been kept") as raised:
            pg.enqueue(new_jobs(1), now=clock.now)
    assert isinstance(raised.value.__cause__, psycopg.errors.LockNotAvailable)
    assert pg_sql.count("job", f"id = {warm + 1}") == 1


@rule("enqueue-compare")
def test_a_repeated_enqueue_takes_no_strangers_row_for_its_own(
    pg: Store, pg_sql: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover the sequence may have issued our id to somebody else.

    Seen failing without the comparison: the stranger's job was answered as ours, and ours was lost.
    """
    add(pg, clock, queue="other")
    lose_the_answer_to_a_commit(
        monkeypatch,
        lambda: pg_sql.rows("update tenure.job set task = 'app.other' where queue = 'default'"),
    )
    with pytest.raises(StoreBusy, match="issued twice"):
        pg.enqueue(new_jobs(1), now=clock.now)


@rule("keys-not-null")
@pytest.mark.parametrize("column", ["tenant", "scope", "key", "job_id"])
def test_no_part_of_a_unique_key_can_be_null(database: Database, column: str) -> None:
    """Nulls are all different from each other: a key with one in it is not unique.

    Seen failing with a nullable column under a plain unique index: both rows were accepted.
    """
    values = {"tenant": "''", "scope": "'s'", "key": "'k'", "job_id": "1"} | {column: "null"}
    insert = (
        f"insert into tenure.unique_key ({', '.join(values)}, until, fingerprint) "
        f"values ({', '.join(values.values())}, 'finished', '')"
    )
    with pytest.raises(
        (psycopg.errors.NotNullViolation, apsw.ConstraintError, _sqlite_integrity())
    ):
        database.rows(insert)


def _sqlite_integrity() -> Any:
    import sqlite3

    return sqlite3.IntegrityError


@rule("key-mine")
def test_a_job_gives_back_no_key_that_another_holds(store: Store, clock: Clock) -> None:
    """Seen failing with the holder taken out of `release_keys`: the end of the first job freed the
    key of the second, and a third was created beside it."""
    unique = Unique(key="k", until=Until.STARTED)
    first = running(store, clock, unique=unique)
    [second] = store.enqueue(new_jobs(1, unique=unique), now=clock.now)
    store.settle("w1", [succeed(first)], now=clock.now)
    [third] = store.enqueue(new_jobs(1, unique=unique), now=clock.now)
    assert third == Enqueued(second.id, created=False)


@rule("late-heartbeat")
def test_a_heartbeat_after_the_deadline_revives_nothing(store: Store, clock: Clock) -> None:
    """Seen failing with the deadline taken out of `extend`: the lease lived on."""
    job = running(store, clock)
    assert store.extend("w1", {job.lease_id: []}, now=clock.advance(30)).lost == (job.lease_id,)
    assert store.sweep(now=clock.now).requeued == 1


@rule("skip-locked")
def test_a_claim_waits_for_nobody(pg: Store, clock: Clock, pg_migrated_url: str) -> None:
    """Seen failing with `skip locked` taken out of the claim: it gave up after waiting with
    `StoreBusy`."""
    first, second = add(pg, clock, 2)
    with psycopg.connect(pg_migrated_url) as user:
        user.execute(f"select from tenure.ready where job_id = {first} for update")
        assert [job.id for job in claim_jobs(pg, clock)] == [second]


@rule("token-grows")
def test_every_time_a_job_is_put_in_line_its_token_grows(store: Store, clock: Clock) -> None:
    """Retry, snooze, release, sweep, move and hold; a replay too, see above.

    Seen failing with the token kept by `add_tickets`: leases of attempts that had ended were swept
    again, until the job was out of attempts; on SQLite it got no ticket at all.
    """
    job = running(store, clock)
    tokens = [job.token]
    for end in (lambda job: retry(job, ERROR, 0.0), lambda job: snooze(job, 0.0), release):
        store.settle("w1", [end(job)], now=clock.now)
        job = claim_one(store, clock)
        tokens.append(job.token)
    expire(store, clock)
    tokens.append(store.get(job.id).token)
    store.move(job.id, priority=3, now=clock.now)
    tokens.append(store.get(job.id).token)
    store.hold(job.id, now=clock.now)
    store.unhold(job.id, now=clock.now)
    tokens.append(store.get(job.id).token)
    assert tokens == sorted(set(tokens))


def test_a_checkpoint_of_a_job_that_was_swept_stays_for_the_next_attempt(
    store: Store, clock: Clock
) -> None:
    """What is fenced is the writing; what was written under a valid lease is kept."""
    job = running(store, clock)
    store.save_checkpoint("w1", job, encode({"at": 5}), now=clock.now)
    expire(store, clock)
    assert store.progress(claim_one(store, clock, "w2").id).checkpoint == '{"at":5}'
