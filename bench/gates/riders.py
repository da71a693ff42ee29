"""Short jobs at a gate, with riders and without: 4 durations, 3 limits, 1 and 2 processes.

A rider is a job that a worker claims at a gate beyond the number that it may run there. It starts
when another job of the same worker ends at this gate. Each side has its own database and workers.
The sides take turns, and the workers of the other side are idle meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import msgspec

from bench import work
from bench.gates.sides import MILLISECONDS, WITH, WITHOUT, task_name
from bench.harness import Result, check
from bench.lab import Lab
from bench.workloads.crew import Crew, crew
from bench.workloads.place import KINDS, Kind, Place, fresh_place
from bench.workloads.turns import compare_sides, take_turns
from tenure.rules.gates import Limits
from tenure.rules.job import NewJob

PROCESSES = (1, 2)
LIMITS = (2, 10, 100)
SECONDS = 1.2
"""The approximate length of one drain."""
LEARN_JOBS = 150
"""From these jobs a worker process learns how long jobs take, and how many to claim ahead."""

Cell = tuple[int, int]


def _name(store: Kind, processes: int, limit: int, milliseconds: int) -> str:
    return f"gates.{store}.riders.{processes}p.{limit}x{milliseconds}ms"


NAMES = tuple(_name(*each) for each in itertools.product(KINDS, PROCESSES, LIMITS, MILLISECONDS))


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store, processes in itertools.product(KINDS, PROCESSES):
        cells = [
            cell
            for cell in itertools.product(LIMITS, MILLISECONDS)
            if lab.wants(_name(store, processes, *cell))
        ]
        if cells:
            with ExitStack() as stack:
                sides = {
                    side: stack.enter_context(_Side(lab, store, side, processes))
                    for side in (WITH, WITHOUT)
                }
                for cell in cells:
                    yield _result(lab, _name(store, processes, *cell), sides, cell)


class _Side(ExitStack):
    """A database with workers of one side."""

    def __init__(self, lab: Lab, store: Kind, side: str, processes: int) -> None:
        super().__init__()
        self._workers = processes
        self._riders = side == WITH
        self._place: Place = self.enter_context(fresh_place(lab, store))
        limits = {_gate(limit): Limits(max_running=limit) for limit in LIMITS}
        self._place.store.declare_gates(limits)
        program = ("bench.gates.riders_app", side)
        self._crew: Crew = self.enter_context(crew(self._place, workers=processes, program=program))

    def learn(self, cell: Cell) -> float:
        """Run a few jobs. Returns jobs per second."""
        return self.drain(cell, LEARN_JOBS * self._workers)

    def drain(self, cell: Cell, count: int) -> float:
        """Run `count` jobs. Returns jobs per second."""
        limit, milliseconds = cell
        rate = self._crew.drain(
            [
                NewJob(task=task_name(milliseconds), args=work.PAYLOAD, gate=_gate(limit))
                for _ in range(count)
            ]
        )
        if not self._riders:
            shares = self._place.number("select count(*) from {t}gate_share")
            check(not shares, "workers without riders wrote shares of places")
        return rate


def _result(lab: Lab, name: str, sides: Mapping[str, _Side], cell: Cell) -> Result:
    limit, milliseconds = cell
    rates = [side.learn(cell) for side in sides.values()]
    count = lab.few(int(max(SECONDS * sum(rates) / 2, 10 * limit)))
    turns = {which: partial(side.drain, cell, count) for which, side in sides.items()}
    rounds = take_turns(lab, turns)
    result = compare_sides(name, rounds, WITH, WITHOUT, unit="jobs/s")
    most = f"{1000 * limit / milliseconds:,.0f}" if milliseconds else "none"
    detail = {**(result.detail or {}), "jobs": count}
    return msgspec.structs.replace(
        result, against=f"{result.against}; limit/duration {most}", detail=detail
    )


def _gate(limit: int) -> str:
    return f"limit-{limit}"
