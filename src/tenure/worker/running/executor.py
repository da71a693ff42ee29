"""What all executors share: slots, and a backlog of jobs that wait for one.

    coroutines.py   `async def` handlers, on the event loop
    threads.py      `def` handlers, in threads
    children/       handlers with `isolation="process"`, in child processes

An executor gets jobs on the event loop and reports there when an attempt has ended. A handler that
does not stop when told keeps its slot: it is stuck, and the worker logs that.
"""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable

from tenure.client import Client
from tenure.rules.lifecycle import Settlement
from tenure.worker.environment import Environment
from tenure.worker.leases import LeasedJob

log = logging.getLogger("tenure.worker")

OnEnd = Callable[[LeasedJob, Settlement | None], None]


class Forks:
    """Counts the forks between the first process and this one.

    (To ask for the process id after each job would be a system call.)
    """

    count = 0

    @classmethod
    def note(cls) -> None:
        """This process is a fork."""
        cls.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Forks.note)


class Executor(ABC):
    """Runs one kind of handler. All methods are called on the event loop."""

    on_end: OnEnd
    """Called with each attempt that has ended. Set before the first job is submitted."""

    def __init__(self, slots: int, app: Client, worker: str, environment: Environment) -> None:
        self.slots = slots
        self.job_count = 0
        """How many jobs run here or wait for a slot."""
        self._app = app
        self._worker = worker
        self._environment = environment
        self._forks = Forks.count

    @property
    def free(self) -> int:
        """How many slots are free; below zero when jobs wait."""
        return self.slots - self.job_count

    def submit(self, jobs: list[LeasedJob]) -> None:
        """Run these jobs as slots come free."""
        self.job_count += len(jobs)
        self._submit(jobs)

    @abstractmethod
    def _submit(self, jobs: list[LeasedJob]) -> None: ...

    def take_back(self) -> list[LeasedJob]:
        """Remove and return the jobs that have not started."""
        unstarted = self._take_back()
        self.job_count -= len(unstarted)
        for leased in unstarted:
            leased.slot_freed = True
        return unstarted

    @abstractmethod
    def _take_back(self) -> list[LeasedJob]: ...

    @abstractmethod
    def waits_since(self) -> float | None:
        """When the job at the head of the backlog was claimed; None if no job waits."""

    @abstractmethod
    def close(self) -> None:
        """End the coroutines or threads of the slots."""

    def exit_if_forked(self) -> None:
        """End a fork of this process that returned from a handler; the worker itself continues."""
        if Forks.count != self._forks:
            log.error("a handler forked and its fork returned; the fork ends here")
            self._environment.exit_now(70)

    def _end(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        """The handler has ended: its slot is free."""
        self.job_count -= 1
        leased.slot_freed = True
        self.on_end(leased, settlement)
