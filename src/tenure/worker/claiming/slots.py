"""How many jobs to claim from which queue, how many of a queue may run, and which of them alone.

A queue with slots of its own never has more jobs running than that; jobs claimed ahead wait here.
Free capacity is shared between queues by weight (their slots), and what one queue does not use goes
to the others. No queue starves: what was lost to rounding is kept as credit for the next claim.
"""

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping

from tenure.tasks import Kind
from tenure.worker.leases import Holding

PREFETCH_SECONDS = 0.05
"""Work for about so long is claimed ahead of free slots; longer jobs are never prefetched."""
MAX_PREFETCH = 1000
MAX_CLAIM = 1000
LEARNING = 0.05
SUSPECT_CRASHES = 2


class Slots:
    """The slots of each queue, and the jobs that wait for one."""

    def __init__(self, queues: Mapping[str, int]) -> None:
        self.limits = {queue: slots for queue, slots in queues.items() if slots}
        self._used = dict.fromkeys(queues, 0)
        self._waiting: dict[str, deque[Holding]] = {queue: deque() for queue in self.limits}
        self.waiting_kinds: Counter[Kind] = Counter()
        """How many wait, by kind: here, and at gates for a place."""

    def admit(self, holdings: Iterable[Holding]) -> list[Holding]:
        """Those of these jobs that may run now; the others wait here."""
        admitted = []
        for holding in holdings:
            queue = holding.job.queue
            if queue in self.limits and self._used[queue] >= self.limits[queue]:
                self._waiting[queue].append(holding)
                self.waiting_kinds[holding.task.kind] += 1
                continue
            self._used[queue] = self._used.get(queue, 0) + 1
            admitted.append(holding)
        return admitted

    def ended(self, holding: Holding) -> Holding | None:
        """A job of this queue has ended. Answers the next one that may run."""
        queue = holding.job.queue
        if self._waiting.get(queue):
            return self._next(queue)
        self._used[queue] -= 1
        return None

    def take_back(self, holdings: Collection[Holding]) -> None:
        """These were admitted and never ran."""
        for holding in holdings:
            self._used[holding.job.queue] -= 1

    def take_back_waiting(self, *, since: float = math.inf) -> list[Holding]:
        """Give up the jobs that wait here, those that do since this time or longer."""
        left = []
        for waiting in self._waiting.values():
            while waiting and waiting[0].taken_at <= since:
                left.append(self._next(waiting[0].job.queue))
        return left

    def _next(self, queue: str) -> Holding:
        holding = self._waiting[queue].popleft()
        self.waiting_kinds[holding.task.kind] -= 1
        return holding

    def waiting(self, kind: Kind) -> int:
        """How many jobs of this kind wait here, or at gates for a place."""
        return self.waiting_kinds[kind]

    def in_hand(self, queue: str) -> int:
        """How many jobs of this queue run or wait."""
        return self._used.get(queue, 0) + len(self._waiting.get(queue, ()))


class Suspects:
    """Jobs that were in hand when workers died: the one that kills must be alone when it does so.

    After the first death they run beside each other again, because most workers die by no job's
    fault. From the second on, this process has one of them at a time: so, if it dies again, that
    one is charged and no other. Handlers in child processes are above suspicion.
    """

    def __init__(self) -> None:
        self.tried: Holding | None = None
        """The one that is in hand now."""

    def may_run(self, holding: Holding) -> bool:
        """May this job, which came alone on its lease as suspects do, run here and now?"""
        if holding.job.crashes < SUSPECT_CRASHES or holding.task.kind == "process":
            return True
        if self.tried is not None:
            return False
        self.tried = holding
        return True

    def ended(self, holding: Holding) -> None:
        """This attempt is over, or was given up."""
        if holding is self.tried:
            self.tried = None


class Pace:
    """How long jobs take, by kind or by queue, and so how many to claim ahead."""

    def __init__(self) -> None:
        self._mean_seconds: dict[str, float] = {}

    def learn(self, of: str, seconds: float) -> None:
        """One more job of this kind or queue has ended."""
        mean = self._mean_seconds.get(of, seconds)
        self._mean_seconds[of] = mean + LEARNING * (seconds - mean)

    def slow_down(self, of: str) -> None:
        """Jobs claimed ahead had to wait too long: claim none ahead until jobs are short again."""
        self._mean_seconds[of] = 100 * PREFETCH_SECONDS

    def prefetch(self, of: str, slots: int) -> int:
        """How many jobs to claim ahead of free slots."""
        mean = self._mean_seconds.get(of)
        if mean is None or mean > PREFETCH_SECONDS:
            return 0
        return min(MAX_PREFETCH, int(slots * PREFETCH_SECONDS / max(mean, 1e-6)))


class Shares:
    """Divides free capacity between queues."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        default = max([1, *weights.values()])
        self._weights = {queue: weight or default for queue, weight in weights.items()}
        self._credit = dict.fromkeys(weights, 0.0)

    def divide(
        self,
        limits: Mapping[str, int],
        room: Mapping[Kind, int],
        kinds: Mapping[str, Collection[Kind]],
    ) -> dict[str, int]:
        """How many jobs to ask each queue for: never more than its limit, or than there is room."""
        left = dict(room)
        asked: dict[str, int] = {}
        wishes: dict[str, float] = {}
        for queue, limit in limits.items():
            rivals = [q for q in limits if set(kinds[q]) & set(kinds[queue])]
            total = sum(self._weights[q] for q in rivals)
            fair = min(left[kind] for kind in kinds[queue]) * self._weights[queue] / total
            wishes[queue] = min(float(limit), fair) + self._credit[queue]
        for queue in sorted(limits, key=lambda q: -wishes[q]):
            most = min([limits[queue], MAX_CLAIM, *(left[kind] for kind in kinds[queue])])
            share = max(0, min(most, max(1, round(wishes[queue]))))
            if share:
                asked[queue] = share
                for kind in kinds[queue]:
                    left[kind] -= share
            self._credit[queue] = max(-1.0, min(1.0, wishes[queue] - share))
        return asked
