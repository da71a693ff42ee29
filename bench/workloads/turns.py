"""How workloads are compared: all sides take turns in each round, there and back."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from bench.harness import Result, summarise
from bench.lab import Lab

T = TypeVar("T")
Values = Mapping[str, float]


def take_turns(lab: Lab, sides: Mapping[str, Callable[[], T]]) -> list[dict[str, T]]:
    """What each side answered in each round."""
    rounds = []
    for number in range(lab.rounds):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        rounds.append({name: sides[name]() for name in order})
    return rounds


def compare_sides(
    name: str, rounds: Sequence[Values], side: str, other: str, *, unit: str, against: str = ""
) -> Result:
    """One side against another: the median of the rounds."""
    theirs = statistics.median(values[other] for values in rounds)
    result = summarise(
        name,
        values=[values[side] for values in rounds],
        ratios=[values[side] / values[other] for values in rounds],
        unit=unit,
        against=f"{against or other}: {_number(theirs)}",
    )
    seen = [{each: round(values[each], 3) for each in (side, other)} for values in rounds]
    return msgspec.structs.replace(result, detail={"rounds": seen})


def part(rounds: Sequence[Mapping[str, T]], of: Callable[[T], float]) -> list[Values]:
    """One figure of many that a turn answered."""
    return [{side: of(seen) for side, seen in values.items()} for values in rounds]


def against_limit(
    name: str, values: Sequence[float], limit: float, *, unit: str, against: str = "limit"
) -> Result:
    """A count against a limit: the ratio should be at most 1."""
    result = summarise(
        name,
        values=values,
        ratios=[value / limit for value in values],
        unit=unit,
        against=f"{against}: {limit:g}",
    )
    exact = round(statistics.median(values), 4)
    return msgspec.structs.replace(
        result, value=exact, detail={"rounds": [round(value, 4) for value in values]}
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
