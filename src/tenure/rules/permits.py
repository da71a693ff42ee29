"""Permits: the right to run one job at a gate with `max_running`. Pure; the only arithmetic of it.

A gate has `max_running` permits, for each key if its limits are per key. A worker uses one permit
for each of its jobs there. So that a short job need not wait for a settlement and a claim before it
starts, a worker may claim *riders*: more jobs than it has permits for. It still runs no more of
them at once than it has permits. The number of its permits is then written down, and as long as it
has more jobs than that, it counts with this number and not with its jobs.

docs/adr/0021-short-jobs-are-claimed-ahead-of-permits.md has the figures: what riders bring. Without
them `riders` is 0 everywhere, and a worker has as many permits as jobs.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import msgspec


class Permits(msgspec.Struct, frozen=True):
    """The permits of a worker at one gate, as its last claim there has returned them."""

    gate: str
    key: str
    """Empty where all keys share the limit."""
    most: int
    """The worker runs no more of these jobs at once."""
    jobs: frozenset[int]
    """The ids of the jobs that this claim took."""


class Use(NamedTuple):
    """How the permits of one limit are used, as the database counts them."""

    others: int = 0
    """Permits that other workers use."""
    mine: int = 0
    """Permits that this worker uses,"""
    live: int = 0
    """and its jobs there."""
    share: int | None = None
    """The number of its permits, if written down; None: one for each of its jobs."""


@dataclass(slots=True)
class Room:
    """What a limit still allows to one worker. Lines that share the limit share the room."""

    free: float = math.inf
    """Permits that no worker uses."""
    mine: int = 0
    """Permits of this worker,"""
    live: int = 0
    """and its jobs."""
    riders: float = 0.0
    """Jobs that the worker may have in addition, for each of its permits."""
    share: int | None = None
    """The number of its permits as it is written down; None: one for each of its jobs."""
    starts: float = math.inf
    """Jobs that may start by the rate."""
    taken: int = 0
    is_stale: bool = False
    """The bucket was filled at a time in the future: the clock was set back."""

    @property
    def has_riders(self) -> bool:
        """Has this worker more jobs than permits?"""
        return self.free < math.inf and self.live > self.mine

    def allows(self, most: int, slots: int) -> tuple[int, int]:
        """Of `most` jobs, how many may pass, and how many of these get a new permit.

        `slots`: the worker could run this many more jobs at once.
        """
        most = int(min(most, max(0.0, self.starts)))
        if self.free == math.inf:
            return most, 0
        new = int(max(0, min(most, self.free, slots)))
        riders = riders_left(self.mine + new, self.live + new, self.riders)
        return new + min(most - new, riders), new

    def take(self, jobs: int, permits: int) -> None:
        """Note that these jobs pass, with these new permits."""
        self.starts, self.taken, self.live = self.starts - jobs, self.taken + jobs, self.live + jobs
        self.free, self.mine = self.free - permits, self.mine + permits


def room(use: Use, max_running: int | None, riders: float) -> Room:
    """What a limit allows, given how its permits are used."""
    if max_running is None:
        return Room()
    return Room(
        free=max_running - use.others - use.mine,
        mine=max(0, min(use.mine, max_running - use.others)),
        live=use.live, share=use.share, riders=riders_of(max_running, riders),
    )  # fmt: skip


def riders_of(max_running: int | None, riders: float) -> float:
    """Where one job runs at a time, jobs run in order: no worker has the next one already."""
    return 0.0 if max_running == 1 else riders


def riders_left(permits: int, live: int, riders: float) -> int:
    """How many more jobs a worker with these permits and jobs may claim as riders."""
    return max(0, math.floor(permits * (1 + riders)) - live)


def tickets_to_read(most: int, lines: int) -> int:
    """How many tickets of a line to read, of `most` wanted.

    `lines`: how many lines of its queue are looked at; 0: it is the only line of all. Lines take
    turns, so each gives about its part of the jobs. Twice that is read, and 8 at least. From an
    only line all else can be taken unread.
    """
    return min(most, 8 + (2 * most // lines if lines else 0))
