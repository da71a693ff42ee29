"""What it means to stay bounded during a soak."""

from __future__ import annotations

import msgspec
import pytest

from bench.soak.watch import BOUNDS, Bound, Sample, is_bounded
from bench.workloads.place import Kind

FLAT = Sample(
    seconds=1.0, finished=0, backlog=100, memory_mib=50.0, threads=8, descriptors=15, connections=3,
    wal_mib=16.0, dead_rows=1000,
)  # fmt: skip


@pytest.mark.parametrize(
    "bound",
    [pytest.param(bound, id=f"{kind}-{bound.figure}") for kind in BOUNDS for bound in BOUNDS[kind]],
)
def test_what_grows_is_noticed_and_what_has_grown_at_first_is_not(bound: Bound) -> None:
    def samples(*factors: float) -> list[Sample]:
        value = getattr(FLAT, bound.figure)
        step = value * bound.share + bound.more + 1
        return [
            msgspec.structs.replace(FLAT, **{bound.figure: value + int(step * factor)})
            for factor in factors
        ]

    assert is_bounded(samples(0, 1, 2, 2, 2, 2), bound)
    assert not is_bounded(samples(0, 0, 0, 0, 1, 2), bound)


MEASURED: dict[Kind, tuple[list[float], ...]] = {
    "postgres": ([992, 1008, 1008], [495_063, 446_322, 419_075], [9_069, 8_131, 7_752]),
    "sqlite": ([16, 17, 18], [2_478, 2_410, 3_847], [901, 674, 1_118]),
}
"""Log, dead rows or free pages, and backlog: the highest of each third of twenty minutes."""


@pytest.mark.parametrize("kind", MEASURED)
def test_what_a_database_keeps_may_not_become_more_than_twice_what_was_measured(kind: Kind) -> None:
    figures = zip(("wal_mib", "dead_rows", "backlog"), MEASURED[kind], strict=True)
    for figure, (first, middle, last) in figures:
        [bound] = [bound for bound in BOUNDS[kind] if bound.figure == figure]
        samples = [
            msgspec.structs.replace(FLAT, **{figure: value})
            for value in (first, middle, last, first, middle, 2.2 * middle)
        ]
        assert is_bounded(samples[:3], bound)
        assert not is_bounded(samples[3:], bound)
