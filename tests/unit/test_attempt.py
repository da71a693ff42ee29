"""What has failed waits as its policy says, however it failed; a shutdown is no failure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tenure.control import Cancel, Control, Retry, Skip, Snooze
from tenure.rules.claim import Claimed
from tenure.rules.lifecycle import Outcome, Settlement
from tenure.rules.retry import Delays, dump_policy
from tenure.tasks import TaskOptions
from tenure.worker.leases import Stop
from tenure.worker.running.attempt import DEPLOY_TRIES, Attempt, unstarted

End = Callable[[Attempt], Settlement | None]


def attempt(attempts: int, put_back: int = 0) -> Attempt:
    """One of a job that has failed so often before, and was put back uncharged so often."""
    job = Claimed(
        id=1, token=1 + attempts + put_back, lease_id=1, task="work", args="{}", queue="default",
        priority=0, tenant="", attempts=attempts, max_attempts=9, crashes=0,
        created_at=datetime(2026, 1, 1, tzinfo=UTC), timeout_seconds=5.0,
        retry=dump_policy(Delays((7.0, 70.0))).decode(), metadata=None, features=0,
    )  # fmt: skip
    return Attempt(job, TaskOptions(), lambda: 0.5)


@pytest.mark.parametrize(
    "end",
    [
        lambda attempt: attempt.raised(ValueError("broken"), 1.0),
        lambda attempt: attempt.stopped(Stop.TIMEOUT, 5.0),
        lambda attempt: attempt.child_died("signal 9", 1.0),
        lambda attempt: attempt.not_committed(1.0),
    ],
    ids=["error", "timeout", "child died", "not committed"],
)
def test_a_failure_waits_as_the_policy_of_its_job_says(end: End) -> None:
    for attempts, seconds in ((0, 7.0), (1, 70.0), (5, 70.0)):
        settlement = end(attempt(attempts))
        assert settlement is not None
        assert (settlement.outcome, settlement.delay_seconds) == (Outcome.RETRY, seconds)


@pytest.mark.parametrize(
    ("result", "part"),
    [
        ((1, 2), "it is a tuple"), ({1}, "it is a set"), (frozenset(), "it is a frozenset"),
        ([{"a": [1, (2,)]}], "its part [0]['a'][1] is a tuple"),
    ],
)  # fmt: skip
def test_a_tuple_or_a_set_needs_an_annotation_of_the_result(result: object, part: str) -> None:
    one = attempt(0)
    for kind, outcome in ((object, Outcome.FAIL), (Any, Outcome.FAIL), (list, Outcome.SUCCEED)):
        one.result_type = kind
        settlement = one.returned(result, 1.0)
        assert settlement is not None
        assert settlement.outcome is outcome
        if outcome is Outcome.FAIL:
            assert part in (settlement.error or b"").decode()


def test_an_error_in_answer_to_a_shutdown_is_not_charged() -> None:
    released = attempt(8).raised(ValueError("cannot clean up"), 1.0, Stop.SHUTDOWN)
    assert released is not None
    assert (released.outcome, released.reason) == (Outcome.RELEASE, "shutdown")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Retry("later"), Outcome.RETRY),
        (Snooze(5), Outcome.SNOOZE),
        (Skip("nothing to do"), Outcome.SKIP),
        (Cancel("superseded"), Outcome.ABORT),
    ],
)
def test_what_a_handler_says_of_its_job_counts_at_a_shutdown_too(
    answer: Control, outcome: Outcome
) -> None:
    settlement = attempt(0).raised(answer, 1.0, Stop.SHUTDOWN)
    assert settlement is not None
    assert settlement.outcome is outcome


def test_an_error_in_answer_to_a_timeout_is_charged() -> None:
    settlement = attempt(0).raised(ValueError("cannot clean up"), 1.0, Stop.TIMEOUT)
    assert settlement is not None
    assert settlement.outcome is Outcome.RETRY


def test_what_did_not_start_is_put_back_uncharged_later_and_later() -> None:
    delays = []
    for put_back in range(DEPLOY_TRIES):
        settlement = attempt(2, put_back).not_started("exit 1", "Traceback\nImportError: no\n")
        assert settlement.outcome is Outcome.RELEASE
        assert settlement.reason is not None
        assert settlement.reason.endswith(": exit 1; ImportError: no")
        delays.append(settlement.delay_seconds)
    assert delays == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0]


def test_what_never_starts_is_charged_in_the_end() -> None:
    settlement = attempt(2, DEPLOY_TRIES).not_started("exit 1", "")
    assert (settlement.outcome, settlement.reason) == (Outcome.RETRY, "exit 1")


def test_who_waits_for_another_one_to_be_tried_comes_back_by_lot_and_ever_later() -> None:
    def delay(put_back: int, spread: float) -> float:
        settlement = unstarted(
            attempt(0, put_back).job, None, "another one is tried", spread=spread
        )
        assert settlement is not None
        assert settlement.outcome is Outcome.RELEASE
        return settlement.delay_seconds

    assert [delay(0, spread) for spread in (0.0, 0.5, 1.0)] == [0.0, 0.125, 0.25]
    assert [delay(put_back, 0.5) for put_back in (1, 2, 5, 6, 1000)] == [0.25, 0.5, 4.0, 5.0, 5.0]
