"""The checker can fail: each forged history breaks one invariant, and the checker names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tenure.testing.recorder import Begun, Ended, Key, Started
from tests.crash.forger import LEASE_SECONDS, PIDS, Forger
from tests.support.books import Books, Expected, Violation
from tests.support.history import add_process
from tests.support.invariants import violations

KEY = Key("", "app.once", "k", "finished")


def found(forger: Forger, **expected: Any) -> set[str]:
    """The names of what is wrong."""
    books = Books(forger.records, forger.final)
    return {violation.name for violation in violations(books, Expected(**expected))}


def lost_job(f: Forger) -> None:
    f.happy(1)
    f.enqueue(2)


def job_twice(f: Forger) -> None:
    f.happy(1)
    f.row(1)


def ghost(f: Forger) -> None:
    f.claim(1)
    f.run(1)
    f.settle(1)
    f.row(1)


def run_without_a_claim(f: Forger) -> None:
    f.happy(1)
    f.run(1, 1, "w2")
    f.records.runs.pop(0)


def token_granted_twice(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1, lease=7)
    f.claim(1, worker="w2", lease=8)
    f.run(1)
    f.settle(1)
    f.row(1)


def token_fell(f: Forger) -> None:
    f.enqueue(1)
    f.event(1, 1, "moved", None)
    f.event(1, 2, "moved", None)
    f.claim(1, 3)
    f.settle(1, 3, outcome="release")
    f.event(1, 3, "released")
    f.claim(1, 2, "w2")
    f.row(1, 4, "live", attempts=0)


def token_of_the_row_fell(f: Forger) -> None:
    f.recovered(1)
    f.final.jobs.clear()
    f.row(1, 1, crashes=1)


def two_valid_leases(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.wait(LEASE_SECONDS - 10)
    f.extend(101)
    f.wait(15)
    f.claim(1, 2, "w2")
    f.settle(1, 2, "w2")
    f.wait(LEASE_SECONDS)
    f.event(1, 1, "crashed", charged=True)
    f.row(1, 2, attempts=2, crashes=1)


def swept_early(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.wait(LEASE_SECONDS - 5)
    f.extend(101)
    f.wait(10)
    f.event(1, 1, "crashed", charged=True)
    f.row(1, 2, "live", crashes=1)


def stale_write_landed(f: Forger) -> None:
    f.crashed(1)
    f.write("save_checkpoint", 1, 1, answer="landed")
    f.settle(1, 2, "w2")
    f.row(1, 2, attempts=2, crashes=1)


def stale_settlement_landed(f: Forger) -> None:
    f.crashed(1)
    f.settle(1, 1)
    f.settle(1, 2, "w2", answer="stale")
    f.row(1, 2, attempts=2, crashes=1)


def settled_twice(f: Forger) -> None:
    f.happy(1)
    f.settle(1, worker="w2")


def settled_twice_on_record(f: Forger) -> None:
    f.crashed(1)
    f.event(1, 1, "retried")
    f.row(1, 2, "live", attempts=2, crashes=1)


def crash_and_end_at_two_times(f: Forger) -> None:
    f.crashed(1)
    f.now -= 1
    f.event(1, 1, "cancelled")
    f.replay(1, 2)
    f.row(1, 2, "live", attempts=0)


def effect_missing(f: Forger) -> None:
    f.happy(1)


def effect_twice(f: Forger) -> None:
    f.happy(1)


def effect_without_success(f: Forger) -> None:
    f.happy(1)
    f.enqueue(2)
    f.row(2, state="live", attempts=0)


def run_twice(f: Forger) -> None:
    f.happy(1)
    f.run(1)


def unexplained_run(f: Forger) -> None:
    f.recovered(1)
    f.final.events.clear()
    f.final.jobs.clear()
    f.row(1, 2)


def unexplained_crash(f: Forger) -> None:
    f.recovered(1)


def end_lost(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.settle(1)
    f.row(1, state="live", attempts=0)


def end_overruled(f: Forger) -> None:
    f.happy(1)
    f.final.jobs.clear()
    f.row(1, state="failed")


def end_undone_by_a_sweep(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.settle(1)
    f.wait(LEASE_SECONDS)
    f.event(1, 1, "crashed", charged=True)
    f.row(1, 2, "live", crashes=1)


def rose_from_the_dead(f: Forger) -> None:
    f.crashed(1)
    f.settle(1, 2, "w2", answer=None)
    f.row(1, 2, attempts=2, crashes=1)
    f.wait(LEASE_SECONDS)
    f.claim(1, 2, "w1", lease=9)


def too_many_attempts(f: Forger) -> None:
    f.happy(1)
    f.final.jobs.clear()
    f.row(1, attempts=2, max_attempts=1)


def attempts_do_not_add_up(f: Forger) -> None:
    f.crashed(1, charged=False)
    f.settle(1, 2, "w2")
    f.row(1, 2, attempts=2, crashes=1)


def crashes_do_not_add_up(f: Forger) -> None:
    f.crashed(1)
    f.settle(1, 2, "w2")
    f.row(1, 2, attempts=2, crashes=2)


def failed_without_a_run(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.wait(LEASE_SECONDS)
    f.event(1, 1, "crashed", charged=True)
    f.row(1, 1, "failed", crashes=1, max_attempts=1)


def key_held_twice(f: Forger) -> None:
    f.enqueue(1, key=KEY)
    f.enqueue(2, key=KEY)
    f.row(1, state="cancelled", attempts=0, key=KEY)
    f.row(2, state="cancelled", attempts=0, key=KEY)


def key_held_twice_unheard(f: Forger) -> None:
    f.enqueue(1, key=KEY)
    f.enqueue(2, key=KEY, answered=False)
    f.claim(2)
    f.row(1, state="cancelled", attempts=0, key=KEY)
    f.run(2)
    f.settle(2)
    f.row(2, key=KEY, created_at=1002.0)


def key_held_twice_for_a_moment(f: Forger) -> None:
    f.enqueue(1, key=KEY)
    f.row(1, state="cancelled", attempts=0, key=KEY, created_at=1001.0)
    f.enqueue(2, key=KEY)
    f.row(2, state="cancelled", attempts=0, key=KEY, created_at=1001.5)


def key_taken_by_a_replay(f: Forger) -> None:
    f.happy(1, key=KEY)
    f.event(1, 1, "succeeded")
    f.final.jobs.clear()
    f.enqueue(2, key=KEY)
    created_at = f.now
    f.replay(1, 2)
    f.row(2, state="cancelled", attempts=0, key=KEY, created_at=created_at)
    f.row(1, 2, state="cancelled", attempts=0, key=KEY)


def replayed_by_nobody(f: Forger) -> None:
    replayed(f)
    f.records.calls = [call for call in f.records.calls if call.sent.op != "replay"]


def replayed_before_anybody_asked(f: Forger) -> None:
    replayed(f)
    [asked] = f.records.of("replay")
    asked.sent.mono += 1


def end_without_a_settlement(f: Forger) -> None:
    f.happy(1)
    f.records.calls.pop()


def backlog_left(f: Forger) -> None:
    f.enqueue(1)
    f.row(1, state="live", attempts=0)


def late_recovery(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.wait(LEASE_SECONDS + 5)
    f.event(1, 1, "crashed", charged=True)
    f.claim(1, 2, "w2")
    f.settle(1, 2, "w2")
    f.row(1, 2, attempts=2, crashes=1)


def landed_and_denied(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.settle(1, outcome="retry", answer="unknown")
    f.event(1, 1, "retried")
    f.settle(1, outcome="retry", answer="stale")
    f.claim(1, 2, "w2")
    f.run(1, 2, "w2")
    f.settle(1, 2, "w2")
    f.row(1, 2, attempts=2)


def cancelled_and_handed_out(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.event(1, 1, "cancel requested", None)
    f.settle(1, outcome="retry")
    f.event(1, 1, "retried")
    f.claim(1, 2, "w2")
    f.run(1, 2, "w2")
    f.settle(1, 2, "w2")
    f.row(1, 2, attempts=2)


def cancelled_and_put_in_line(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.event(1, 1, "cancel requested", None)
    f.settle(1, outcome="snooze")
    f.event(1, 1, "snoozed")
    f.row(1, 2, "live", attempts=0)


def crash_not_charged(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.extend(101)
    f.wait(LEASE_SECONDS - 0.5)
    f.event(1, 1, "crashed", charged=False)
    f.claim(1, 2, "w2")
    f.settle(1, 2, "w2")
    f.row(1, 2, attempts=1, crashes=1)


def swept_late(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.wait(LEASE_SECONDS + 5)
    f.event(1, 1, "crashed", charged=True)
    f.claim(1, 2, "w2")
    f.settle(1, 2, "w2")
    f.row(1, 2, attempts=2, crashes=1)


def failed_unstarted_in_a_block(f: Forger) -> None:
    f.enqueue(1, 2)
    f.claim_block(1, 2)
    f.wait(LEASE_SECONDS)
    f.event(1, 1, "crashed", charged=True)
    f.event(2, 1, "crashed", charged=False)
    f.row(1, 1, "failed", crashes=1, max_attempts=1)
    f.row(2, 2, "live", attempts=0, crashes=1)


Forgery = Callable[[Forger], None]

FORGERIES: list[tuple[Forgery, str, Mapping[str, Any]]] = [
    (lost_job, "lost job", {}),
    (job_twice, "job twice", {}),
    (ghost, "ghost", {}),
    (run_without_a_claim, "run without a claim", {}),
    (token_granted_twice, "token granted twice", {}),
    (token_fell, "token fell", {"drained": False}),
    (token_of_the_row_fell, "token fell", {}),
    (two_valid_leases, "two valid leases", {}),
    (swept_early, "swept early", {"drained": False}),
    (stale_write_landed, "stale write landed", {}),
    (stale_settlement_landed, "stale write landed", {}),
    (settled_twice, "settled twice", {}),
    (settled_twice_on_record, "settled twice", {"drained": False}),
    (effect_missing, "effect missing", {"effects": {}}),
    (effect_twice, "effect twice", {"effects": {1: 2}}),
    (effect_without_success, "effect without success", {"effects": {1: 1, 2: 1}, "drained": False}),
    (run_twice, "run twice", {}),
    (unexplained_run, "unexplained run", {}),
    (unexplained_crash, "unexplained crash", {"disturbed": {PIDS["w2"]}}),
    (end_without_a_settlement, "end without a settlement", {}),
    (end_lost, "end lost", {"drained": False}),
    (end_overruled, "end lost", {}),
    (end_undone_by_a_sweep, "end lost", {"drained": False}),
    (rose_from_the_dead, "rose from the dead", {}),
    (too_many_attempts, "too many attempts", {}),
    (attempts_do_not_add_up, "attempts do not add up", {}),
    (crashes_do_not_add_up, "crashes do not add up", {}),
    (failed_without_a_run, "failed without a run", {}),
    (key_held_twice, "key held twice", {}),
    (key_held_twice_unheard, "key held twice", {}),
    (key_held_twice_for_a_moment, "key held twice", {"atomic": True}),
    (key_taken_by_a_replay, "key held twice", {}),
    (replayed_by_nobody, "replayed by nobody", {}),
    (replayed_before_anybody_asked, "replayed by nobody", {"atomic": True}),
    (backlog_left, "backlog left", {}),
    (late_recovery, "late recovery", {"recovery_seconds": 2.0}),
    (crash_and_end_at_two_times, "settled twice", {"drained": False}),
    (landed_and_denied, "landed and denied", {}),
    (cancelled_and_handed_out, "cancelled and handed out", {}),
    (cancelled_and_put_in_line, "cancelled and put in line", {"drained": False}),
    (crash_not_charged, "crash not charged", {}),
    (swept_late, "swept late", {"swept_seconds": 2.0}),
    (
        failed_unstarted_in_a_block,
        "failed without a run",
        {"alone": {(2, 1)}, "drained": False},
    ),
]

ALSO: Mapping[Forgery, set[str]] = {
    cancelled_and_handed_out: {"cancelled and handed out", "cancelled and put in line"},
    token_granted_twice: {"token granted twice"},
    settled_twice: {"settled twice"},
    token_of_the_row_fell: {"token fell", "end lost", "end without a settlement"},
    too_many_attempts: {"too many attempts", "attempts do not add up"},
    stale_settlement_landed: {"stale write landed", "end lost", "end without a settlement"},
    rose_from_the_dead: {"rose from the dead", "token granted twice"},
    settled_twice_on_record: {"settled twice"},
}
"""What else is wrong in these, because one lie calls for another."""


@pytest.mark.parametrize(
    ("forgery", "name", "expected"), FORGERIES, ids=[forgery.__name__ for forgery, *_ in FORGERIES]
)
def test_a_forged_history_is_found_out(
    forgery: Forgery, name: str, expected: Mapping[str, Any]
) -> None:
    forger = Forger()
    forgery(forger)
    assert found(forger, **expected) == ALSO.get(forgery, {name})


def test_a_handler_that_starts_twice_in_one_process_is_found_out() -> None:
    forger = Forger()
    forger.happy(1)
    pid, [run] = PIDS["w1"], forger.records.runs
    forger.records.runs.clear()
    started = Started(id=1, token=1, worker="w1", mono=run.began)
    again = Started(id=1, token=1, worker="w1", mono=run.began)
    ended = Ended(id=1, token=1, worker="w1", mono=run.ended)
    add_process(forger.records, [Begun(pid=pid), started, again, ended])
    assert found(forger) == {"run twice"}


def test_a_violation_says_what_it_is_about() -> None:
    text = str(Violation(4, "settled twice", 7, "token 3 by w1, w2"))
    assert text == "settled twice (invariant 4): job 7: token 3 by w1, w2"


def happy(f: Forger) -> None:
    f.happy(1)
    f.happy(2)


def recovered(f: Forger) -> None:
    f.recovered(1)


def an_answer_is_missing(f: Forger) -> None:
    f.enqueue(1, answered=False)
    f.claim(1)
    f.run(1)
    f.settle(1, answer=None)
    f.row(1)


def a_repeat_of_an_unanswered_settlement(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.settle(1, outcome="retry", answer="unknown")
    f.event(1, 1, "retried")
    f.claim(1, 2, "w2")
    f.settle(1, outcome="retry")
    f.run(1, 2, "w2")
    f.settle(1, 2, "w2")
    f.row(1, 2, attempts=2)


def a_late_worker_is_refused(f: Forger) -> None:
    f.crashed(1)
    f.extend(101, lost=True)
    f.write("report_progress", 1, 1, answer="stale")
    f.settle(1, answer="stale")
    f.run(1, 2, "w2")
    f.settle(1, 2, "w2")
    f.row(1, 2, attempts=2, crashes=1)


def completed_in_a_transaction_that_rolled_back(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.settle(1, on=True)
    f.settle(1, outcome="retry")
    f.event(1, 1, "retried")
    f.claim(1, 2)
    f.run(1, 2)
    f.settle(1, 2, on=True)
    f.row(1, 2, attempts=2)


def a_claim_that_nobody_heard_of(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1, worker="w2", answered=False)
    f.wait(LEASE_SECONDS)
    f.event(1, 1, "crashed", "w2", charged=True)
    f.claim(1, 2)
    f.run(1, 2)
    f.settle(1, 2)
    f.row(1, 2, attempts=2, crashes=1)


def replayed(f: Forger) -> None:
    f.happy(1)
    f.final.jobs.clear()
    f.event(1, 1, "succeeded")
    f.replay(1, 2)
    f.claim(1, 2)
    f.run(1, 2)
    f.settle(1, 2)
    f.row(1, 2)


def a_key_is_used_again(f: Forger) -> None:
    f.enqueue(1, key=KEY)
    f.row(1, state="cancelled", attempts=0, key=KEY)
    f.enqueue(1, created=False, key=KEY)
    f.enqueue(2, key=KEY)
    f.row(2, state="cancelled", attempts=0, key=KEY, created_at=f.now)


def a_key_is_taken_while_its_taker_waits(f: Forger) -> None:
    f.enqueue(1, key=KEY)
    f.row(1, state="cancelled", attempts=0, key=KEY)
    f.enqueue(2, key=KEY)
    f.row(2, state="cancelled", attempts=0, key=KEY, created_at=1001.5)


def a_key_is_taken_again_by_a_replay(f: Forger) -> None:
    f.happy(1, key=KEY)
    f.event(1, 1, "succeeded")
    f.final.jobs.clear()
    f.enqueue(2, key=KEY)
    f.row(2, state="cancelled", attempts=0, key=KEY, created_at=f.now)
    f.replay(1, 2)
    f.row(1, 2, state="cancelled", attempts=0, key=KEY)


def a_crash_that_ended_a_job_is_replayed(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.wait(LEASE_SECONDS - 1.5)
    f.event(1, 1, "crashed", charged=True)
    f.now -= 1  # it is one moment
    f.event(1, 1, "cancelled")
    f.replay(1, 2)
    f.now -= 1  # soon after the crash
    f.claim(1, 2, "w2")
    f.run(1, 2, "w2")
    f.settle(1, 2, "w2")
    f.row(1, 2)


def a_worker_dies_before_it_starts_a_job(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.wait(LEASE_SECONDS)
    f.event(1, 1, "crashed", charged=True)
    f.row(1, 1, "failed", crashes=1, max_attempts=1)


@pytest.mark.parametrize(
    "story",
    [
        happy,
        recovered,
        an_answer_is_missing,
        a_repeat_of_an_unanswered_settlement,
        a_late_worker_is_refused,
        completed_in_a_transaction_that_rolled_back,
        a_claim_that_nobody_heard_of,
        replayed,
        a_key_is_used_again,
        a_key_is_taken_while_its_taker_waits,
        a_key_is_taken_again_by_a_replay,
        a_crash_that_ended_a_job_is_replayed,
        a_worker_dies_before_it_starts_a_job,
    ],
)
def test_a_true_story_passes(story: Forgery) -> None:
    forger = Forger()
    story(forger)
    known = {"disturbed": {PIDS["w1"]}, "recovery_seconds": 2.0, "alone": {(1, 1)}}
    assert found(forger, **known) == set()
