"""The figures over all rounds, and which resource is the limit."""

import statistics
from collections.abc import Mapping, Sequence

import msgspec

BUSY_PERCENT = 85.0
"""From this CPU load on, the CPU of the worker process is the limit."""
MOST = 0.5
"""A part that takes this share of the whole time is the limit."""
ROUND_TRIPS = 3
"""One enqueue on PostgreSQL takes three: BEGIN, the insert, COMMIT."""


class Figure(msgspec.Struct, frozen=True):
    """One result: the median over the rounds, with the lowest and the highest."""

    name: str
    value: float
    unit: str
    low: float
    high: float


UNITS = {
    "enqueue.bulk": "jobs/s",
    "enqueue.one": "ms",
    "drain.async": "jobs/s",
    "drain.thread": "jobs/s",
    "drain.process": "jobs/s",
    "pickup.p50": "ms",
    "pickup.p99": "ms",
    "wal": "bytes/job",
    "worker.cpu": "%",
    "limit.round_trip": "ms",
    "limit.commits": "commits/s",
}
"""Every possible figure, in order."""

LABELS = {
    "enqueue.bulk": "enqueue, in bulk",
    "enqueue.one": "enqueue, one by one (p50)",
    "drain.async": "drain, async handlers",
    "drain.thread": "drain, handlers in threads",
    "drain.process": "drain, handlers in child processes",
    "pickup.p50": "from commit to handler (p50)",
    "pickup.p99": "from commit to handler (p99)",
    "wal": "WAL of the server, bulk and async",
    "worker.cpu": "CPU per worker process, async",
    "limit.round_trip": "limit: one `select 1` (p50)",
    "limit.commits": "limit: commits of one row (p50)",
}


def summarise(rounds: Mapping[str, Sequence[float]]) -> list[Figure]:
    """The figures of all rounds."""
    return [_figure(name, rounds[name]) for name in UNITS if rounds.get(name)]


def _figure(name: str, values: Sequence[float]) -> Figure:
    value, low, high = statistics.median(values), min(values), max(values)
    return Figure(name, _rounded(value), UNITS[name], _rounded(low), _rounded(high))


def _rounded(value: float) -> float:
    """Four digits: more would be noise."""
    return float(f"{value:.4g}")


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def verdict(figures: Sequence[Figure]) -> str | None:
    """The limits in one sentence; None when the figures do not show any."""
    by_name = {figure.name: figure.value for figure in figures}
    said = [text for text in (_of_drain(by_name), _of_enqueue(by_name)) if text]
    return f"Limits: {'; '.join(said)}." if said else None


def _of_drain(by_name: Mapping[str, float]) -> str | None:
    busy = by_name.get("worker.cpu", 0.0)
    if busy < BUSY_PERCENT:
        return None
    return f"draining is limited by the worker's CPU ({busy:.0f} % of a core per process)"


def _of_enqueue(by_name: Mapping[str, float]) -> str | None:
    whole, trip = by_name["enqueue.one"], by_name.get("limit.round_trip", 0.0)
    disk = min(whole, max(0.0, 1000 / by_name["limit.commits"] - trip))
    trips = ROUND_TRIPS * trip
    if disk >= MOST * whole:
        return f"one-by-one enqueue is limited by the commit (about {disk:.2g} of {whole:.2g} ms)"
    if trips >= MOST * whole:
        return f"one-by-one enqueue is limited by round trips ({trips:.2g} of {whole:.2g} ms)"
    return None
