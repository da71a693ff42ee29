"""How long an idle worker on PostgreSQL takes to start a job, and what it costs to wait for one.

One job at a time, after a pause of random length, from the return of the enqueue call in one
process to the handler's first line in another. Before that the worker has nothing to do for a
while: its CPU time then, in percent of a core, and that of the server beside it. Lower is better.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from bench.harness import Result
from bench.lab import Lab
from bench.peers.catalogue import ON_POSTGRES
from bench.peers.contest import Competitor, Pair, Turn, compare_turns, compete, names, take_turns

WORKLOAD = "peers.postgres.pickup"
FIGURES = {"": ("p50_ms", "ms"), "_p99": ("p99_ms", "ms"), "_idle_cpu": ("idle_cpu", "% of a core")}
NAMES = names(WORKLOAD, ON_POSTGRES, tuple(FIGURES))
PAUSE_SECONDS = (0.02, 0.06)
WARM_UP_JOBS = 10
SETTLE_DOWN_SECONDS = 2.0
LEAST_PERCENT = 0.01
"""What the clock of the kernel can tell, so that a ratio is never one of zeros."""


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    yield from compete(lab, WORKLOAD, "tenure-postgres", ON_POSTGRES, _results, figures=FIGURES)


def _results(lab: Lab, pair: Pair) -> Iterator[Result]:
    rounds = take_turns(lab, pair, _pick_up)
    for figure, (key, unit) in FIGURES.items():
        yield compare_turns(pair.named(figure), pair, rounds, key, unit)


def _pick_up(lab: Lab, competitor: Competitor) -> Turn:
    idle_seconds = lab.size(5, 2)
    end = WARM_UP_JOBS + lab.size(150, 30)
    with competitor.trial(lab, end) as one:
        with one.workers(1):
            one.step("enqueue_paced", 0, WARM_UP_JOBS, *PAUSE_SECONDS)
            one.wait_until_done(0, WARM_UP_JOBS)
            time.sleep(SETTLE_DOWN_SECONDS)
            worker, server = one.cpu_seconds(), one.place.server_cpu_seconds()
            time.sleep(idle_seconds)
            worker = one.cpu_seconds() - worker
            server = one.place.server_cpu_seconds() - server
            one.step("enqueue_paced", WARM_UP_JOBS, end, *PAUSE_SECONDS)
            one.wait_until_done(WARM_UP_JOBS, end)
        waits = one.board.waits(WARM_UP_JOBS, end)
        twice = one.board.twice(0, end)
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return {
        "p50_ms": cuts[49],
        "p99_ms": cuts[98],
        "idle_cpu": max(LEAST_PERCENT, 100 * worker / idle_seconds),
        "server_idle_cpu": 100 * server / idle_seconds,
        "jobs": float(len(waits)),
        "twice": float(twice),
    }
