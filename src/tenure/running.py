"""The running job as its handler sees it."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from tenure.control import Cancel
from tenure.errors import LeaseLost, WorkerStopping
from tenure.rules.notes import NoteValue

if TYPE_CHECKING:
    from tenure.rules.graph import ParentEnd
    from tenure.tasks import Task
    from tenure.workflow import Growth

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Flag:
    """A fact that may become true while a handler runs, and then stays true."""

    # Every job has two, and hardly any is ever set: there is no `__init__` to save its cost.
    _set = False
    _bell: threading.Event | None = None

    def __bool__(self) -> bool:
        return self._set

    def __repr__(self) -> str:
        return f"<Flag {self._set}>"

    def set(self) -> None:
        """Make it true, and wake all threads that wait for it."""
        self._set = True
        if self._bell is not None:
            self._bell.set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block this thread until it is true, or until the timeout. Returns whether it is true."""
        # In one step: if two threads begin to wait, neither may replace the other's bell.
        bell: threading.Event = self.__dict__.setdefault("_bell", threading.Event())
        if self._set:  # it may have been set while the bell was made
            return True
        return bell.wait(timeout_seconds)


class Running(ABC):
    """One attempt of one job. Handlers receive it as a first parameter annotated `Running`.

    `token` names this attempt and grows with each one: use it to fence writes elsewhere, such as
    object names or calls of other services.
    """

    @property
    @abstractmethod
    def worker(self) -> str:
        """The name of the worker process, as `tenure workers` shows it."""

    @property
    @abstractmethod
    def id(self) -> int:
        """The job's id."""

    @property
    @abstractmethod
    def token(self) -> int:
        """The fencing number of this attempt."""

    @property
    @abstractmethod
    def attempt(self) -> int:
        """1 for the first attempt."""

    @property
    @abstractmethod
    def max_attempts(self) -> int:
        """How many attempts the job may use."""

    @property
    @abstractmethod
    def crashes(self) -> int:
        """How many earlier attempts of this job ended because their worker died or lost its lease.

        A replay begins at 0 again.
        """

    @property
    @abstractmethod
    def task(self) -> str:
        """The task's name."""

    @property
    @abstractmethod
    def queue(self) -> str:
        """The queue from which it was claimed."""

    @property
    @abstractmethod
    def tenant(self) -> str:
        """The tenant of the job; empty for a global job."""

    @property
    @abstractmethod
    def created_at(self) -> datetime:
        """When it was enqueued."""

    @property
    @abstractmethod
    def cancelled(self) -> Flag:
        """True once an operator has asked this job to stop."""

    @property
    @abstractmethod
    def lost(self) -> Flag:
        """True once the lease is lost: from then on nothing of this attempt is recorded."""

    @property
    @abstractmethod
    def stopping(self) -> Flag:
        """True once the worker has told this attempt to stop, for any reason.

        At a shutdown that is when `drain_seconds` are over. The attempt then has `kill_seconds` to
        save its state and end; the job is put back, and the attempt is not charged.
        """

    @property
    @abstractmethod
    def metadata(self) -> Mapping[str, object]:
        """The metadata that was enqueued with the job."""

    def check(self) -> None:
        """Raise `LeaseLost`, `Cancel` or `WorkerStopping` when this attempt should stop."""
        if self.lost:
            raise LeaseLost(f"this worker has lost the lease of job {self.id}; stop")
        if self.cancelled:
            raise Cancel("cancelled")
        if self.stopping:
            raise WorkerStopping(f"the worker has told this attempt of job {self.id} to stop")

    @abstractmethod
    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Report progress, from 0 to 1. Cheap: the worker sends the latest report once a second."""

    @abstractmethod
    def annotate(
        self,
        notes: Mapping[str, NoteValue] | None = None,
        /,
        *,
        now: bool = False,
        **more: NoteValue,
    ) -> None:
        """Add small values to the job, such as `annotate(loss=0.3, output="s3://...")`, or a dict.

        A new value replaces the old one, and None removes it. They stay with the job, however it
        ends, and are visible as `Job.notes`. Cheap: the worker sends them about once a second, and
        with the end of the attempt. With `now`, they are stored when this returns, and `LeaseLost`
        is raised if the lease is lost. Raises `InvalidInput`, or `PayloadTooLarge` beyond 64 notes,
        8,192 bytes in all, or 1,000 characters of one text.
        """

    @abstractmethod
    async def annotate_async(
        self,
        notes: Mapping[str, NoteValue] | None = None,
        /,
        *,
        now: bool = False,
        **more: NoteValue,
    ) -> None:
        """`annotate` for async handlers that want to wait: use it with `now`."""

    @abstractmethod
    def save(self, state: object) -> None:
        """Save a checkpoint for later attempts. Raises `LeaseLost` if the lease is lost."""

    @abstractmethod
    async def save_async(self, state: object) -> None:
        """`save` for async handlers."""

    @abstractmethod
    def load(self, type: type[T]) -> T | None:
        """The last checkpoint that any attempt of this job has saved, or None."""

    @abstractmethod
    async def load_async(self, type: type[T]) -> T | None:
        """`load` for async handlers."""

    @property
    @abstractmethod
    def workflow(self) -> "Growth":
        """Adds jobs to the workflow of this job: call `add(...)`, then `enqueue()`."""

    @abstractmethod
    def parents(self) -> "list[ParentEnd]":
        """The parents of this job, in order: their names, tasks and states."""

    @abstractmethod
    async def parents_async(self) -> "list[ParentEnd]":
        """`parents` for async handlers."""

    @abstractmethod
    def results(self, task: "Task[..., R]") -> list[R]:
        """The results of all succeeded parents of this task, in order."""

    @abstractmethod
    async def results_async(self, task: "Task[..., R]") -> list[R]:
        """`results` for async handlers."""

    @abstractmethod
    def step(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `fn` once and keep its result. Later attempts get that result without running `fn`.

        The result is durable when this returns. Raises `LeaseLost` if the lease is lost,
        `StepConflict` if the name is taken, `TooManySteps` or `PayloadTooLarge`. If `fn` raises,
        nothing is recorded.
        """

    @overload
    async def step_async(
        self, name: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def step_async(
        self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @abstractmethod
    async def step_async(
        self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Any:
        """`step` for async handlers; `fn` is a coroutine function, or does not block."""

    @abstractmethod
    def _wait_begins(self, id: int) -> None:
        """The handler begins to wait for another job: its worker watches that."""

    @abstractmethod
    def _wait_ends(self, id: int) -> None:
        """The wait is over."""

    @abstractmethod
    def complete(self, result: object = None, *, on: object) -> None:
        """Finish the job in the caller's own transaction: both commit, or neither.

        Raises `LeaseLost` if the lease is lost, so that the transaction rolls back.
        """

    @abstractmethod
    async def complete_async(self, result: object = None, *, on: object) -> None:
        """`complete` for async handlers and async connections."""

    @abstractmethod
    def fail(self, error: BaseException | str, *, on: object, reason: str = "error") -> None:
        """Fail the job in the caller's own transaction. It is not tried again."""

    @abstractmethod
    async def fail_async(
        self, error: BaseException | str, *, on: object, reason: str = "error"
    ) -> None:
        """`fail` for async handlers and async connections."""

    @abstractmethod
    def retry(
        self, error: BaseException | str, *, on: object, after_seconds: float | None = None
    ) -> None:
        """Fail the attempt in the caller's own transaction. The job is tried again if it may be.

        `after_seconds`: in place of the delay that the task's policy says.
        """

    @abstractmethod
    async def retry_async(
        self, error: BaseException | str, *, on: object, after_seconds: float | None = None
    ) -> None:
        """`retry` for async handlers and async connections."""

    @abstractmethod
    def snooze(self, seconds: float, *, on: object, reason: str = "snoozed") -> None:
        """Put the job off in the caller's own transaction. The attempt is not charged."""

    @abstractmethod
    async def snooze_async(self, seconds: float, *, on: object, reason: str = "snoozed") -> None:
        """`snooze` for async handlers and async connections."""

    @abstractmethod
    def skip(self, reason: str = "skipped", *, on: object) -> None:
        """Finish the job as skipped in the caller's own transaction."""

    @abstractmethod
    async def skip_async(self, reason: str = "skipped", *, on: object) -> None:
        """`skip` for async handlers and async connections."""

    @abstractmethod
    def cancel(self, reason: str = "cancelled by its handler", *, on: object) -> None:
        """Finish the job as cancelled in the caller's own transaction."""

    @abstractmethod
    async def cancel_async(self, reason: str = "cancelled by its handler", *, on: object) -> None:
        """`cancel` for async handlers and async connections."""


_current: ContextVar[Running | None] = ContextVar("tenure_running", default=None)


def current() -> Running | None:
    """The job that is running here, or None; also in functions that its handler calls."""
    return _current.get()


@contextmanager
def waiting_for(id: int) -> Iterator[None]:
    """Inside a handler: tell its worker, which reports a wait that cannot end."""
    job = current()
    if job is None:
        yield
        return
    job._wait_begins(id)
    try:
        yield
    finally:
        job._wait_ends(id)


set_current, reset_current = _current.set, _current.reset


class running_as:  # noqa: N801 - it reads as a statement
    """Make `job` the current job. (A generator would take four times as long.)"""

    __slots__ = ("_before", "_job")

    def __init__(self, job: Running) -> None:
        self._job = job

    def __enter__(self) -> None:
        self._before = _current.set(self._job)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._before)
