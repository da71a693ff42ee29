"""No step of a job's life touches many more pages because more jobs wait, or more have finished."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tenure.rules.claim import Lease
from tenure.store import Store
from tests.guard import scenes
from tests.guard.counts import Meter
from tests.guard.places import Place

BLOCKS = 4
FEW_WAITING, MANY_WAITING = 5_000, 100_000
FINISHED = 50_000
WORST_RATIO = {"enqueue of 1,000": 1.9, "claim of 500": 1.5, "settle of 500": 1.75}
"""A tree that is one level higher costs one page more for each row that is looked up in it. (An
enqueue on SQLite looks at little else than the tree of tickets: 1,291 pages, and 1,068 more.)"""

Pages = Mapping[str, float]


def pages_of_steps(store: Store, meter: Meter) -> Pages:
    """Pages touched per operation, with what stands in the tables now."""
    blocks: list[list[Lease]] = []

    def settle() -> None:
        for leases in blocks:
            scenes.settle(store, leases)

    work = {
        "enqueue of 1,000": lambda: scenes.fill(store, BLOCKS * scenes.CHUNK),
        "claim of 500": lambda: blocks.extend(scenes.claim(store) for _ in range(BLOCKS)),
        "settle of 500": settle,
    }
    return {name: meter.count(step).values["pages"] / BLOCKS for name, step in work.items()}


def measure(place: Place, *, waiting: int, finished: int = 0) -> Pages:
    """The pages among so many jobs in line and so many in history."""
    with place.store(waiting=waiting, finished=finished) as (store, meter):
        return pages_of_steps(store, meter)


def check_growth(small: Pages, large: Pages) -> None:
    """Raise if a step touches many more pages than it did."""
    for name, pages in large.items():
        print(f"{name}: {small[name]:.0f} pages, later {pages:.0f}")
    grown = [name for name, pages in large.items() if pages > WORST_RATIO[name] * small[name]]
    assert not grown, f"{', '.join(grown)}: the pages grow with the tables"


@pytest.mark.slow
def test_no_step_touches_more_pages_because_more_jobs_wait(place: Place) -> None:
    check_growth(measure(place, waiting=FEW_WAITING), measure(place, waiting=MANY_WAITING))


@pytest.mark.slow
def test_no_step_touches_more_pages_because_more_jobs_have_finished(place: Place) -> None:
    small = measure(place, waiting=FEW_WAITING)
    check_growth(small, measure(place, waiting=FEW_WAITING, finished=FINISHED))
