"""Power cuts at every sync of a play: how many images there were, and what was wrong with them."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.power.check import Promises, put, violations
from tests.power.disk import Disk, Mode, Record


@dataclass
class Seen:
    """What was seen."""

    syncs: int = 0
    images: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {mode}" for mode, count in sorted(self.images.items()))
        return (
            f"{self.syncs} syncs, {self.images.total()} images ({kinds}), {self.jobs} jobs, "
            f"{len(self.violations)} violations"
        )


Choose = Callable[[int], list[Mode]]
"""Which images to look at for the n-th sync."""


def one_each(first: int, every: int = 1) -> Choose:
    """One image for every so many syncs; the modes take turns."""
    modes = [Mode.NOTHING, Mode.TORN, Mode.SOME, Mode.ALL, Mode.NOTHING, Mode.TORN, Mode.SOME]
    return lambda n: [modes[(n // every) % len(modes)]] if (n + first) % every == 0 else []


def many(seeds: int) -> Choose:
    """All modes; those that are drawn by lot several times."""
    return lambda _: [Mode.NOTHING, Mode.ALL, *[Mode.SOME, Mode.TORN] * seeds]


def cut(
    record: Record,
    folder: Path,
    seed: int,
    choose: Choose,
    *,
    lies_about: str | None = None,
    kept: bool = True,
) -> Seen:
    """Cut the power at the syncs of a record. An image that is wrong stays in its folder."""
    seen = Seen()
    for number, mode, disk, promises in _moments(record, choose, lies_about):
        seen.syncs = max(seen.syncs, number + 1)
        for turn, each in enumerate(mode):
            name = f"{seed}-{number}-{turn}-{each}"
            chance = random.Random(name)
            place = folder / name
            path = put(disk.image(each, chance), place, chance)
            seen.images[each] += 1
            to_the_end = chance.random() < 0.1
            wrong = violations(path, promises, kept=kept, to_the_end=to_the_end)
            seen.violations += [f"{name}: {text}" for text in wrong]
            if not wrong:
                shutil.rmtree(place)
        seen.jobs = len(promises.enqueued)
    return seen


def _moments(
    record: Record, choose: Choose, lies_about: str | None
) -> Iterator[tuple[int, list[Mode], Disk, Promises]]:
    disk, promises = Disk(lies_about=lies_about), Promises()
    for number, _ in enumerate(disk.play(record.events)):
        promises.hear(disk.told)
        disk.told.clear()
        yield number, choose(number), disk, promises
