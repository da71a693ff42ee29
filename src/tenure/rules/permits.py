"""Which tickets pass a gate: the arithmetic of permits, and the turns of lines. Pure.

A permit is the right to run one job at a gate with `max_running`. A gate has `max_running` permits,
for each key if its limits are per key. A worker uses one permit for each of its jobs there. So that
a short job need not wait for a settlement and a claim before it starts, a worker may claim
*riders*: more jobs than it has permits for. It still runs no more of them at once than it has
permits. The number of its permits is then written down, and as long as it has more jobs than that,
it counts with this number and not with its jobs.

docs/adr/0021-short-jobs-are-claimed-ahead-of-permits.md has the figures: what riders bring. Without
them `riders` is 0 everywhere, and a worker has as many permits as jobs.

The tickets of one queue, gate and key are a line. Lines take turns: each claim lets one ticket of
each line pass, then the next one of each, as far as the limits allow.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, cast

from tenure.rules.claim import Demand
from tenure.rules.gates import Limits

TURNS_KEPT = 8
"""A line may keep this many turns where one would do: to remove them takes a statement."""


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


def is_enough(max_running: int, passed: int, riders: float, most: int) -> bool:
    """May a worker take `most` jobs even if none of the jobs that passed the gate has finished?

    `passed`: how many have, all of them jobs of this worker, at a limit that all keys share. Then
    the finished jobs need not be counted.
    """
    return passed >= max_running and riders_left(max_running, passed, riders) >= most


def tickets_to_read(most: int, lines: int) -> int:
    """How many tickets of a line to read, of `most` wanted.

    `lines`: how many lines of its queue are looked at; 0: it is the only line of all. Lines take
    turns, so each gives about its part of the jobs. Twice that is read, and 8 at least.
    """
    return min(most, 8 + 2 * most // lines) if lines else most


class WaitingTicket(NamedTuple):
    """A ticket at a gate."""

    priority: int
    position: int
    is_suspect: bool
    needs: int
    size_kb: int


class Turn(NamedTuple):
    """One turn of a line; the lowest priority, then the lowest number, comes first."""

    priority: int
    n: int


def tickets_of(rows: Iterable[Sequence[Any]]) -> list[WaitingTicket]:
    """Name the columns of rows: priority, position, suspect, needs, kilobytes."""
    return cast(list[WaitingTicket], list(map(partial(tuple.__new__, WaitingTicket), rows)))


def turns_of(rows: Iterable[Sequence[Any]]) -> list[Turn]:
    """Name the columns of rows: priority, number."""
    return cast(list[Turn], list(map(partial(tuple.__new__, Turn), rows)))


Limited = tuple[str, str]
"""Where a limit counts: a gate, and the key, or nothing where all keys share the limit."""


def limited_by(gate: str, key: str, limits: Limits) -> Limited:
    """Where the limits of a line count."""
    return gate, key if limits.keyed else ""


@dataclass(slots=True)
class Line:
    """The head of one line: its first tickets, and the turns that named it.

    The tickets that pass are always the first of `tickets`.
    """

    queue: str
    gate: str
    key: str
    limits: Limits
    room: Room
    turns: Sequence[Turn]
    tickets: Sequence[WaitingTicket]
    more: bool
    """There are more tickets behind these."""
    runs: bool
    """Jobs of this line run; the end of each writes a turn."""
    ahead: bool = False
    """There may be tickets before these: the line was not read from its start."""
    passed: list[WaitingTicket] = field(default_factory=list)
    unwanted: bool = False
    """The worker has no room for jobs like its first one."""
    landed: list[int] = field(default_factory=list)
    """The jobs that have passed. A ticket may be void, or locked by another transaction."""

    @property
    def is_empty(self) -> bool:
        """Has it no ticket?"""
        return not (self.tickets or self.more or self.ahead)

    @property
    def is_shut(self) -> bool:
        """Can no ticket pass, for a reason that is this line's own?"""
        full = self.limits.keyed and (self.room.free < 1 or self.room.starts < 1)
        return self.is_empty or full or self.unwanted

    @property
    def limited(self) -> Limited:
        """Where its limits count."""
        return limited_by(self.gate, self.key, self.limits)


def admit(lines: Sequence[Line], demand: Demand, *, slots: int) -> None:
    """Let tickets pass, one of each line in turn, as far as there is room. Notes them on the lines.

    Takes what `demand` wants, so a line stops at the first ticket that does not fit, and others go
    on. Where a limit counts, the worker gets at most `slots` new permits; other jobs come as
    riders. The lowest priority goes first. At most one suspect passes, with a permit of its own,
    and no ticket overtakes another one in its line.
    """
    suspects = True
    heads = [(line.tickets[0].priority, 0, n) for n, line in enumerate(lines) if line.tickets]
    heapify(heads)
    while heads:
        _, first, n = heappop(heads)
        line = lines[n]
        ticket, queue = line.tickets[first], line.queue
        if not demand.fits(queue, ticket.needs, ticket.size_kb):
            line.unwanted = not line.passed and not demand.wants(queue, ticket.needs)
            continue
        last = first + 1 if heads or ticket.is_suspect else _next_suspect(line.tickets, first)
        jobs, own = line.room.allows(last - first, slots)
        if ticket.is_suspect:
            if not suspects or not jobs or (not own and line.limits.max_running is not None):
                continue
            suspects = False
        jobs = _take(demand, queue, line.tickets[first : first + jobs])
        _, own = line.room.allows(jobs, slots)
        line.room.take(jobs, own)
        slots -= own
        line.passed += line.tickets[first : first + jobs]
        if first + jobs == last < len(line.tickets):
            heappush(heads, (line.tickets[last].priority, last, n))


def _take(demand: Demand, queue: str, tickets: Sequence[WaitingTicket]) -> int:
    """Take tickets up to the first one that does not fit. Returns how many."""
    for n, ticket in enumerate(tickets):
        if not demand.fits(queue, ticket.needs, ticket.size_kb):
            return n
        demand.take(queue, ticket.needs, ticket.size_kb)
    return len(tickets)


def _next_suspect(tickets: Sequence[WaitingTicket], first: int) -> int:
    """No other line is left to take turns with: go on as far as there is no suspect."""
    following = (n for n in range(first, len(tickets)) if tickets[n].is_suspect)
    return next(following, len(tickets))


class Next(NamedTuple):
    """What becomes of a line's turns: those in `gone` are used up.

    `again`: the line gets one at the end, which counts after `wait_seconds`, if given.
    """

    gone: Sequence[Turn]
    again: bool = False
    wait_seconds: float | None = None


def next_turn(line: Line, *, alone: bool) -> Next:
    """What comes after this claim. `alone`: no other line waits for a turn.

    A turn is used up when its line is empty, or when the end of a job of the same line will write
    the next one. In all other cases one turn stays.
    """
    landed = len(line.landed)
    all_landed = landed == len(line.passed)
    if all_landed and landed == len(line.tickets) and not line.more and not line.ahead:
        return Next(line.turns)
    runs = line.runs or landed > 0
    if line.room.free < 1 and line.limits.keyed and runs and all_landed:
        return Next(line.turns)
    if line.room.starts < 1 and line.limits.rate is not None:
        wait = line.limits.seconds_to_start(line.room.starts)
        return Next(line.turns, again=True, wait_seconds=wait)
    if line.passed and not alone:
        return Next(line.turns, again=True)
    enough = 1 if line.is_shut else TURNS_KEPT  # every claim would meet the turns of a shut line
    return Next(line.turns[1:] if len(line.turns) > enough else [])
