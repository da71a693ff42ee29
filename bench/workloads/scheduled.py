"""How late do jobs start that come due 2,000 a second, among 1,000,000 scheduled ones?

One worker with default settings, `async` handlers. Lateness runs from the due time to the first
line of the handler. The other side has 10,000 scheduled jobs beside those that come due. Workers
look for due jobs about four times a second, so half of that is what a job waits on average.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

from bench.harness import Result, check
from bench.lab import Lab
from bench.workloads.crew import Crew, crew
from bench.workloads.handlers import LATE, NOTE
from bench.workloads.place import KINDS, Kind, Place, fresh_place
from bench.workloads.turns import compare_sides, part, take_turns
from tenure.rules.codec import encode
from tenure.rules.job import NewJob

FIGURES = {"scheduled_p50": 50, "scheduled_p99": 99}
NAMES = tuple(f"workloads.{store}.{figure}" for store in KINDS for figure in FIGURES)
LARGE, SMALL = 1_000_000, 10_000
PER_SECOND = 2_000
LEAD_SECONDS = 0.5


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store in KINDS:
        names = [f"workloads.{store}.{figure}" for figure in FIGURES]
        if any(lab.wants(name) for name in names):
            yield from _results(lab, store)


def _results(lab: Lab, store: Kind) -> Iterator[Result]:
    large, small = lab.few(LARGE), min(lab.few(LARGE), SMALL)
    due = lab.few(20_000)
    with fresh_place(lab, store) as many, fresh_place(lab, store) as some:
        sides = {"large": _Side(lab, many, large), "small": _Side(lab, some, small)}
        rounds = take_turns(lab, {name: partial(side.turn, due) for name, side in sides.items()})
    for figure, percent in FIGURES.items():
        yield compare_sides(
            f"workloads.{store}.{figure}", part(rounds, partial(_percentile, percent)),
            "large", "small", unit=f"ms (p{percent})", against=f"{small:,} scheduled",
        )  # fmt: skip


def _percentile(percent: int, values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


class _Side:
    """A database with many jobs that are due in a week."""

    def __init__(self, lab: Lab, place: Place, jobs: int) -> None:
        self._place = place
        self._notes = lab.file("notes")
        self._finished = 0
        self._later = jobs
        start = datetime.now(UTC) + timedelta(days=7)
        place.fill(
            NewJob(task=LATE, args=encode({"due": 0.0}), due_at=start + _after(number))
            for number in range(jobs)
        )

    def turn(self, due: int) -> list[float]:
        """Let so many come due, one after the other. Answers how many milliseconds late they ran.

        They are scheduled once the worker is there. If that took until the first was due, all is
        done again with more time.
        """
        with crew(self._place, notes=self._notes, warm_up=0) as team:
            lead_seconds = LEAD_SECONDS + due / PER_SECOND / 4
            while not self._schedule(team, due, lead_seconds):
                lead_seconds *= 2
        return [1000 * value for (value,) in NOTE.iter_unpack(self._notes.read_bytes())]

    def _schedule(self, team: Crew, due: int, lead_seconds: float) -> bool:
        self._notes.write_bytes(b"")
        start = datetime.now(UTC) + timedelta(seconds=lead_seconds)
        times = [start + _after(number) for number in range(due)]
        self._place.fill(
            NewJob(task=LATE, args=encode({"due": at.timestamp()}), due_at=at) for at in times
        )
        on_time = datetime.now(UTC) < start
        time.sleep(max(0.0, (times[-1] - datetime.now(UTC)).total_seconds()))
        size = due * NOTE.size
        team.wait(lambda: self._notes.stat().st_size >= size, "due jobs have not run")
        self._finished += due
        team.wait(self._is_settled, "due jobs were not settled")
        seconds = [value for (value,) in NOTE.iter_unpack(self._notes.read_bytes())]
        check(len(seconds) == due, f"{len(seconds)} jobs ran, not {due}")
        check(min(seconds) >= 0, "a job ran before its time")
        return on_time

    def _is_settled(self) -> bool:
        return (self._place.count("job"), self._place.count("history")) == (
            self._later,
            self._finished,
        )


def _after(number: int) -> timedelta:
    return timedelta(seconds=number / PER_SECOND)
