"""The rows that the statements of statistics return: see store/records.py."""

from typing import NamedTuple

import msgspec

from tenure.rules.statistics import Counted
from tenure.store.records import Returned, Time


class StatisticSum(NamedTuple):
    """What was counted in one stretch of time."""

    stretch: int
    queue: str
    task: str
    outcome: str
    ends: int
    wait_seconds: float
    run_seconds: float
    waits: str | None
    runs: str | None


class TakenStatistic(NamedTuple):
    """A row that is to be added to one that stands for a longer time."""

    at: Time
    queue: str
    task: str
    outcome: str
    ends: int
    wait_seconds: float
    run_seconds: float
    waits: str | None
    runs: str | None


class DepthOfQueue(NamedTuple):
    """How many live jobs of a queue are in each state."""

    queue: str
    waiting: int
    scheduled: int
    queued: int
    running: int


class SampledDepth(NamedTuple):
    """The last sample, with one queue and state of it; without a queue, it has none."""

    sampled_at: Time
    age_seconds: float
    took_seconds: float
    queue: str | None
    state: str
    jobs: int
    oldest_at: Time


RETURNED_BY: Returned = {
    StatisticSum: ("read_statistics",),
    TakenStatistic: ("take_statistics",),
    DepthOfQueue: ("count_depth",),
    SampledDepth: ("read_depth",),
}


def counted(row: StatisticSum | TakenStatistic) -> Counted:
    """What a row says."""
    return Counted(
        row.queue, row.task, row.outcome, row.ends, row.wait_seconds, row.run_seconds,
        _buckets(row.waits), _buckets(row.runs),
    )  # fmt: skip


def _buckets(text: str | None) -> list[int] | None:
    return None if text is None else msgspec.json.decode(text, type=list[int])
