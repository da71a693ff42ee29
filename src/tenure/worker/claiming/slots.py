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
from tenure.rules.claim import ALL_NEEDS, KINDS, Kind
from tenure.worker.leases import LeasedJob

PREFETCH_SECONDS = 0.05
"""The worker claims about this much work ahead of free slots, and never jobs that take longer."""
MAX_PREFETCH = 1000
MAX_CLAIM = 1000
LEARNING = 0.05
SUSPECT_CRASHES = 2
MIX_JOBS = 1000
"""The worker remembers the kinds of about this many jobs of a queue."""


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
            while waiting and waiting[0].waits_since <= since:
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
    """The kinds of jobs to expect in each queue: those of its own tasks, or of all tasks.

    The ticket of a job that was enqueued by its name alone does not say its kind. Such jobs are
    *unsure*: a claim takes them as if their kinds were mixed like those of the last ones. At first
    each kind of the queue counts as if one such job had come. A kind that has not come for about a
    thousand jobs does not count any more. So an unused kind costs a few small claims at the start.
    """

    def __init__(self, app: Client, queues: Iterable[str]) -> None:
        self.of: dict[str, frozenset[Kind]] = {}
        self._expect(frozenset({task.kind for task in app} or {"async"}))
        for queue in queues:
            own = {task.kind for task in app if task.options_of_task.queue == queue}
            self.of[queue] = frozenset(own) or self.all
        self._mix = {queue: Counter(kinds) for queue, kinds in self.of.items()}
        self.with_unsure: set[str] = set()
        """Queues from which unsure jobs have come."""

    def _expect(self, kinds: frozenset[Kind]) -> None:
        self.all = kinds
        self.unsure = tuple(needs for needs in ALL_NEEDS if KINDS.get(needs) not in kinds)
        """Tickets with these needs do not say the kind of their jobs in this code."""

    def learn(self, queues: Collection[str], kind: Kind) -> None:
        """Jobs of this kind came from these queues: its slots count for them from now on."""
        for queue in queues:
            if kind not in self.of[queue]:
                self.of[queue] |= {kind}
                self._expect(self.all | {kind})

    def learn_unsure(self, queue: str, kind: Kind, jobs: int) -> None:
        """This number of unsure jobs of a queue turned out to be of this kind."""
        self.learn([queue], kind)
        self.with_unsure.add(queue)
        mix = self._mix[queue]
        mix[kind] += jobs
        while mix.total() > MIX_JOBS:
            for each in mix:
                mix[each] //= 2

    def most_unsure(self, queue: str, room: Mapping[Kind, int]) -> int:
        """How many unsure jobs to claim, so that about as many of each kind come as have room."""
        mix = self._mix[queue]
        return min(room[kind] * mix.total() // jobs for kind, jobs in mix.items() if jobs)


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


class Means:
    """The mean of a figure of the last jobs, by kind or by queue."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def learn(self, of: str, figure: float) -> None:
        """A job of this kind or queue had this figure."""
        mean = self._means.get(of, figure)
        self._means[of] = mean + LEARNING * (figure - mean)

    def knows(self, of: str) -> bool:
        """Has a job of this kind or queue run here?"""
        return of in self._means

    def mean(self, of: str, otherwise: float = 0.0) -> float:
        """What it has learned, if it has."""
        return self._means.get(of, otherwise)


class Pace(Means):
    """How many seconds jobs take; from that, how many to claim ahead."""

    def slow_down(self, of: str) -> None:
        """Jobs claimed ahead had to wait too long: claim none ahead until jobs are short again."""
        self._means[of] = 100 * PREFETCH_SECONDS

    def prefetch(self, of: str, slots: int) -> int:
        """How many jobs to claim ahead of free slots."""
        mean = self._means.get(of)
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
