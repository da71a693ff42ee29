"""Gathers jobs of batch tasks until a batch is full, or its first job has waited long enough.

A batch goes on as its first job, whose `batch` names them all, and takes one slot. A job with a
crash on record is a batch of its own: if it kills the worker again, no other job is charged.
"""

import asyncio
from collections.abc import Callable, Sequence

from tenure.rules.claim import Kind
from tenure.worker.leases import LeasedJob

Name = tuple[str, str]
"""A task and a queue."""


class Batches:
    """The batches of one worker process that are not full yet. Lives on the event loop."""

    def __init__(
        self, start: Callable[[Sequence[LeasedJob]], None], now: Callable[[], float]
    ) -> None:
        self._start = start
        self._now = now
        self.forming: dict[Name, list[LeasedJob]] = {}
        self._timers: dict[Name, asyncio.TimerHandle] = {}
        self._others: dict[Name, int] = {}
        """How many other jobs of its kind came since a batch began to form."""

    def gather(self, jobs: Sequence[LeasedJob]) -> list[LeasedJob]:
        """Start the batches that are full now. Returns the jobs that do not wait for others."""
        going: list[LeasedJob] = []
        for name, members in self.forming.items():
            kind = members[0].task.kind
            self._others[name] += sum(
                leased.task.kind == kind and (leased.task.name, leased.job.queue) != name
                for leased in jobs
            )
        for leased in jobs:
            batch = leased.task.options_of_task.batch
            if batch is None:
                going.append(leased)
                continue
            if leased.job.crashes or batch.max_size == 1:
                leased.batch = [leased]
                going.append(leased)
                continue
            name = (leased.task.name, leased.job.queue)
            members = self.forming.setdefault(name, [])
            members.append(leased)
            if len(members) >= batch.max_size:
                self._start([self._close(name)])
            elif len(members) == 1:
                self._others[name] = 0
                loop = asyncio.get_running_loop()
                self._timers[name] = loop.call_later(batch.wait_seconds, self._time_is_up, name)
        return going

    def _time_is_up(self, name: Name) -> None:
        if name in self.forming:
            self._start([self._close(name)])

    def _close(self, name: Name) -> LeasedJob:
        members = self.forming.pop(name)
        self._timers.pop(name).cancel()
        del self._others[name]
        now = self._now()
        for leased in members:
            leased.batch, leased.waits_since = members, now
        return members[0]

    def take_back(self) -> list[LeasedJob]:
        """Remove and return the jobs of batches that are not full."""
        jobs = [leased for members in self.forming.values() for leased in members]
        for timer in self._timers.values():
            timer.cancel()
        self.forming.clear()
        self._timers.clear()
        self._others.clear()
        return jobs

    def room(self, kind: Kind) -> int:
        """How many jobs of this kind to claim beyond free slots, to fill the batches.

        A claim cannot ask for jobs of one task. The others that came instead count, too: they wait
        for slots here, while another worker could run them.
        """
        return sum(
            max(0, _missing(members) - self._others[name])
            for name, members in self.forming.items()
            if members[0].task.kind == kind
        )

    def room_in(self, queue: str) -> int:
        """How many jobs of this queue fit into batches beyond its free slots."""
        return sum(_missing(members) for (_, of), members in self.forming.items() if of == queue)


def _missing(members: Sequence[LeasedJob]) -> int:
    """How many jobs a batch lacks, but for one: that one has the slot of the batch."""
    batch = members[0].task.options_of_task.batch
    return 0 if batch is None else batch.max_size - len(members) - 1


def whole(jobs: Sequence[LeasedJob]) -> list[LeasedJob]:
    """These jobs, with all jobs of the batches that they stand for."""
    return [each for leased in jobs for each in (leased.batch or [leased])]
