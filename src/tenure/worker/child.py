"""A child process of a worker: runs one job at a time, and can be killed.

    python -m tenure.worker.child FD

It leads a process group of its own. A thread listens to the worker; when the worker is gone, the
child and all that it has started are killed. SIGTERM raises `Stopped` in the handler, which may
clean up; SIGKILL follows.
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
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from tenure.client import Client
from tenure.lifecycle import Settlement
from tenure.running import Flag, running_as
from tenure.worker.attempt import Attempt, undecodable, unknown_task
from tenure.worker.executors import Undecodable, prepare
from tenure.worker.messages import Ended, Hello, Line, Message, Notice, Progressed, Run, Started
from tenure.worker.world import World


class Stopped(BaseException):
    """Raised in a handler that was told to stop: timeout, cancellation, lost lease, shutdown."""


class ChildSignals:
    """What the worker told this child's job, and what the job says."""

    def __init__(self, line: Line) -> None:
        self.cancelled = Flag()
        self.lost = Flag()
        self.completed = False
        self._line = line

    @property
    def progress(self) -> tuple[float | None, str | None] | None:
        """What was last reported travels at once; nothing is kept here."""
        return None

    @progress.setter
    def progress(self, report: tuple[float | None, str | None] | None) -> None:
        if report is not None:
            self._line.send(Progressed(*report))


class Child:
    """The life of a child process."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._jobs: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._signals = ChildSignals(line)
        self._running = False
        self._stopped = False

    def run(self) -> NoReturn:
        """Serve until killed, or until the worker has gone."""
        hello = self._line.receive()
        if not isinstance(hello, Hello):
            self._die()
        app = hello.app.load()
        signal.signal(signal.SIGTERM, self._on_term)
        threading.Thread(target=self._listen, name="tenure-listen", daemon=True).start()
        while True:
            job = self._jobs.get()
            self._signals = ChildSignals(self._line)
            settlement = self._attempt(app, hello.worker, job)
            sys.stdout.flush()
            sys.stderr.flush()
            self._line.send(Ended(settlement, self._signals.completed, self._stopped))

    def _listen(self) -> None:
        while True:
            message: Message | None = self._line.receive()
            match message:
                case Run():
                    self._jobs.put(message)
                case Notice(cancelled=cancelled, lost=lost):
                    if cancelled:
                        self._signals.cancelled.set()
                    if lost:
                        self._signals.lost.set()
                case _:
                    self._die()

    def _die(self) -> NoReturn:
        """The worker is gone: nobody waits for us."""
        with suppress(ProcessLookupError):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def _on_term(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._stopped = True
        if self._running:
            self._running = False
            raise Stopped("told to stop")

    def _attempt(self, app: Client, worker: str, message: Run) -> Settlement | None:
        job = message.job
        task = app.find(job.task)
        if task is None:
            return unknown_task(job)
        attempt = Attempt(job, task.options_of_task, World().random)
        started = time.monotonic()
        try:
            fn, args, kwargs, running = prepare(task, job, self._signals, app, worker)
            self._line.send(Started())
            with running_as(running), app.hooks.around(running):
                self._running = True
                try:
                    result = fn(*args, **kwargs)
                    if inspect.iscoroutine(result):
                        result = asyncio.run(result)
                finally:
                    self._running = False
            return attempt.returned(result, time.monotonic() - started)
        except Undecodable as bad:
            return undecodable(job, bad.error)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
            return attempt.raised(error, time.monotonic() - started)


def main() -> NoReturn:
    """Serve the worker at the other end of the file descriptor that was named."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Child(Line(socket.socket(fileno=int(sys.argv[1])))).run()


if __name__ == "__main__":
    main()
