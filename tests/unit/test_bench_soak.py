"""What it means to stay bounded during a soak."""

from __future__ import annotations

import msgspec
import pytest

from bench.soak.watch import BOUNDS, Bound, Sample, is_bounded

FLAT = Sample(
    seconds=1.0, finished=0, backlog=100, memory_mib=50.0, threads=8, descriptors=15, connections=3,
    wal_mib=16.0, dead_rows=1000,
)  # fmt: skip


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.figure)
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
