"""How many jobs to claim from which queue, how many of a queue may run, and which must run alone.

A queue with slots of its own never runs more jobs than that; jobs claimed ahead wait here. The free
slots of each kind are divided between queues by weight (the slots of a queue), and slots that one
queue does not use go to the others. No queue starves: a share lost to rounding is kept as credit
for the next claim.
"""

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping

from tenure.client import Client
from tenure.rules.claim import Kind
from tenure.worker.leases import LeasedJob

PREFETCH_SECONDS = 0.05
"""The worker claims about this much work ahead of free slots, and never jobs that take longer."""
MAX_PREFETCH = 1000
MAX_CLAIM = 1000
LEARNING = 0.05
SUSPECT_CRASHES = 2


class Slots:
    """The slots of each queue, and the jobs that wait for one."""

    def __init__(self, queues: Mapping[str, int]) -> None:
        self.limits = {queue: slots for queue, slots in queues.items() if slots}
        self._used = dict.fromkeys(queues, 0)
        self._waiting: dict[str, deque[LeasedJob]] = {queue: deque() for queue in self.limits}
        self.waiting_kinds: Counter[Kind] = Counter()
        """How many jobs wait, by kind: for a slot of their queue, or for a permit at a gate."""

    def admit(self, jobs: Iterable[LeasedJob]) -> list[LeasedJob]:
        """Returns the jobs that may run now; the others wait here."""
        admitted = []
        for leased in jobs:
            queue = leased.job.queue
            if queue in self.limits and self._used[queue] >= self.limits[queue]:
                self._waiting[queue].append(leased)
                self.waiting_kinds[leased.task.kind] += 1
                continue
            self._used[queue] = self._used.get(queue, 0) + 1
            admitted.append(leased)
        return admitted

    def ended(self, leased: LeasedJob) -> LeasedJob | None:
        """A job of this queue has ended. Returns the next one that may run."""
        queue = leased.job.queue
        if self._waiting.get(queue):
            return self._next(queue)
        self._used[queue] -= 1
        return None

    def take_back(self, jobs: Collection[LeasedJob]) -> None:
        """These jobs were admitted and never ran."""
        for leased in jobs:
            self._used[leased.job.queue] -= 1

    def take_back_waiting(self, *, since: float = math.inf) -> list[LeasedJob]:
        """Remove and return jobs that have waited since `since` or earlier."""
        unstarted = []
        for waiting in self._waiting.values():
            while waiting and waiting[0].taken_at <= since:
                unstarted.append(self._next(waiting[0].job.queue))
        return unstarted

    def _next(self, queue: str) -> LeasedJob:
        leased = self._waiting[queue].popleft()
        self.waiting_kinds[leased.task.kind] -= 1
        return leased

    def waiting(self, kind: Kind) -> int:
        """How many jobs of this kind wait for a slot of their queue, or for a permit at a gate."""
        return self.waiting_kinds[kind]

    def in_use(self, queue: str) -> int:
        """How many jobs of this queue run or wait."""
        return self._used.get(queue, 0) + len(self._waiting.get(queue, ()))


class QueueKinds:
    """The kinds of jobs to expect in each queue: those of its own tasks, or of all tasks."""

    def __init__(self, app: Client, queues: Iterable[str]) -> None:
        self.all: frozenset[Kind] = frozenset({task.kind for task in app} or {"async"})
        self.of: dict[str, frozenset[Kind]] = {}
        for queue in queues:
            own = {task.kind for task in app if task.options_of_task.queue == queue}
            self.of[queue] = frozenset(own) or self.all

    def learn(self, queues: Collection[str], kind: Kind) -> None:
        """Jobs of this kind came from these queues: its slots count for them from now on."""
        for queue in queues:
            if kind not in self.of[queue]:
                self.of[queue] |= {kind}


class Suspects:
    """Runs jobs that crashed twice or more one at a time, so that the job that kills is found.

    After its first crash a job runs beside others again, because most workers die for another
    reason. From the second crash on, this process runs one such job at a time: if the process dies
    again, only that job is charged. Handlers in child processes cannot kill the worker.
    """

    def __init__(self) -> None:
        self.tried: LeasedJob | None = None
        """The suspect that runs now."""

    def may_run(self, leased: LeasedJob) -> bool:
        """May this job run here now? (Suspects come alone on their lease.)"""
        if leased.job.crashes < SUSPECT_CRASHES or leased.task.kind == "process":
            return True
        if self.tried is not None:
            return False
        self.tried = leased
        return True

    def ended(self, leased: LeasedJob) -> None:
        """This attempt has ended, or the job was put back."""
        if leased is self.tried:
            self.tried = None


class Pace:
    """How long jobs take, by kind or by queue; from that, how many to claim ahead."""

    def __init__(self) -> None:
        self._mean_seconds: dict[str, float] = {}

    def learn(self, of: str, seconds: float) -> None:
        """A job of this kind or queue took this long."""
        mean = self._mean_seconds.get(of, seconds)
        self._mean_seconds[of] = mean + LEARNING * (seconds - mean)

    def knows(self, of: str) -> bool:
        """Has a job of this kind or queue run here?"""
        return of in self._mean_seconds

    def mean(self, of: str) -> float:
        """What it has learned; 0 if nothing."""
        return self._mean_seconds.get(of, 0.0)

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
    """Divides the free slots of each kind between queues."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        default = max([1, *weights.values()])
        self._weights = {queue: weight or default for queue, weight in weights.items()}
        self._credit: dict[tuple[Kind, str], float] = {}

    def divide(self, kind: Kind, limits: Mapping[str, int], room: int) -> dict[str, int]:
        """How many jobs of a kind to ask each queue for: never more than its limit, or the room."""
        asked: dict[str, int] = {}
        total = sum(self._weights[queue] for queue in limits)
        wishes = {
            queue: min(float(limit), room * self._weights[queue] / total)
            + self._credit.get((kind, queue), 0.0)
            for queue, limit in limits.items()
        }
        for queue in sorted(limits, key=lambda q: -wishes[q]):
            share = max(0, min(limits[queue], MAX_CLAIM, room, max(1, round(wishes[queue]))))
            if share:
                asked[queue] = share
                room -= share
            self._credit[kind, queue] = max(-1.0, min(1.0, wishes[queue] - share))
        return asked
