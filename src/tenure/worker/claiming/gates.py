"""Jobs that have passed a gate which limits how many run: no more start here than this worker has
places for. Others, which came along with them, wait for one to end.

A place belongs to the worker until a claim says otherwise: as soon as a handler has ended the next
one starts, and nobody has to be asked.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence

from tenure.rules.permits import Permits
from tenure.tasks import Kind
from tenure.worker.leases import Holding


class Line:
    """The jobs of one gate, or of one of its keys, in this worker's hands."""

    __slots__ = ("kinds", "most", "name", "running", "slots", "waiting")

    def __init__(self, name: tuple[str, str]) -> None:
        self.name = name
        self.most = 0
        """How many may run at once."""
        self.running = 0
        """How many have been let go: they run, or wait for a slot."""
        self.kinds: set[Kind] = set()
        self.slots = 0
        """How many of these kinds can run at once. With places for all, slots are limit enough."""
        self.waiting: deque[Holding] = deque()


class AtGates:
    """All lines of this worker. `slots` tells how many handlers of a kind can run at once."""

    def __init__(self, slots: Callable[[Kind], int], waiting_kinds: Counter[Kind]) -> None:
        self._slots = slots
        self._waiting_kinds = waiting_kinds
        self._lines: dict[tuple[str, str], Line] = {}

    def admit(self, holdings: Sequence[Holding], places: Sequence[Permits]) -> list[Holding]:
        """Those of these jobs, and of those that wait, that may run now; the others wait here."""
        line_of: dict[int, Line] = {}
        admitted: list[Holding] = []
        for each in places:
            name = each.gate, each.key
            line = self._lines.setdefault(name, Line(name))
            line.most = each.most
            admitted += self._let_go(line)
            line_of.update(dict.fromkeys(each.jobs, line))
        for holding in holdings:
            found = line_of.get(holding.job.id)
            if found is None:
                admitted.append(holding)
                continue
            kind = holding.task.kind
            if kind not in found.kinds:
                found.kinds.add(kind)
                found.slots += self._slots(kind)
            if found.running < found.most or found.slots <= found.most:
                holding.line = found
                found.running += 1
                admitted.append(holding)
            else:
                found.waiting.append(holding)
                self._waiting_kinds[kind] += 1
        return admitted

    def lower(self, places: Sequence[Permits]) -> None:
        """The answer to a claim came too late: what it gives is gone, but what it took away counts.

        Others may have those places by now.
        """
        for each in places:
            line = self._lines.get((each.gate, each.key))
            if line is not None:
                line.most = min(line.most, each.most)

    def freed(self, line: Line) -> list[Holding]:
        """One has ended there. Answers those that may run now."""
        following = self._let_go(line)
        if not line.running and not line.waiting:
            self._lines.pop(line.name, None)
        return following

    def take_back_waiting(self, *, since: float = math.inf) -> list[Holding]:
        """Give up the jobs that wait here, those that do since this time or longer."""
        left = []
        for line in list(self._lines.values()):
            while line.waiting and line.waiting[0].taken_at <= since:
                left.append(line.waiting.popleft())
            if not line.waiting and not line.running:
                del self._lines[line.name]
        self._waiting_kinds.subtract([holding.task.kind for holding in left])
        return left

    def _let_go(self, line: Line) -> list[Holding]:
        let_go = []
        while line.waiting and line.running < line.most:
            holding = line.waiting.popleft()
            self._waiting_kinds[holding.task.kind] -= 1
            holding.line = line
            line.running += 1
            let_go.append(holding)
        return let_go
