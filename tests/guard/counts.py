"""What a piece of work cost, in counts, and where they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Counts:
    """Values by what was counted, and the parts (statements, functions) that they come from."""

    values: Mapping[str, float]
    parts: Mapping[str, float] = field(default_factory=dict)

    def __sub__(self, other: Counts) -> Counts:
        return Counts(_minus(self.values, other.values), _minus(self.parts, other.parts))

    def per(self, jobs: int) -> Counts:
        """The same for one of so many jobs."""
        return Counts(
            {name: value / jobs for name, value in self.values.items()},
            {name: value / jobs for name, value in self.parts.items()},
        )

    def most_of(self, lines: int = 100) -> str:
        """The greatest parts, one per line."""
        ranked = sorted(self.parts.items(), key=lambda part: (-round(part[1], 2), part[0]))
        return "\n".join(f"  {value:10.3f}  {name}" for name, value in ranked[:lines])


class Meter(Protocol):
    """Counts what a database does."""

    def count(self, work: Work) -> Counts:
        """What `work` cost. Nothing else may work in the database meanwhile."""


def count_growth(cost_of: Callable[[int], Counts], small: int, large: int) -> Counts:
    """The cost of one job: start and end of a run cancel out between a small and a large one."""
    few = cost_of(small)
    return (cost_of(large) - few).per(large - small)


def _minus(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    difference = Counter(left)
    difference.subtract(right)
    return dict(difference)
