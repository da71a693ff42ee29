"""Handlers in child processes that can be killed: one warm child per slot, one job at a time.

A thread per slot minds its child; no other thread uses it. It sends the job, receives the child's
messages, and, when the job must stop, terminates and then kills the child's whole process group. A
child that dies costs its job one attempt, and the reason is recorded. The next job gets a new
child. If the child dies before the handler starts, the job is put back uncharged.
"""

import logging
import signal
import time
from typing import assert_never

import msgspec

from tenure.client import Client
from tenure.rules.codec import add_output
from tenure.rules.lifecycle import Settlement
from tenure.worker.children.app_ref import locate
from tenure.worker.children.messages import (
    Completed,
    Ended,
    Hello,
    Noted,
    Notice,
    Progressed,
    Run,
    Started,
    Waits,
)
from tenure.worker.children.process import ChildProcess, Watchdog
from tenure.worker.environment import Environment
from tenure.worker.leases import LeasedJob, Stop
from tenure.worker.logs import log_setup
from tenure.worker.running.attempt import Attempt
from tenure.worker.running.executors import InThreads

LOOK_SECONDS = 0.02
"""How often a minder checks whether its job must stop."""
START_SECONDS = 60.0
"""How long a new child may take to import the application."""
CLOSE_SECONDS = 5.0

log = logging.getLogger("tenure.worker")


class Children(InThreads):
    """Runs handlers with `isolation="process"`."""

    def __init__(
        self,
        slots: int,
        app: Client,
        worker: str,
        environment: Environment,
        *,
        kill_seconds: float,
        max_jobs: int | None = None,
    ) -> None:
        super().__init__(slots, app, worker, environment)
        self._kill_seconds = kill_seconds
        self._max_jobs = max_jobs
        """How many jobs one child runs."""
        self._children: dict[int, ChildProcess] = {}
        self._watchdog = Watchdog()

    def close(self) -> None:
        super().close()  # the minders kill their children
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._watchdog.close()

    def _thread_ends(self, number: int) -> None:
        self._drop(number)

    def _attempt(self, leased: LeasedJob, number: int) -> Settlement | None:
        attempt = Attempt.of(leased, self._environment.random)
        if leased.stop is not None:
            return attempt.stopped(leased.stop, 0.0)
        try:
            return self._attempt_in_child(attempt, leased, number)
        except Exception as error:
            self._drop(number)
            if leased.started_at is not None:
                raise
            log.exception(
                "job %d of %s could not be sent to a child process", leased.job.id, leased.job.task
            )
            return attempt.not_given(error)

    def _attempt_in_child(
        self, attempt: Attempt, leased: LeasedJob, number: int
    ) -> Settlement | None:
        child, ended = self._send_job(leased, number)
        seconds = leased.seconds_run(self._environment.monotonic())
        stop, output = leased.stop_reason(), child.output()
        if ended is None or ended.leaving or stop is not None or child.jobs == self._max_jobs:
            self._drop(number)
        if ended is not None and not ended.stopped:
            return _with_output(ended.settlement, output)
        if stop is not None:
            return _with_output(attempt.stopped(stop, seconds), output)
        if leased.started_at is None:
            return _with_output(attempt.not_started(child.reason(), output), output)
        return _with_output(attempt.child_died(child.reason(), seconds), output)

    def _send_job(self, leased: LeasedJob, number: int) -> tuple[ChildProcess, Ended | None]:
        """Have a child run the job. If a warm child has died since its last job, use a new one."""
        warm = number in self._children
        child = self._child(number)
        ended = self._mind(child, leased)
        if warm and ended is None and leased.started_at is None and leased.stop is None:
            self._drop(number)
            child = self._child(number)
            ended = self._mind(child, leased)
        return child, ended

    def _child(self, number: int) -> ChildProcess:
        child = self._children.get(number)
        if child is not None and child.dead():
            self._drop(number)
            child = None
        if child is None:
            child = self._children[number] = ChildProcess(self._environment, self._watchdog)
            app = locate(self._app).with_kind("process")
            keep = None if self._app.keep is None else dict(self._app.keep)
            child.send(Hello(app, self._worker, log_setup(), keep))
        child.forget_output()
        return child

    def _drop(self, number: int) -> None:
        child = self._children.pop(number, None)
        if child is not None:
            child.kill(signal.SIGKILL)
            child.close()

    def _mind(self, child: ChildProcess, leased: LeasedJob) -> Ended | None:
        """Wait until the handler has ended. Returns None if the child has died or was killed."""
        child.jobs += 1
        child.send(Run(leased.job))
        sent_at = self._environment.monotonic()
        kill_at: float | None = None
        while True:
            message = child.receive(LOOK_SECONDS)
            match message:
                case Ended():
                    return message if _is_of(message, leased) else None
                case Progressed() | Noted() | Completed() | Waits() if not _is_of(message, leased):
                    pass  # from a thread that an earlier job has left behind
                case Started():
                    leased.started_at = self._environment.monotonic()
                case Progressed(fraction=fraction, message=text):
                    leased.report(fraction, text)
                case Noted(notes=notes):
                    leased.annotate(notes)
                case Completed():
                    leased.completed = True
                case Waits(waits_for=id, begins=True):
                    leased.wait_begins(id, self._environment.monotonic())
                case Waits(waits_for=id):
                    leased.wait_ends(id)
                case None if child.dead():
                    return None
                case None:
                    pass
                case _:  # pragma: no cover
                    assert_never(message)
            kill_at = self._stop_if_needed(child, leased, sent_at, kill_at)

    def _stop_if_needed(
        self, child: ChildProcess, leased: LeasedJob, sent_at: float, kill_at: float | None
    ) -> float | None:
        """Stop the job if it must stop. Returns when to kill it."""
        now = self._environment.monotonic()
        if self._closed or (kill_at is not None and now >= kill_at):
            child.kill(signal.SIGKILL)
        elif leased.stop is not None and kill_at is None:
            shutdown = leased.stop is Stop.SHUTDOWN
            child.send(Notice(bool(leased.cancelled), bool(leased.lost), shutdown))
            child.kill(signal.SIGTERM)
            return now + self._kill_seconds
        elif leased.started_at is None and now - sent_at >= START_SECONDS:
            child.give_up(f"it took longer than {START_SECONDS:g} s to start")
        return kill_at


def _is_of(message: Progressed | Noted | Completed | Waits | Ended, leased: LeasedJob) -> bool:
    return (message.id, message.token) == (leased.job.id, leased.job.token)


def _with_output(settlement: Settlement | None, output: str) -> Settlement | None:
    if settlement is None or settlement.error is None or not output:
        return settlement
    return msgspec.structs.replace(settlement, error=add_output(settlement.error, output))
