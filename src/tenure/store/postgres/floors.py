"""Floors: no ticket can appear below a floor any more, so claims need not look there.

While a long transaction is open anywhere in the cluster, PostgreSQL cannot remove the rows of
consumed tickets. A claim that starts at the head of its queue then scans all of them, and becomes
slower and slower. So each claimer keeps a floor per lane (queue, needs and priority) and starts its
index scan there.

When is a position safe as a floor? (tests/model/test_floor.py tries all interleavings of three
enqueuing transactions; without the wait or the second reading tickets are lost.)
  1. read the value v of the sequence,
  2. then the lowest position of a ticket in the lane (v + 1 if there is none),
  3. then the transactions that hold the lock on `ready` which every drawer of positions takes;
  4. once all of these have ended, read the lowest position again.
The smaller of the two readings is the floor. This is safe because a transaction takes that lock
before it draws a position, and its commit is visible before its locks are released. A claimer
forgets its floors when it reconnects. In case a floor is wrong, a claim every few seconds scans
everything.
"""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tenure.rules.limits import MAX_PRIORITY, MIN_PRIORITY
from tenure.store.records import LanePosition
from tenure.store.session import Reader, Row, to_json

STEP_TICKETS = 2000
"""Advance the floors after this many tickets: a claim scans few more consumed ones than this."""

FULL_SCAN_SECONDS = 5.0

Line = tuple[str, int]
"""Queue and needs."""
Lane = tuple[str, int, int]
"""Queue, needs and priority."""


class Gap(NamedTuple):
    """Neighbouring lines of a queue, from the first to the last needs."""

    queue: str
    first: int
    last: int


@dataclass
class _Candidate:
    """Steps 1 to 3: the lowest positions, and the transactions to wait for."""

    lowest: dict[Lane, int]
    drawers: set[str]


class LineFloors:
    """The heads of lines at gates as they were last seen, so that claims skip consumed tickets.

    A hint, without the proof that `Floors` has. It is forgotten after `KEPT_SECONDS`: a ticket that
    appears below it, committed late or put back, waits at most that long. So a line that was read
    from here is never taken for empty. Claims note a head only when they took many tickets of the
    line at once. A line whose jobs run one at a time, in order, is read from its start.
    """

    MANY = 32
    KEPT_SECONDS = 1.0
    MOST_LINES = 1000

    def __init__(self) -> None:
        self._heads: dict[Row, tuple[int, int]] = {}
        self._until = 0.0

    def note(self, line: Row, priority: int, position: int) -> None:
        """The line (queue, gate, key) starts here or later."""
        if not self._current() or len(self._heads) >= self.MOST_LINES:
            self._heads = {}
            self._until = time.monotonic() + self.KEPT_SECONDS
        self._heads[line] = priority, position

    def of(self, line: Row) -> tuple[int, int]:
        """The priority and position from which to search this line."""
        return self._current().get(line, (MIN_PRIORITY, 0))

    def forget(self, lines: Iterable[Row]) -> None:
        """Search these lines from their start."""
        for line in lines:
            self._heads.pop(line, None)

    def known(self) -> dict[Row, tuple[int, int]]:
        """Priority and position of each line that has one."""
        return self._current().copy()

    def _current(self) -> dict[Row, tuple[int, int]]:
        if self._heads and time.monotonic() > self._until:
            self._heads = {}
        return self._heads


