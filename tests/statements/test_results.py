"""Results: statements 51, 52 and 55 to 57, 59. (53 and 54 are about files, 58 about waiting.)"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tenure.errors import PayloadInvalid, TenureError
from tenure.rules.codec import decode, encode
from tenure.rules.job import Json, State
from tenure.rules.lifecycle import Outcome, fail, retry, succeed
from tenure.store import LANDED, STALE, Store
from tests.statements.conftest import Opener
from tests.statements.support import (
    ERROR,
    SETTLEMENTS,
    Background,
    Database,
    Held,
    add,
    claim_jobs,
    claim_one,
    defect,
    expire,
    new_jobs,
    running,
    statement,
)
from tests.support.stores import Clock


@statement(51)
def test_only_the_holder_of_the_lease_writes_the_result(store: Store, clock: Clock) -> None:
    """A loser that finishes before or after the winner leaves no trace in the result."""
    loser = running(store, clock, "loser")
    expire(store, clock)
    winner = claim_one(store, clock, "winner")
    late = succeed(loser, encode("loser's"))
    assert store.settle("loser", [late], now=clock.now) == [STALE]
    assert store.get(loser.id).result is None
    assert store.settle("winner", [succeed(winner, encode("winner's"))], now=clock.now) == [LANDED]
    assert store.settle("loser", [late], now=clock.now) == [STALE]
    assert store.get(loser.id).result == '"winner\'s"'


@statement(52)
def test_whoever_sees_success_finds_the_whole_result(open_shared: Opener) -> None:
    """A reader that looks as fast as it can never sees a succeeded job without its result."""
    writer, reader = open_shared(), open_shared()
    result = "x" * 50_000
    ids = [answer.id for answer in writer.enqueue(new_jobs(30))]
    [lease] = writer.claim("w1", {"default": 30})
    ended = threading.Event()

    def read() -> set[tuple[State, bool]]:
        seen = set()
        while not ended.is_set():
            for id in ids:
                job = reader.get(id)
                seen.add((job.state, job.result == f'"{result}"'))
        return seen

    reading = Background(read)
    for job in lease.jobs:
        writer.settle("w1", [succeed(job, encode(result))])
    ended.set()
    assert reading.result() <= {(State.RUNNING, False), (State.SUCCEEDED, True)}
    assert {reader.get(id).result for id in ids} == {f'"{result}"'}


@statement(55)
def test_the_result_and_the_success_are_one_row_in_one_transaction(
    pg: Store, clock: Clock, hold: Callable[[], Held]
) -> None:
    """Before the COMMIT neither is there, whatever the worker has sent; after it both are."""
    job = running(pg, clock)
    settling = hold()
    pg.settle("w1", [succeed(job, encode("out"))], on=settling.connection, now=clock.now)
    seen = pg.get(job.id)
    assert (seen.state, seen.result) == (State.RUNNING, None)
    settling.commit()
    seen = pg.get(job.id)
    assert (seen.state, seen.result) == (State.SUCCEEDED, '"out"')


@statement(55)
def test_a_result_that_cannot_be_stored_is_no_success(
    store: Store, clock: Clock, database: Database
) -> None:
    """The success is not recorded without its output, and the rest of the batch is unharmed."""
    add(store, clock, 3)
    first, bad, last = claim_jobs(store, clock)
    # Not JSON at all: something that the codec would never have let through.
    settlements = [succeed(first), succeed(bad, Json(b"1e5x")), succeed(last)]
    answers = store.settle("w1", settlements, now=clock.now)
    assert [answer.landed for answer in answers] == [True, False, True]
    assert not answers[1].stale
    assert store.get(bad.id).state is State.RUNNING
    assert database.count("history") == 2


@statement(56)
def test_a_checkpoint_is_written_by_the_holder_alone_and_read_by_the_next_attempt(
    store: Store, clock: Clock
) -> None:
    """The former owner cannot overwrite what the present one goes on from."""
    old = running(store, clock, "old")
    assert store.save_checkpoint("old", old, encode({"step": 1}), now=clock.now) == LANDED
    expire(store, clock)
    new = claim_one(store, clock, "new")
    assert store.progress(new.id).checkpoint == '{"step":1}'
    assert store.save_checkpoint("new", new, encode({"step": 2}), now=clock.now) == LANDED
    assert store.save_checkpoint("old", old, encode({"step": 9}), now=clock.now) == STALE
    assert store.progress(new.id).checkpoint == '{"step":2}'


@statement(56)
@pytest.mark.parametrize("damaged", ["", "{", '{"step": 1', "nonsense", '{"step":1}{}'])
def test_a_damaged_checkpoint_fails_loudly(damaged: str) -> None:
    """It is refused, and not taken for the beginning."""
    with pytest.raises(PayloadInvalid):
        decode(damaged, dict)


@statement(57)
def test_a_retry_leaves_no_final_record_and_every_end_leaves_one(
    store: Store, clock: Clock, database: Database
) -> None:
    """Whichever path ended the job, worker, sweep or operator, there is one row in history; an
    attempt that will be followed by another leaves none."""
    lives: dict[Outcome, int] = {}
    for outcome in Outcome:
        job = running(store, clock)
        store.settle("w1", [SETTLEMENTS[outcome](job)], now=clock.now)
        lives[outcome] = job.id
        if outcome is Outcome.RELEASE:
            assert store.cancel(job.id, now=clock.now) is State.CANCELLED
    transient = {Outcome.RETRY, Outcome.SNOOZE}
    recorded = {row[0] for row in database.rows("select id from tenure.history")}
    assert recorded == {id for outcome, id in lives.items() if outcome not in transient}
    lost = running(store, clock, max_attempts=1)
    expire(store, clock)
    last = running(store, clock, max_attempts=1)
    store.settle("w1", [retry(last, ERROR, 5.0)], now=clock.now)
    assert database.count("history", f"id in ({lost.id}, {last.id})") == 2


@statement(59)
@pytest.mark.parametrize("what", ["progress", "checkpoint"])
def test_failing_to_store_something_on_the_side_does_not_change_how_the_job_ends(
    store: Store, clock: Clock, database: Database, what: str
) -> None:
    """Progress and checkpoints may fail; the job is still held, and its success still lands."""
    job = running(store, clock)
    database.break_inserts("note")
    write: dict[str, Callable[[], object]] = {
        "progress": lambda: store.report_progress("w1", [(job, 0.5, None)], now=clock.now),
        "checkpoint": lambda: store.save_checkpoint("w1", job, encode(1), now=clock.now),
    }
    with pytest.raises(TenureError, match="refused by the test"):
        write[what]()
    assert store.get(job.id).state is State.RUNNING
    assert store.settle("w1", [succeed(job, encode("out"))], now=clock.now) == [LANDED]
    assert store.get(job.id).result == '"out"'


@defect("J-8")
def test_a_failure_keeps_what_was_known_of_the_attempt(store: Store, clock: Clock) -> None:
    """Times, worker, progress and error have places of their own; none overwrites another."""
    job = running(store, clock)
    created, claimed = store.get(job.id).created_at, store.get(job.id).claimed_at
    store.report_progress("w1", [(job, 0.25, "loading")], now=clock.advance(1))
    store.settle("w1", [fail(job, ERROR, duration_seconds=2.5)], now=clock.advance(1))
    seen, note = store.get(job.id), store.progress(job.id)
    assert (seen.created_at, seen.claimed_at, seen.finished_at) == (created, claimed, clock.now)
    assert (seen.worker, seen.duration_seconds, seen.error) == ("w1", 2.5, ERROR.decode())
    assert (note.fraction, note.message) == (0.25, "loading")
