"""What statistics must say, counted again from the rows of the jobs."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

from tenure.store import Store
from tests.support.plain import Plain

Ends = Counter[tuple[str, str, str]]
"""By queue, task and outcome."""

FINISHED = "select queue, task, cast(state as text) from tenure.history"
AGAIN = """
    select j.queue, j.task, e.kind from tenure.event e join tenure.jobs j on j.id = e.job_id
    where e.kind in ('retried', 'snoozed')
       or e.kind in ('succeeded', 'failed', 'cancelled', 'skipped')
       or e.kind = 'crashed' and not exists (
           select 1 from tenure.history h where h.id = e.job_id and h.token = e.token)
"""
"""Attempts after which the job runs again, and ends before a replay."""


def recounted(url: str) -> Ends:
    """What the rows of the jobs say. No job may have been pruned, deleted or moved."""
    with Plain(url) as plain:
        return recounted_in(plain)


def recounted_in(plain: Plain) -> Ends:
    """The same, through an open connection."""
    return Counter([*plain.rows(FINISHED), *plain.rows(AGAIN)])


def overcounted_in(plain: Plain) -> Ends:
    """What the statistics count more often than it has happened: nothing, whatever goes wrong."""
    counted = Counter(
        {
            (queue, task, outcome): ends
            for queue, task, outcome, ends in plain.rows(
                "select queue, task, outcome, sum(ends) from tenure.statistic"
                " group by queue, task, outcome"
            )
        }
    )
    return counted - recounted_in(plain)


def told(store: Store) -> Ends:
    """What the statistics say, of all that has happened lately."""
    now = datetime.now(UTC)
    found = store.statistics(
        now - timedelta(days=1), now + timedelta(hours=1), by=("queue", "task", "outcome")
    )
    return Counter(
        {
            (str(each.queue), str(each.task), outcome): count
            for each in found for outcome, count in each.counts.items()
        }
    )  # fmt: skip
