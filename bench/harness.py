"""How a figure is measured: ours and the bare loop take turns, and the ratio is what counts.

This machine's speed changes from minute to minute, so an absolute rate says little. Within a round
the two sides alternate in short slices, so that both meet the same weather; the ratio of the round
is taken from the sums, and the median over the rounds is reported with the lowest and the highest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

ROUNDS = 3


class BenchmarkFailed(RuntimeError):
    """A run did something else than its name says; it has no figure."""


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure. `spread` is the lowest and the highest ratio over the rounds."""

    name: str
    value: float
    unit: str
    ratio: float
    against: str
    spread: tuple[float, float]
    detail: dict[str, object] | None = None
    """What else was seen: the other side's figures, each round, the settings."""


class Side(Protocol):
    """One of the two competitors."""

    def fill(self, jobs: int) -> None:
        """Prepare a round of so many jobs; not timed."""

    def step(self) -> int:
        """Do one block of work and answer how many jobs it was."""

    def audit(self, jobs: int) -> None:
        """Raise unless exactly these jobs were done, once each; not timed."""


class Round(msgspec.Struct, frozen=True):
    """Jobs per second of both sides in one round."""

    ours: float
    bare: float


def race(
    ours: Side, bare: Side, *, jobs: int, slice_jobs: int, rounds: int = ROUNDS
) -> list[Round]:
    """Let both sides do `jobs` jobs in each round, in turns of `slice_jobs`."""
    _one_round(ours, bare, slice_jobs, slice_jobs)  # connections, prepared statements, caches
    return [_one_round(ours, bare, jobs, slice_jobs) for _ in range(rounds)]


def _one_round(ours: Side, bare: Side, jobs: int, slice_jobs: int) -> Round:
    sides = [ours, bare]
    for side in sides:
        side.fill(jobs)
    seconds = {id(ours): 0.0, id(bare): 0.0}
    for _ in range(0, jobs, slice_jobs):
        sides.reverse()  # whoever comes second pays for what the first one left in flight
        for side in sides:
            seconds[id(side)] += _time(side, slice_jobs)
    for side in sides:
        side.audit(jobs)
    return Round(jobs / seconds[id(ours)], jobs / seconds[id(bare)])


def _time(side: Side, jobs: int) -> float:
    start = time.perf_counter()
    done = 0
    while done < jobs:
        step = side.step()
        check(step > 0, "the work ran out before the slice was over")
        done += step
    elapsed = time.perf_counter() - start
    check(done == jobs, f"a slice of {jobs} jobs did {done}")
    return elapsed


def compare(name: str, rounds: Sequence[Round], against: str) -> Result:
    """The figure of a race: our rate, and how it compares with the bare one."""
    bare = statistics.median(one.bare for one in rounds)
    return summarise(
        name,
        values=[one.ours for one in rounds],
        ratios=[one.ours / one.bare for one in rounds],
        unit="jobs/s",
        against=f"{against}: {bare:,.0f} jobs/s",
    )


def summarise(
    name: str, *, values: Sequence[float], ratios: Sequence[float], unit: str, against: str
) -> Result:
    """Medians over the rounds."""
    return Result(
        name=name,
        value=round(statistics.median(values), 1),
        unit=unit,
        ratio=round(statistics.median(ratios), 3),
        against=against,
        spread=(round(min(ratios), 3), round(max(ratios), 3)),
    )


def check(is_true: bool, otherwise: str) -> None:
    """A benchmark that did something else than it says must not report a figure."""
    if not is_true:
        raise BenchmarkFailed(f"the benchmark audited itself and failed: {otherwise}")
