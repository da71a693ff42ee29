"""How long an idle worker takes to start a job that another process has committed.

One job at a time, after a pause of random length. The clock runs from the return of `enqueue` here,
which is when the caller knows of the commit, to the first line of the handler there; both read
CLOCK_MONOTONIC, which the processes of a machine share.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence

from bench.harness import ROUNDS, Result
from bench.lab import Lab
from bench.worker.app import CLOCK
from bench.worker.process import WorkerProcess
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.store import Store

PAUSE_SECONDS = (0.05, 0.2)
WARM_UP_JOBS = 10


def measure(lab: Lab, store: Store, url: str) -> list[list[float]]:
    """Milliseconds from commit to handler, in rounds."""
    chance = random.Random(7)
    with WorkerProcess(url, "async") as worker:

        def one() -> float:
            time.sleep(chance.uniform(*PAUSE_SECONDS))
            store.enqueue([NewJob(task=CLOCK, args=encode({}))])
            committed = time.monotonic()
            return 1000 * (float(worker.hear()) - committed)

        for _ in range(WARM_UP_JOBS):
            one()
        jobs = lab.size(100, 30)
        return [[one() for _ in range(jobs)] for _ in range(ROUNDS)]


def results(
    name: str, rounds: Sequence[Sequence[float]], *, p50_limit: float, p99_limit: float
) -> Iterator[Result]:
    """The median and the slow end, over all jobs; the spread is that of the rounds."""
    yield _figure(name, rounds, 50, p50_limit)
    yield _figure(f"{name}_p99", rounds, 99, p99_limit)


def _figure(name: str, rounds: Sequence[Sequence[float]], percent: int, limit: float) -> Result:
    value = _percentile([each for values in rounds for each in values], percent)
    ratios = [_percentile(values, percent) / limit for values in rounds]
    return Result(
        name=name,
        value=round(value, 2),
        unit=f"ms (p{percent})",
        ratio=round(value / limit, 3),
        against=f"limit: {limit:g} ms",
        spread=(round(min(ratios), 3), round(max(ratios), 3)),
    )


def _percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
