"""Floors: below them no ticket can appear any more, so claims need not look there.

A long transaction anywhere in the cluster keeps dead tickets at the head of the line alive, and a
claim that starts at the head walks all of them: the classic death of queues on PostgreSQL. Each
claimer keeps a floor per lane (queue and priority) and starts its index scan there.

When is a place safe as a floor? (Explored over all interleavings of three enqueuing transactions in
tests/model/test_floor.py; leaving out the wait or the second reading loses tickets.)
  1. note the sequence's value v,
  2. then the lowest live place m of the lane (v + 1 if there is none),
  3. then who holds a lock on `ready` that a drawer of places takes;
  4. once all of those have ended, read the lowest live place again.
The smaller of the two readings is the floor. Whoever draws a place holds that lock already, and a
commit is visible before its locks are released. Floors are forgotten on reconnect, and a full scan
every few seconds is the safety net.
"""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tenure.rules.limits import MAX_PRIORITY, MIN_PRIORITY
from tenure.store.records import LanePosition
from tenure.store.session import Reader, Row, to_json

STEP_TICKETS = 2000
"""Look again after so many tickets: a claim never walks much more than this many dead ones."""

FULL_SCAN_SECONDS = 5.0

Lane = tuple[str, int]


@dataclass
class _Candidate:
    """Steps 1 to 3: what was read, and whom to wait for."""

    lowest: dict[Lane, int]
    drawers: set[str]


class LineFloors:
    """Where lines at gates have begun of late, so that their dead tickets are not walked each time.

    A hint, without the proof that `Floors` has, and forgotten after a moment: what comes to stand
    below it, committed late or put back, waits so long at most. So nobody calls a line empty that
    was read from here on. Claims keep one of lines from which they took many at once: where one job
    runs at a time, in order, it is read from its start.
    """

    MANY = 32
    KEPT_SECONDS = 1.0
    MOST_LINES = 1000

    def __init__(self) -> None:
        self._heads: dict[Row, tuple[int, int]] = {}
        self._until = 0.0

    def note(self, line: Row, priority: int, position: int) -> None:
        """The line (queue, gate, key) begins here, or later."""
        if not self._current() or len(self._heads) >= self.MOST_LINES:
            self._heads = {}
            self._until = time.monotonic() + self.KEPT_SECONDS
        self._heads[line] = priority, position

    def of(self, line: Row) -> tuple[int, int]:
        """Where to search this line from: priority and place."""
        return self._current().get(line, (MIN_PRIORITY, 0))

    def forget(self, lines: Iterable[Row]) -> None:
        """Search these from their start."""
        for line in lines:
            self._heads.pop(line, None)

    def known(self) -> dict[Row, tuple[int, int]]:
        """All that is known: of each line its priority and place."""
        return self._current().copy()

    def _current(self) -> dict[Row, tuple[int, int]]:
        if self._heads and time.monotonic() > self._until:
            self._heads = {}
        return self._heads


@dataclass
class Floors:
    """What one claimer knows of the lines it claims from."""

    full_scan_seconds: float = FULL_SCAN_SECONDS
    step_tickets: int = STEP_TICKETS
    _floors: dict[Lane, int] = field(default_factory=dict)
    _candidate: _Candidate | None = None
    _taken: int = 0
    _era: int = 0
    _last_full_scan: dict[str, float] = field(default_factory=dict)
    lines: LineFloors = field(default_factory=LineFloors)
    """At gates, for claims."""
    heads: LineFloors = field(default_factory=LineFloors)
    """At gates, for whoever frees a place: only a hint depends on them."""

    def reset(self) -> None:
        """Forget everything: another server may have answered since."""
        self._era += 1
        self._floors = {}
        self._candidate = None
        self._last_full_scan = {}
        self.lines, self.heads = LineFloors(), LineFloors()

    def floor(self, queue: str, priority: int) -> int:
        """The place below which this lane holds nothing."""
        return self._floors.get((queue, priority), 0)

    def note_taken(self, lanes: Iterable[Lane], tickets: int) -> None:
        """Learn which lanes exist, and how much was consumed."""
        self._taken += tickets
        for lane in lanes:
            if lane not in self._floors:
                self._floors[lane] = 0

    async def advance(self, reader: Reader) -> None:
        """Take the next steps of the rule, if enough tickets have gone by."""
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
        """Of these queues, those whose next claim will look below their floors, too."""
        low = {queue for (queue, _), floor in list(self._floors.items()) if floor > 0}
        return {queue for queue in low.intersection(queues) if self._is_full_scan_due(queue)}

    def _is_full_scan_due(self, queue: str) -> bool:
        last = self._last_full_scan.get(queue, 0.0)
        return time.monotonic() - last >= self.full_scan_seconds

    def ranges(self, queues: Collection[str], *, all_of_it: bool = True) -> str:
        """The stretches of each line in which tickets may stand, in order, as rows of JSON.

        Between two stretches of a queue lies the dead part of one lane. Priorities that were never
        seen lie inside a stretch, so a new one is found at once. With `all_of_it`, this is the scan
        of everything when it is time for one.
        """
        rows = []
        for queue in queues:
            full = all_of_it and self._is_full_scan_due(queue)
            if full:
                self._last_full_scan[queue] = time.monotonic()
            low = (MIN_PRIORITY - 1, 0)
            floors = () if full else sorted(
                (priority, floor) for (name, priority), floor in list(self._floors.items())
                if name == queue and floor > 0
            )  # fmt: skip
            for priority, floor in floors:
                rows.append(_range(queue, low, priority))
                low = (priority, floor)
            rows.append(_range(queue, low, MAX_PRIORITY + 1))
        return to_json(rows)

    async def _lowest(self, reader: Reader) -> dict[Lane, int]:
        lanes = [
            {"queue": queue, "priority": priority, "floor": floor}
            for (queue, priority), floor in list(self._floors.items())
        ]
        rows = await reader.fetch_as(LanePosition, "lowest_positions", lanes=to_json(lanes))
        return {
            (lane.queue, lane.priority): lane.position for lane in rows if lane.position is not None
        }

    async def _drawers(self, reader: Reader) -> set[str]:
        return set(await reader.fetch_column("position_drawers"))


def _range(queue: str, low: tuple[int, int], below_priority: int) -> dict[str, object]:
    priority, position = low
    return {
        "queue": queue, "low_priority": priority, "low_position": position,
        "below_priority": below_priority,
    }  # fmt: skip
