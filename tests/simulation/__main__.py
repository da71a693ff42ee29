"""Simulate: many seeds, one run each, until so many steps were checked, or for so long.

    python -m tests.simulation --steps 200000              seeds from 1 on
    python -m tests.simulation --minutes 40 --jobs 1       for so long, on one processor
    python -m tests.simulation --seed 4711                 one run, once more, with its story

A step is one operation of the store that was sent, answered and checked; operations that only read
are not counted. The first run that breaks an invariant ends it all: its seed, what is wrong, and
what was done to the processes are printed. So does SIGINT or SIGTERM, after the runs under way. The
totals are printed in any case. A seed always gives the same run of the same code.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count

from tests.simulation.run import Result, run_seed

PROGRESS_SECONDS = 10.0
AHEAD = 2
DEFAULT_STEPS = 200_000
WORK = ("steps", "runs", "transactions", "processes")
"""What is counted that is no fault."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, help="until so many steps were checked")
    parser.add_argument("--minutes", type=float, help="for so long")
    parser.add_argument("--seed", type=int, help="the first seed; without a limit the only one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to use")
    parser.add_argument("--trace", action="store_true", help="with --seed: write down every moment")
    parser.add_argument("--go-on", action="store_true", help="do not end at the first violation")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of the run
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    if options.seed is not None and options.steps is None and options.minutes is None:
        result = run_seed(options.seed, trace=options.trace)
        print(result.told())
        print("\n".join(result.trace), end="")
        return 1 if result.wrong else 0
    limit = Limit(options.steps, options.minutes)
    return simulate(options.seed or 1, limit, options.jobs, options.go_on)


class Limit:
    """When it is enough: after so many steps, after so long, or when somebody says so."""

    def __init__(self, steps: int | None, minutes: float | None) -> None:
        fallback = DEFAULT_STEPS if minutes is None else math.inf
        self._steps = fallback if steps is None else steps
        self._until = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self._was_told = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def _stop(self, *_: object) -> None:
        self._was_told = True

    def is_reached(self, steps: int) -> bool:
        """After so many steps, is it enough?"""
        return self._was_told or steps >= self._steps or time.monotonic() >= self._until


def simulate(first: int, limit: Limit, jobs: int, go_on: bool = False) -> int:
    """Run seeds until the limit, or until one run breaks an invariant."""
    started = shown = time.monotonic()
    print(f"seeds from {first} on", flush=True)
    counts: Counter[str] = Counter()
    recoveries: list[float] = []
    wrong: list[Result] = []
    for result in _results(first, limit, jobs):
        counts.update(result.counts)
        recoveries += result.recoveries
        if result.wrong:
            wrong.append(result)
            print(result.told(), flush=True)
            if not go_on:
                break
        if time.monotonic() - shown > PROGRESS_SECONDS:
            shown = time.monotonic()
            rate = counts["steps"] / (shown - started)
            print(f"{counts['steps']:>12,} steps, {counts['runs']:,} runs, {rate:,.0f} steps/s",
                  flush=True)  # fmt: skip
    print(f"recovery: {_spread(recoveries)}")
    times = f"{time.monotonic() - started:.0f} s, {sum(os.times()[:4]):.0f} s of processors"
    print(f"seeds {first} to {first + counts['runs'] - 1}: {_told(counts)}, {times}")
    print(f"{len(wrong)} violations")
    return 1 if wrong else 0


def _spread(seconds: list[float]) -> str:
    """How long it took until what a killed worker had ran again, beyond the length of a lease."""
    if not seconds:
        return "no jobs"
    seconds = sorted(seconds)
    median, late = seconds[len(seconds) // 2], seconds[99 * len(seconds) // 100]
    return (
        f"{len(seconds):,} jobs ran again after the length of a lease and {median:.2f} s (p50), "
        f"{late:.2f} s (p99), {seconds[-1]:.2f} s (max)"
    )


def _told(counts: Counter[str]) -> str:
    work = [f"{counts[what]:,} {what}" for what in WORK]
    faults = {what: number for what, number in counts.most_common() if what not in WORK}
    each = ", ".join(f"{number:,} {what}" for what, number in faults.items())
    return f"{', '.join(work)}, {sum(faults.values()):,} faults ({each})"


def _results(first: int, limit: Limit, jobs: int) -> Iterator[Result]:
    seeds = count(first)
    done = 0
    if jobs == 1:
        while not limit.is_reached(done):
            result = run_seed(next(seeds))
            done += result.counts["steps"]
            yield result
        return
    with ProcessPoolExecutor(jobs, initializer=_leave_signals) as pool:
        running: set[Future[Result]] = set()
        try:
            while running or not limit.is_reached(done):
                while len(running) < AHEAD * jobs and not limit.is_reached(done):
                    running.add(pool.submit(run_seed, next(seeds)))
                ready, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ready:
                    result = future.result()
                    done += result.counts["steps"]
                    yield result
        finally:  # whoever asked has seen enough
            for future in running:
                future.cancel()


def _leave_signals() -> None:
    """Only the first process decides when it is enough: a terminal interrupts them all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
