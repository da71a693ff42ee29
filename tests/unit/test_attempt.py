"""What has failed waits as its policy says, however it failed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tenure.job import Claimed
from tenure.lifecycle import Outcome, Settlement
from tenure.policy import Schedule, dump_policy
from tenure.tasks import TaskOptions
from tenure.worker.attempt import Attempt
from tenure.worker.holding import Stop

End = Callable[[Attempt], Settlement | None]


def attempt(attempts: int) -> Attempt:
    """One of a job that has failed so often before."""
    job = Claimed(
        id=1, token=1 + attempts, lease_id=1, task="work", args="{}", queue="default", priority=0,
        tenant="", attempts=attempts, max_attempts=9, crashes=0,
        created_at=datetime(2026, 1, 1, tzinfo=UTC), timeout_seconds=5.0,
        retry=dump_policy(Schedule((7.0, 70.0))).decode(), metadata=None, features=0,
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
