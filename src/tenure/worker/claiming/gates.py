"""Permits at gates that limit how many jobs run: the worker never runs more jobs than permits.

A claim may bring more jobs of a gate than permits ("riders"). They wait here until a running job of
the same gate and key ends. A permit stays with the worker until a claim takes it away: so the next
job starts at once, without a question to the database.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence

from tenure.rules.claim import Kind, Permits
from tenure.worker.leases import LeasedJob


class GateLine:
    """This worker's jobs at one gate and key."""

    __slots__ = ("kinds", "most", "name", "running", "slots", "waiting")

    def __init__(self, name: tuple[str, str]) -> None:
        self.name = name
        self.most = 0
        """How many permits this worker has."""
        self.running = 0
        """How many jobs use a permit: they run, or wait for a slot."""
        self.kinds: set[Kind] = set()
        self.slots = 0
        """How many jobs of these kinds can run at once. With as many permits, none waits."""
        self.waiting: deque[LeasedJob] = deque()


class GatePermits:
    """The permits of this worker. `slots` returns how many handlers of a kind can run at once."""

    def __init__(self, slots: Callable[[Kind], int], waiting_kinds: Counter[Kind]) -> None:
        self._slots = slots
        self._waiting_kinds = waiting_kinds
        self._lines: dict[tuple[str, str], GateLine] = {}
        self.users: dict[LeasedJob, GateLine] = {}
        """The jobs that use a permit."""

    def admit(self, jobs: Sequence[LeasedJob], permits: Sequence[Permits]) -> list[LeasedJob]:
        """Returns the jobs that may run now, new ones and waiting ones; the others wait here."""
        line_of: dict[int, GateLine] = {}
        admitted: list[LeasedJob] = []
        for each in permits:
            name = each.gate, each.key
            line = self._lines.setdefault(name, GateLine(name))
            line.most = each.most
            admitted += self._admit_waiting(line)
            line_of.update(dict.fromkeys(each.jobs, line))
        for leased in jobs:
            found = line_of.get(leased.job.id)
            if found is None:
                admitted.append(leased)
                continue
            kind = leased.task.kind
            if kind not in found.kinds:
                found.kinds.add(kind)
                found.slots += self._slots(kind)
            if found.running < found.most or found.slots <= found.most:
                self.users[leased] = found
                found.running += 1
                admitted.append(leased)
            else:
                found.waiting.append(leased)
                self._waiting_kinds[kind] += 1
        return admitted

    def lower(self, permits: Sequence[Permits]) -> None:
        """A claim returned too late: the permits that it gave are void, but those it took are gone.

        Other workers may have them by now.
        """
        for each in permits:
            line = self._lines.get((each.gate, each.key))
            if line is not None:
                line.most = min(line.most, each.most)

    def free(self, leased: LeasedJob) -> list[LeasedJob]:
        """A job that uses a permit has ended or was put back. Returns jobs that may run now."""
        line = self.users.pop(leased)
        line.running -= 1
        following = self._admit_waiting(line)
        if not line.running and not line.waiting:
            self._lines.pop(line.name, None)
        return following

    def take_back_waiting(self, *, since: float = math.inf) -> list[LeasedJob]:
        """Remove and return jobs that have waited since `since` or earlier."""
        unstarted = []
        for line in list(self._lines.values()):
            while line.waiting and line.waiting[0].taken_at <= since:
                unstarted.append(line.waiting.popleft())
            if not line.waiting and not line.running:
                del self._lines[line.name]
        self._waiting_kinds.subtract([leased.task.kind for leased in unstarted])
        return unstarted

    def _admit_waiting(self, line: GateLine) -> list[LeasedJob]:
        admitted = []
        while line.waiting and line.running < line.most:
            leased = line.waiting.popleft()
            self._waiting_kinds[leased.task.kind] -= 1
            self.users[leased] = line
            line.running += 1
            admitted.append(leased)
        return admitted
