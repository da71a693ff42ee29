"""A child process of a worker: runs one job at a time, and can be killed.

    python -m tenure.worker.children.child FD

It leads a process group of its own. A thread receives the worker's messages. If the worker is gone,
the child kills itself and all processes that it has started. A job that must stop is interrupted:
`Stopped` is raised in a function, a coroutine is cancelled. It may clean up; SIGKILL follows. After
a SIGTERM or SIGINT from another process, the child finishes its job and ends, as the worker would.
"""

import asyncio
import inspect
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from tenure.client import Client
from tenure.errors import ConfigError, WorkerStopping
from tenure.rules.claim import Claimed
from tenure.rules.lifecycle import Settlement
from tenure.rules.notes import NoteValue
from tenure.store.session import drive
from tenure.worker.children.app_ref import REFUSED
from tenure.worker.children.messages import (
    Channel,
    Completed,
    Ended,
    Hello,
    Message,
    Noted,
    Notice,
    Progressed,
    Run,
    Started,
    Waits,
)
from tenure.worker.environment import Environment
from tenure.worker.leases import NO_TASK, LeasedJob, Stop
from tenure.worker.running.attempt import unknown_task
from tenure.worker.running.run import AttemptRunner, Prepared

log = logging.getLogger("tenure.worker")


class Stopped(BaseException):
    """Raised in a handler that was told to stop: timeout, cancellation, lost lease, shutdown."""


class JobInChild(LeasedJob):
    """A leased job in a child. What its handler reports is sent to the worker at once.

    A thread may outlive the job that has started it: its reports are sent as those of that job.
    """

    __slots__ = ("_channel",)

    def __init__(self, job: Claimed, channel: Channel) -> None:
        self._channel = channel
        super().__init__(job, NO_TASK, 0.0)

    @property
    def started_at(self) -> float | None:
        """Not kept here: the worker measures the time."""
        return None

    @started_at.setter
    def started_at(self, at: float | None) -> None:
        if at is not None:
            self._channel.send(Started())

    @property
    def progress(self) -> tuple[float | None, str | None] | None:
        """Not kept here: each report is sent."""
        return None

    @progress.setter
    def progress(self, report: tuple[float | None, str | None] | None) -> None:
        if report is not None:
            self._channel.send(Progressed(self.job.id, self.job.token, *report))

    def annotate(self, values: dict[str, NoteValue]) -> dict[str, NoteValue]:
        notes = super().annotate(values)
        self._channel.send(Noted(self.job.id, self.job.token, values))
        return notes

    @property
    def completed(self) -> bool:
        """Not kept here: the worker must know it even if this process dies."""
        return False

    @completed.setter
    def completed(self, yes: bool) -> None:
        if yes:
            self._channel.send(Completed(self.job.id, self.job.token))

    def wait_begins(self, id: int, now: float) -> None:  # noqa: ARG002 - the worker has the clock
        """Not kept here: the worker reports it."""
        self._channel.send(Waits(self.job.id, self.job.token, id, begins=True))

    def wait_ends(self, id: int) -> None:
        """The worker forgets it."""
        self._channel.send(Waits(self.job.id, self.job.token, id, begins=False))


class Interrupt:
    """The order to stop the job, and how to interrupt its handler."""

    def __init__(self) -> None:
        self.ordered = False
        self.shutdown = False
        """Whether the worker shuts down."""
        self.call: Callable[[], object] | None = None
        """Interrupts the handler; None while no handler runs."""

    def deliver(self) -> None:
        """Interrupt the handler, once. Called in the main thread, by the signal handler."""
        if self.call is not None:
            call, self.call = self.call, None
            call()


