"""A child process of a worker: runs one job at a time, and can be killed.

    python -m tenure.worker.children.child FD

It leads a process group of its own. A thread listens to the worker; when the worker is gone, the
child and all that it has started are killed. A job that must stop is interrupted: `Stopped` is
raised in a function, a coroutine is cancelled. It may clean up; SIGKILL follows. SIGTERM or SIGINT
from elsewhere lets the job in hand finish, as the worker itself would.
"""

import asyncio
import inspect
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from tenure.client import Client
from tenure.rules.job import Claimed
from tenure.rules.lifecycle import Settlement
from tenure.running import Flag, running_as
from tenure.worker.children.messages import (
    Completed,
    Ended,
    Hello,
    Line,
    Message,
    Notice,
    Progressed,
    Run,
    Started,
)
from tenure.worker.environment import World
from tenure.worker.leases import Stop
from tenure.worker.running.attempt import Attempt, undecodable, unknown_task
from tenure.worker.running.executors import Undecodable, prepare


class Stopped(BaseException):
    """Raised in a handler that was told to stop: timeout, cancellation, lost lease, shutdown."""


class ChildSignals:
    """What the worker told a job, and what the job says; it travels at once.

    A thread may outlive the job that has started it: what it says is said of that job.
    """

    def __init__(self, line: Line, job: Claimed) -> None:
        self.cancelled = Flag()
        self.lost = Flag()
        self._line = line
        self._job = job

    @property
    def progress(self) -> tuple[float | None, str | None] | None:
        """What was last reported has been sent; nothing is kept here."""
        return None

    @progress.setter
    def progress(self, report: tuple[float | None, str | None] | None) -> None:
        if report is not None:
            self._line.send(Progressed(self._job.id, self._job.token, *report))

    @property
    def completed(self) -> bool:
        """The worker keeps this in mind: it must know even when this process dies."""
        return False

    @completed.setter
    def completed(self, yes: bool) -> None:
        if yes:
            self._line.send(Completed(self._job.id, self._job.token))


class Child:
    """The life of a child process."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[Claimed] = queue.SimpleQueue()
        self._signals: ChildSignals
        """Of the job that came last."""
        self._told_to_stop = False
        self._shutdown = False
        """It was told to stop because the worker shuts down."""
        self._stopped = False
        self._leaving = False
        self._idle = False
        self._interrupt: Callable[[], object] | None = None

    def run(self) -> NoReturn:
        """Serve until killed, or until the worker has gone."""
        hello = self._line.receive()
        if not isinstance(hello, Hello):
            self._die()
        threading.Thread(target=self._listen, name="tenure-listen", daemon=True).start()
        app = hello.app.load()
        while True:
            for number in (signal.SIGTERM, signal.SIGINT):  # a handler may have replaced them
                signal.signal(number, self._on_term)
            job = self._next()
            settlement = self._attempt(app, hello.worker, job)
            self._leave_if_forked()
            _flush()
            ended = Ended(job.id, job.token, settlement, self._stopped, self._leaving)
            self._line.send(ended)

    def _next(self) -> Claimed:
        self._idle = True
        if self._leaving:
            self._leave()
        job = self._jobs.get()
        self._idle = False
        return job

    def _listen(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while True:
            message: Message | None = self._line.receive()
            match message:
                case Run(job=job):
                    self._signals = ChildSignals(self._line, job)
                    self._jobs.put(job)
                case Notice(cancelled=cancelled, lost=lost, shutdown=shutdown):
                    if cancelled:
                        self._signals.cancelled.set()
                    if lost:
                        self._signals.lost.set()
                    self._shutdown = shutdown
                    self._told_to_stop = True
                    signal.pthread_kill(main, signal.SIGTERM)
                case _:
                    self._die()

    def _die(self) -> NoReturn:
        """The worker is gone: nobody waits for us."""
        with suppress(ProcessLookupError):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def _leave(self) -> NoReturn:
        _flush()
        os._exit(0)

    def _leave_if_forked(self) -> None:
        """A handler that forks must not come back here twice: the worker hears one answer."""
        if os.getpid() != self._pid:
            os._exit(70)

    def _on_term(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self._told_to_stop:
            self._leaving = True
            if self._idle:
                self._leave()
        elif self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            interrupt()

    def _attempt(self, app: Client, worker: str, job: Claimed) -> Settlement | None:
        task = app.find(job.task)
        if task is None:
            return unknown_task(job)
        attempt = Attempt(job, task.options_of_task, World().random)
        started = time.monotonic()
        try:
            fn, args, kwargs, running = prepare(task, job, self._signals, app, worker)
            self._line.send(Started())
            with running_as(running), app.hooks.around(running):
                result = self._call(app, lambda: fn(*args, **kwargs))
            return attempt.returned(result, time.monotonic() - started)
        except Undecodable as bad:
            return undecodable(job, bad.error)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
            if self._told_to_stop and isinstance(error, Stopped | asyncio.CancelledError):
                self._stopped = True
                return None  # the worker knows why
            stop = Stop.SHUTDOWN if self._shutdown else None
            return attempt.raised(error, time.monotonic() - started, stop)

    def _call(self, app: Client, call: Callable[[], Any]) -> object:
        """Run the handler in such a way that it can be interrupted."""
        try:
            self._interrupt = _raise_stopped
            if self._told_to_stop:
                _raise_stopped()
            result = call()
            if inspect.iscoroutine(result):
                self._interrupt = None
                return asyncio.run(self._await(app, result))
            return result
        finally:
            self._interrupt = None

    async def _await(self, app: Client, coroutine: Coroutine[Any, Any, object]) -> object:
        """Run the coroutine as a task of its own, which a signal cancels, and no other."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(coroutine)
        self._interrupt = partial(loop.call_soon_threadsafe, task.cancel)
        if self._told_to_stop:
            task.cancel()
        try:
            return await task
        finally:
            await app.close_loop()


def _raise_stopped() -> NoReturn:
    raise Stopped("told to stop")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a handler may have closed or replaced it
            stream.flush()


def main() -> NoReturn:
    """Serve the worker at the other end of the file descriptor that was named."""
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    Child(Line(line)).run()


if __name__ == "__main__":
    main()
