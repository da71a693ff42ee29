"""Counts of ended attempts, as a worker makes them."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from tenure.rules.statistics import Counted
from tenure.worker.counting import EndCounter
from tenure.worker.environment import Environment

End = tuple[str, str, str, float, float]
"""The queue, the task and the outcome; how long it waited, and ran."""
AT = datetime(2026, 1, 1, tzinfo=UTC)


def counted(*ends: End) -> list[Counted]:
    """What a worker whose attempts have ended so writes."""
    leased_jobs: Any = SimpleNamespace(leases={1: SimpleNamespace(claimed_at=AT)})
    counter = EndCounter(leased_jobs, Environment())
    for queue, task, outcome, wait_seconds, run_seconds in ends:
        job = SimpleNamespace(queue=queue, task=task, lease_id=1, queued_at=AT)
        leased = SimpleNamespace(job=job, taken_at=0.0, started_at=wait_seconds)
        counter.ended(cast(Any, leased), outcome, run_seconds)
    if not counter.close_period():
        return []
    [(_, rows)] = counter.unsent
    return rows
