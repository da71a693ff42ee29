"""Turns: which line at a gate comes next, and what becomes of the turns that a claim has met. Pure.

The tickets of one queue, gate and key are a line. Lines take turns: each claim lets one ticket of
each line pass, then the next one of each, as far as the limits allow.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, cast

from tenure.rules.gates import Limits
from tenure.rules.permits import Room

TURNS_KEPT = 8
"""A line may keep this many turns where one would do: to remove them takes a statement."""


class WaitingTicket(NamedTuple):
    """A ticket at a gate."""

    priority: int
    position: int
    is_suspect: bool


class Turn(NamedTuple):
    """One turn of a line; the lowest priority, then the lowest number, comes first."""

    priority: int
    n: int


def tickets_of(rows: Iterable[Sequence[Any]]) -> list[WaitingTicket]:
    """Name the columns of rows: priority, position, suspect."""
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
    unread: int = 0
    """This many tickets behind the read ones pass, too: no other line wants a turn."""
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
        return self.is_empty or full

    @property
    def limited(self) -> Limited:
        """Where its limits count."""
        return limited_by(self.gate, self.key, self.limits)


def admit(lines: Sequence[Line], most: dict[str, int], *, slots: int) -> None:
    """Let tickets pass, one of each line in turn, as far as there is room. Notes them on the lines.

    At most `most[queue]` of each queue. Where a limit counts, the worker gets at most `slots` new
    permits; other jobs come as riders. The lowest priority goes first. At most one suspect passes,
    with a permit of its own, and no ticket overtakes another one in its line.
    """
    suspects = True
    heads = [(line.tickets[0].priority, 0, n) for n, line in enumerate(lines) if line.tickets]
    heapify(heads)
    while heads:
        _, first, n = heappop(heads)
        line = lines[n]
        ticket, queue = line.tickets[first], line.queue
        if ticket.is_suspect:
            jobs, own = line.room.allows(min(1, most[queue]), slots)
            if not suspects or not jobs or (not own and line.limits.max_running is not None):
                continue
            suspects, last = False, first + 1
        else:
            last = first + 1 if heads else _next_suspect(line.tickets, first)
            jobs, own = line.room.allows(min(last - first, most[queue]), slots)
        line.room.take(jobs, own)
        slots -= own
        most[queue] -= jobs
        line.passed += line.tickets[first : first + jobs]
        if first + jobs == last < len(line.tickets):
            heappush(heads, (line.tickets[last].priority, last, n))
    if len(lines) == 1 and lines[0].more and len(lines[0].passed) == len(lines[0].tickets):
        [line] = lines
        line.unread, own = line.room.allows(most[line.queue], slots)
        line.room.take(line.unread, own)


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
    all_landed = landed == len(line.passed) + line.unread
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