@dataclass
class Floors:
    """The floors of one claimer."""

    full_scan_seconds: float = FULL_SCAN_SECONDS
    step_tickets: int = STEP_TICKETS
    _floors: dict[Lane, int] = field(default_factory=dict)
    _candidate: _Candidate | None = None
    _taken: int = 0
    _era: int = 0
    _last_full_scan: dict[Line, float] = field(default_factory=dict)
    lines: LineFloors = field(default_factory=LineFloors)
    """At gates, for claims."""
    heads: LineFloors = field(default_factory=LineFloors)
    """At gates, for settlements, which free permits. Only a notification depends on them."""

    def reset(self) -> None:
        """Forget everything: after a reconnect the server may be another one."""
        self._era += 1
        self._floors = {}
        self._candidate = None
        self._last_full_scan = {}
        self.lines, self.heads = LineFloors(), LineFloors()

    def note_taken(self, lanes: Iterable[Lane], tickets: int) -> None:
        """A claim took this many tickets from these lanes."""
        self._taken += tickets
        for lane in lanes:
            if lane not in self._floors:
                self._floors[lane] = 0

    async def advance(self, reader: Reader) -> None:
        """Take the next steps of the rule, if enough tickets were taken since the last ones."""
        if not self._floors or self._taken < self.step_tickets:
            return
        self._taken = 0
        era, candidate = self._era, self._candidate
        if candidate is not None:
            candidate.drawers &= await self._drawers(reader)
            if candidate.drawers:
                return
            again = await self._lowest(reader)
            for lane, position in candidate.lowest.items():
                if era == self._era:
                    floor = min(position, again.get(lane, position))
                    self._floors[lane] = max(self._floors.get(lane, 0), floor)
        [highest] = await reader.fetch_column("highest_position")
        lowest = await self._lowest(reader)
        lanes = {lane: lowest.get(lane, highest + 1) for lane in list(self._floors)}
        drawers = await self._drawers(reader)
        if era == self._era:
            self._candidate = _Candidate(lanes, drawers)

    def overdue(self, queues: Collection[str]) -> set[str]:
        """Of these queues, the ones whose next claim will look below their floors, too."""
        low = {(queue, needs) for (queue, needs, _), floor in list(self._floors.items()) if floor}
        return {
            queue
            for queue, needs in low
            if queue in queues and self._is_full_scan_due((queue, needs))
        }

    def _is_full_scan_due(self, line: Line) -> bool:
        last = self._last_full_scan.get(line, 0.0)
        return time.monotonic() - last >= self.full_scan_seconds

    def ranges(self, lines: Iterable[Line], *, all_of_it: bool = True) -> str:
        """The ranges of each line that may have tickets, in order, as rows of JSON.

        Between two ranges of a line is the part of one lane below its floor. Priorities that were
        never seen are inside a range, so the first ticket of a new one is found at once. With
        `all_of_it`, a line whose full scan is due gets one range from its start to its end.
        """
        rows = []
        for line in lines:
            full = all_of_it and self._is_full_scan_due(line)
            if full:
                self._last_full_scan[line] = time.monotonic()
            low = (MIN_PRIORITY - 1, 0)
            floors = () if full else sorted(
                (priority, floor) for (*name, priority), floor in list(self._floors.items())
                if floor > 0 and tuple(name) == line
            )  # fmt: skip
            for priority, floor in floors:
                rows.append(_range(line, low, priority))
                low = (priority, floor)
            rows.append(_range(line, low, MAX_PRIORITY + 1))
        return to_json(rows)

    def unseen(self, lines: Iterable[Line]) -> list[Gap]:
        """The lines from which this claimer has taken no ticket so far, neighbours together."""
        return _gaps(lines, {(queue, needs) for queue, needs, _ in list(self._floors)})

    def without_floor(self, lines: Iterable[Line]) -> list[Gap]:
        """The lines that have no floor in any lane, neighbours together."""
        low = {(queue, needs) for (queue, needs, _), floor in list(self._floors.items()) if floor}
        return _gaps(lines, low)

    async def _lowest(self, reader: Reader) -> dict[Lane, int]:
        lanes = [
            {"queue": queue, "needs": needs, "priority": priority, "floor": floor}
            for (queue, needs, priority), floor in list(self._floors.items())
        ]
        rows = await reader.fetch_as(LanePosition, "lowest_positions", lanes=to_json(lanes))
        return {
            (lane.queue, lane.needs, lane.priority): lane.position
            for lane in rows
            if lane.position is not None
        }

    async def _drawers(self, reader: Reader) -> set[str]:
        return set(await reader.fetch_column("position_drawers"))


def _gaps(lines: Iterable[Line], between: set[Line]) -> list[Gap]:
    gaps: list[Gap] = []
    for queue, needs in sorted(set(lines) - between):
        if gaps and (gaps[-1].queue, gaps[-1].last) == (queue, needs - 1):
            gaps[-1] = gaps[-1]._replace(last=needs)
        else:
            gaps.append(Gap(queue, needs, needs))
    return gaps


def _range(line: Line, low: tuple[int, int], below_priority: int) -> dict[str, object]:
    queue, needs = line
    priority, position = low
    return {
        "queue": queue, "needs": needs, "low_priority": priority, "low_position": position,
        "below_priority": below_priority,
    }  # fmt: skip
