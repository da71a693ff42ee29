"""What becomes of a job when an attempt ends: every outcome, cancelled or not, last or not."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest

from tenure.errors import OutOfRange
from tenure.rules import lifecycle
from tenure.rules.codec import encode
from tenure.rules.job import FINAL_STATES, State, When
from tenure.rules.lifecycle import (
    TRANSITIONS,
    Ends,
    Move,
    Outcome,
    Settlement,
    Standing,
    after_crash,
    after_parents,
    after_settlement,
    is_last_attempt,
)


class Held(NamedTuple):
    """What a worker presents."""

    id: int = 7
    token: int = 3
    lease_id: int = 11


ERROR = encode({"type": "ValueError"})
DELAY = 12.5
FRESH, LAST = Standing(0, 3, False), Standing(2, 3, False)
FRESH_FLAGGED, LAST_FLAGGED = Standing(0, 3, True), Standing(2, 3, True)
STANDINGS = (FRESH, LAST, FRESH_FLAGGED, LAST_FLAGGED)

SETTLEMENTS: dict[Outcome, Settlement] = {
    Outcome.SUCCEED: lifecycle.succeed(Held(), encode(1)),
    Outcome.RETRY: lifecycle.retry(Held(), ERROR, DELAY),
    Outcome.FAIL: lifecycle.fail(Held(), ERROR),
    Outcome.SNOOZE: lifecycle.snooze(Held(), DELAY),
    Outcome.RELEASE: lifecycle.release(Held()),
    Outcome.ABORT: lifecycle.abort(Held()),
    Outcome.SKIP: lifecycle.skip(Held()),
}

SUCCEEDED = Move(State.SUCCEEDED, charged=True)
FAILED = Move(State.FAILED, charged=True, reason="error")
SKIPPED = Move(State.SKIPPED, charged=True, reason="skipped")
ABORTED = Move(State.CANCELLED, reason="cancelled")
CHARGED_CANCEL = Move(State.CANCELLED, charged=True, reason="cancelled")
AGAIN = Move(State.SCHEDULED, charged=True, delay_seconds=DELAY, reason="error")
SNOOZED = Move(State.SCHEDULED, delay_seconds=DELAY, reason="snoozed")
RELEASED = Move(State.QUEUED, reason="shutdown")

# Columns: attempts left, last attempt, cancel requested, cancel requested in the last attempt.
EXPECTED: dict[Outcome, tuple[Move, Move, Move, Move]] = {
    Outcome.SUCCEED: (SUCCEEDED, SUCCEEDED, SUCCEEDED, SUCCEEDED),
    Outcome.RETRY: (AGAIN, FAILED, CHARGED_CANCEL, CHARGED_CANCEL),
    Outcome.FAIL: (FAILED, FAILED, FAILED, FAILED),
    Outcome.SNOOZE: (SNOOZED, SNOOZED, ABORTED, ABORTED),
    Outcome.RELEASE: (RELEASED, RELEASED, ABORTED, ABORTED),
    Outcome.ABORT: (ABORTED, ABORTED, ABORTED, ABORTED),
    Outcome.SKIP: (SKIPPED, SKIPPED, SKIPPED, SKIPPED),
}


def test_the_expectations_name_every_outcome() -> None:
    assert set(EXPECTED) == set(SETTLEMENTS) == set(Outcome)


@pytest.mark.parametrize("outcome", Outcome)
def test_each_outcome_leads_where_the_table_of_this_test_says(outcome: Outcome) -> None:
    moves = tuple(after_settlement(standing, SETTLEMENTS[outcome]) for standing in STANDINGS)
    assert moves == EXPECTED[outcome]


@pytest.mark.parametrize(("outcome", "standing"), list(product(Outcome, STANDINGS)))
def test_each_outcome_stays_within_the_targets_of_its_transition(
    outcome: Outcome, standing: Standing
) -> None:
    move = after_settlement(standing, SETTLEMENTS[outcome])
    assert move.to in TRANSITIONS[outcome].targets


def test_without_a_delay_a_job_goes_back_in_line_at_once() -> None:
    assert after_settlement(FRESH, lifecycle.retry(Held(), ERROR, 0)).to is State.QUEUED
    assert after_settlement(FRESH, lifecycle.snooze(Held(), 0)).to is State.QUEUED


def test_a_release_may_wait_before_it_is_tried_again() -> None:
    move = after_settlement(FRESH, lifecycle.release(Held(), "no handler", 5))
    assert move == Move(State.SCHEDULED, delay_seconds=5, reason="no handler")


def test_only_finished_and_failed_attempts_are_charged() -> None:
    charged = {o for o in Outcome if after_settlement(FRESH, SETTLEMENTS[o]).charged}
    assert charged == {Outcome.SUCCEED, Outcome.RETRY, Outcome.FAIL, Outcome.SKIP}


@pytest.mark.parametrize(
    ("standing", "charged", "expected"),
    [
        (FRESH, True, Move(State.QUEUED, charged=True, reason="lease lost")),
        (FRESH, False, Move(State.QUEUED, reason="lease lost")),
        (LAST, True, Move(State.FAILED, charged=True, reason="lease lost")),
        (LAST, False, Move(State.QUEUED, reason="lease lost")),
        (FRESH_FLAGGED, True, CHARGED_CANCEL),
        (FRESH_FLAGGED, False, ABORTED),
        (LAST_FLAGGED, True, CHARGED_CANCEL),
        (LAST_FLAGGED, False, ABORTED),
    ],
)
def test_a_crash_leads_where_it_should(standing: Standing, charged: bool, expected: Move) -> None:
    move = after_crash(standing, charged=charged)
    assert move == expected
    assert move.to in TRANSITIONS["sweep"].targets


@pytest.mark.parametrize(("attempts", "most"), list(product(range(6), range(1, 6))))
def test_the_boundary_is_the_same_on_the_error_path_and_on_the_crash_path(
    attempts: int, most: int
) -> None:
    standing = Standing(attempts, most, False)
    error = after_settlement(standing, SETTLEMENTS[Outcome.RETRY])
    crash = after_crash(standing, charged=True)
    assert (error.to is State.FAILED) == (crash.to is State.FAILED)
    assert (crash.to is State.FAILED) == is_last_attempt(attempts, most) == (attempts + 1 >= most)


def test_an_uncharged_crash_never_fails_a_job() -> None:
    standings = [Standing(attempts, 3, False) for attempts in range(10)]
    assert {after_crash(standing, charged=False).to for standing in standings} == {State.QUEUED}


RUN = Move(State.QUEUED, reason="parents finished")
LOST = Move(State.SKIPPED, reason="a parent did not succeed")
NO_SUCCESS = Move(State.SKIPPED, reason="no parent succeeded")
NO_FAILURE = Move(State.SKIPPED, reason="no parent failed")

# By what the parents have come to: (still at work, succeeded, failed, ended otherwise).
RULES: dict[When, dict[str, Move | None]] = {
    When.ALL_SUCCEEDED: {
        "w": None, "ws": None, "wf": None, "wsf": None, "wo": None,
        "s": RUN, "f": LOST, "sf": LOST, "o": LOST, "so": LOST, "": RUN,
    },
    When.ALL_FINISHED: {
        "w": None, "ws": None, "wf": None, "wsf": None, "wo": None,
        "s": RUN, "f": RUN, "sf": RUN, "o": RUN, "so": RUN, "": RUN,
    },
    When.ANY_SUCCEEDED: {
        "w": None, "ws": RUN, "wf": None, "wsf": RUN, "wo": None,
        "s": RUN, "f": NO_SUCCESS, "sf": RUN, "o": NO_SUCCESS, "so": RUN, "": NO_SUCCESS,
    },
    When.ANY_FAILED: {
        "w": None, "ws": None, "wf": RUN, "wsf": RUN, "wo": None,
        "s": NO_FAILURE, "f": RUN, "sf": RUN, "o": NO_FAILURE, "so": NO_FAILURE, "": NO_FAILURE,
    },
}  # fmt: skip


@pytest.mark.parametrize("when", When)
def test_the_ends_of_parents_free_or_skip_a_job_as_its_rule_says(when: When) -> None:
    for parents, expected in RULES[when].items():
        ends = Ends("w" in parents, "s" in parents, "f" in parents, bool({*"fo"} & {*parents}))
        move = after_parents(ends, when=when, cancel_requested=False)
        assert move == expected, parents
        assert move is None or move.to in TRANSITIONS["free"].targets
        flagged = after_parents(ends, when=when, cancel_requested=True)
        assert flagged == (None if expected is None else ABORTED), parents


@pytest.mark.parametrize("outcome", Outcome)
def test_a_settlement_presents_the_id_the_token_and_the_lease(outcome: Outcome) -> None:
    settlement = SETTLEMENTS[outcome]
    assert (settlement.id, settlement.token, settlement.lease) == Held()
    assert settlement.outcome is outcome


@pytest.mark.parametrize("delay", [-1, -0.001, float("nan"), float("inf"), 1e12])
def test_a_settlement_refuses_a_delay_that_no_clock_can_tell(delay: float) -> None:
    with pytest.raises(OutOfRange):
        lifecycle.retry(Held(), ERROR, delay)
    with pytest.raises(OutOfRange):
        lifecycle.snooze(Held(), delay)
    with pytest.raises(OutOfRange):
        lifecycle.release(Held(), delay_seconds=delay)


def test_final_states_are_left_only_by_an_operator() -> None:
    leaving = {name for name, row in TRANSITIONS.items() if row.sources & FINAL_STATES}
    assert leaving == {"replay", "delete"}
    assert all(TRANSITIONS[name].by is lifecycle.By.OPERATOR for name in leaving)