class InterruptibleRunner(AttemptRunner):
    """Runs attempts in the main thread of a child, where a signal can interrupt them."""

    def __init__(self, app: Client, worker: str, interrupt: Interrupt) -> None:
        super().__init__(app, worker, Environment())
        self._interrupt = interrupt
        self.stopped = False
        """Whether the last job ended because it was told to stop."""

    def prepare(self, leased: LeasedJob) -> Prepared:
        fn, args, kwargs, running = super().prepare(leased)
        return partial(self._call, fn), args, kwargs, running

    def raised(self, leased: LeasedJob, error: BaseException, seconds: float) -> Settlement | None:
        told = isinstance(error, Stopped | WorkerStopping | asyncio.CancelledError)
        if self._interrupt.ordered and told:
            self.stopped = True
            return None  # the worker knows the reason
        stop = Stop.SHUTDOWN if self._interrupt.shutdown else None
        return self.attempt(leased).raised(error, seconds, stop)

    def _call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> object:
        interrupt = self._interrupt
        try:
            interrupt.call = _raise_stopped
            if interrupt.ordered:
                _raise_stopped()
            result = fn(*args, **kwargs)
            if inspect.iscoroutine(result):
                interrupt.call = None
                return asyncio.run(self._await(result))
            return result
        finally:
            interrupt.call = None

    async def _await(self, coroutine: Coroutine[Any, Any, object]) -> object:
        """Run the coroutine as a task of its own, so that a signal cancels only that task."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(coroutine)
        self._interrupt.call = partial(loop.call_soon_threadsafe, task.cancel)
        if self._interrupt.ordered:
            task.cancel()
        try:
            return await task
        finally:
            await self._app.close_loop()


class Child:
    """One child process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[JobInChild] = queue.SimpleQueue()
        self._newest: JobInChild
        """The job that was received last."""
        self._interrupt = Interrupt()
        self._leaving = False
        self._idle = False

    def run(self) -> NoReturn:
        """Run jobs until this process is killed or the worker is gone."""
        hello = self._channel.receive()
        if not isinstance(hello, Hello):
            self._die()
        threading.Thread(target=self._listen, name="tenure-listen", daemon=True).start()
        hello.logs.before_import()
        try:
            app = hello.app.load()
        except ConfigError as error:
            log.critical("this child process refuses to start: %s", error)
            sys.exit(REFUSED)
        app.keep = hello.keep
        hello.logs.after_import()
        attempts = InterruptibleRunner(app, hello.worker, self._interrupt)
        while True:
            for number in (signal.SIGTERM, signal.SIGINT):  # a handler may have replaced them
                signal.signal(number, self._on_term)
            leased = self._next()
            settlement = _attempt(app, attempts, leased)
            self._exit_if_forked()
            _flush()
            job = leased.job
            self._channel.send(
                Ended(job.id, job.token, settlement, attempts.stopped, self._leaving)
            )

    def _next(self) -> JobInChild:
        self._idle = True
        if self._leaving:
            self._leave()
        leased = self._jobs.get()
        self._idle = False
        return leased

    def _listen(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while True:
            message: Message | None = self._channel.receive()
            match message:
                case Run(job=job):
                    self._newest = JobInChild(job, self._channel)
                    self._jobs.put(self._newest)
                case Notice(cancelled=cancelled, lost=lost, shutdown=shutdown):
                    if cancelled:
                        self._newest.cancelled.set()
                    if lost:
                        self._newest.lost.set()
                    self._newest.stopping().set()
                    self._interrupt.shutdown = shutdown
                    self._interrupt.ordered = True
                    signal.pthread_kill(main, signal.SIGTERM)
                case _:
                    self._die()

    def _die(self) -> NoReturn:
        """The worker is gone: kill this process and all processes that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def _leave(self) -> NoReturn:
        _flush()
        os._exit(0)

    def _exit_if_forked(self) -> None:
        """End a fork that returned from a handler: the worker expects one message only."""
        if os.getpid() != self._pid:
            os._exit(70)

    def _on_term(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self._interrupt.ordered:
            self._leaving = True
            if self._idle:
                self._leave()
        else:
            self._interrupt.deliver()


def _attempt(app: Client, attempts: AttemptRunner, leased: JobInChild) -> Settlement | None:
    task = app.find(leased.job.task)
    if task is None:
        return unknown_task(leased.job)
    leased.task = task
    return drive(attempts.run(leased))


def _raise_stopped() -> NoReturn:
    raise Stopped("told to stop")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a handler may have closed or replaced it
            stream.flush()


def main() -> NoReturn:
    """Serve the worker at the other end of the socket with this file descriptor."""
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    Child(Channel(end)).run()


if __name__ == "__main__":
    main()
