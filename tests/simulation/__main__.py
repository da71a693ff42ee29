"""Simulate: many seeds, one run each, until so many steps were checked.

    python -m tests.simulation --steps 200000              seeds from 1 on
    python -m tests.simulation --seed 4711                 one run, once more, with its story

A step is one operation of the store that was sent, answered and checked; operations that only read
are not counted. The first run that breaks an invariant ends it all: its seed, what is wrong, and
what was done to the processes are printed. A seed always gives the same run of the same code.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count

from tests.simulation.run import Result, run_seed

PROGRESS_SECONDS = 10.0
AHEAD = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, help="until so many steps were checked")
    parser.add_argument("--seed", type=int, help="the first seed; without --steps the only one")
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
    if options.seed is not None and options.steps is None:
        result = run_seed(options.seed, trace=options.trace)
        print(result.told())
        print("\n".join(result.trace), end="")
        return 1 if result.wrong else 0
    return simulate(options.seed or 1, options.steps or 200_000, options.jobs, options.go_on)


def simulate(first: int, steps: int, jobs: int, go_on: bool = False) -> int:
    """Run seeds until so many steps were checked, or one run breaks an invariant."""
    started = shown = time.monotonic()
    counts: Counter[str] = Counter()
    wrong: list[Result] = []
    for result in _results(first, steps, jobs):
        counts.update(result.counts)
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
    seconds = time.monotonic() - started
    figures = ", ".join(f"{number:,} {what}" for what, number in counts.most_common())
    print(f"seeds {first} to {first + counts['runs'] - 1}: {figures}, {seconds:.0f} s")
    print(f"{len(wrong)} violations")
    return 1 if wrong else 0


def _results(first: int, steps: int, jobs: int) -> Iterator[Result]:
    seeds = count(first)
    done = 0
    if jobs == 1:
        while done < steps:
            result = run_seed(next(seeds))
            done += result.counts["steps"]
            yield result
        return
    with ProcessPoolExecutor(jobs) as pool:
        running: set[Future[Result]] = set()
        try:
            while done < steps:
                while len(running) < AHEAD * jobs:
                    running.add(pool.submit(run_seed, next(seeds)))
                ready, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ready:
                    result = future.result()
                    done += result.counts["steps"]
                    yield result
        finally:
            for future in running:
                future.cancel()


if __name__ == "__main__":
    sys.exit(main())
