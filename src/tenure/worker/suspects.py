"""Jobs that were in hand when workers died: the one that kills must be alone when it does so.

After the first death they run beside each other again, because most workers die by no job's fault.
From the second on they run one at a time in this process. Before one starts, the store knows that
it does and that the others do not: so, if the worker dies again, that one is charged and no other.
Handlers in child processes are above suspicion.
"""

import math
from collections import deque
from collections.abc import Iterable

from tenure.tasks import Kind
from tenure.worker.holding import Held, Holding

SUSPECT_CRASHES = 2


def is_suspect(holding: Holding) -> bool:
    """Was it in hand so often when a worker died that it must be tried alone?"""
    return holding.job.crashes >= SUSPECT_CRASHES and holding.task.kind != "process"


class Suspects:
    """Those that wait, and the one whose turn it is. Lives on the event loop."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._line: deque[Holding] = deque()
        self._turn: Holding | None = None

    def __bool__(self) -> bool:
        return bool(self._line)

    def keep(self, holdings: Iterable[Holding]) -> list[Holding]:
        """Have the suspects among these wait here. Answers the others."""
        others = []
        for holding in holdings:
            if is_suspect(holding):
                self._line.append(holding)
            else:
                others.append(holding)
        return others

    def next(self) -> Holding | None:
        """The one that may start now, once the store knows of its start and of no other's."""
        if self._turn is not None or not self._line:
            return None
        chosen = self._line[0]
        chosen.announced = True
        if not all(self._is_known(holding) for holding in self._line):
            return None
        self._turn = self._line.popleft()
        return self._turn

    def _is_known(self, holding: Holding) -> bool:
        lease = self._held.leases.get(holding.job.lease_id)
        if lease is None:  # lost: it will not run
            return True
        return lease.told is not None and (holding.job.id in lease.told) == holding.announced

    def ended(self, holding: Holding) -> None:
        """This attempt is over, or was given up."""
        if holding is self._turn:
            self._turn = None

    def take_back(self, *, since: float = math.inf) -> list[Holding]:
        """Give up those that wait, and do since this time or longer."""
        left = []
        while self._line and self._line[0].taken_at <= since:
            left.append(self._line.popleft())
        return left

    def waiting(self, kind: Kind) -> int:
        """How many of this kind wait."""
        return sum(holding.task.kind == kind for holding in self._line)
