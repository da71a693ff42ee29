"""Handlers in child processes that can be killed: one warm child per slot, one job at a time.

A thread per slot minds its child, and nobody else touches it: it sends the job, passes on what the
child says, and, when the job must stop, terminates and then kills the child's whole process group.
A child that dies costs its job one attempt, with the reason on record; the next job gets a new
child. One that dies before it has started the handler costs nothing: the job is tried again later.
"""

import logging
import signal
import time
from typing import assert_never

import msgspec

from tenure.client import Client
from tenure.rules.codec import add_output
from tenure.rules.lifecycle import Settlement
from tenure.worker.children.app_ref import AppRef, locate
from tenure.worker.children.messages import (
    Completed,
    Ended,
    Hello,
    Notice,
    Progressed,
    Run,
    Started,
)
from tenure.worker.children.process import ChildProcess
from tenure.worker.environment import World
from tenure.worker.leases import Holding, Stop
from tenure.worker.running.attempt import Attempt
from tenure.worker.running.executors import Ended as EndedCall
from tenure.worker.running.executors import InThreads

LOOK_SECONDS = 0.02
"""How often a minder looks whether its job must stop."""
START_SECONDS = 60.0
"""So long may a new child take to import the application."""
CLOSE_SECONDS = 5.0

log = logging.getLogger("tenure.worker")


class Children(InThreads):
    """`isolation="process"` handlers."""

    def __init__(
        self, slots: int, app: Client, worker: str, world: World, ended: EndedCall,
        *, kill_seconds: float,
    ) -> None:  # fmt: skip
        super().__init__(slots, app, worker, world, ended)
        self._kill_seconds = kill_seconds
        self._children: dict[int, ChildProcess] = {}
        self._app_ref: AppRef | None = None

    def close(self) -> None:
        super().close()  # the minders kill their children
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _leave(self, number: int) -> None:
        self._drop(number)

    def _attempt(self, holding: Holding, number: int) -> Settlement | None:
        attempt = Attempt(holding.job, holding.task.options_of_task, self._world.random)
        if holding.stop is not None:
            return attempt.stopped(holding.stop, 0.0)
        try:
            return self._attempt_in_child(attempt, holding, number)
        except Exception as error:
            self._drop(number)
            if holding.started_at is not None:
                raise
            log.exception(
                "job %d of %s could not be given to a child", holding.job.id, holding.job.task
            )
            return attempt.not_given(error)

    def _attempt_in_child(
        self, attempt: Attempt, holding: Holding, number: int
    ) -> Settlement | None:
        child, ended = self._give(holding, number)
        seconds = self._seconds_of(holding)
        stop, output = holding.asked_to(), child.output()
        if ended is None or ended.leaving or stop is not None:
            self._drop(number)
        if ended is not None and not ended.stopped:
            return _with_output(ended.settlement, output)
        if stop is not None:
            return _with_output(attempt.stopped(stop, seconds), output)
        if holding.started_at is None:
            return _with_output(attempt.not_started(child.reason(), output), output)
        return _with_output(attempt.child_died(child.reason(), seconds), output)

    def _give(self, holding: Holding, number: int) -> tuple[ChildProcess, Ended | None]:
        """Have a child run the job. A warm one may have died since its last job: then another."""
        warm = number in self._children
        child = self._child(number)
        ended = self._mind(child, holding)
        if warm and ended is None and holding.started_at is None and holding.stop is None:
            self._drop(number)
            child = self._child(number)
            ended = self._mind(child, holding)
        return child, ended

    def _child(self, number: int) -> ChildProcess:
        child = self._children.get(number)
        if child is not None and child.dead():
            self._drop(number)
            child = None
        if child is None:
            if self._app_ref is None:
                self._app_ref = locate(self._app)
            child = self._children[number] = ChildProcess(self._world)
            child.tell(Hello(self._app_ref, self._worker))
        child.forget_output()
        return child

    def _drop(self, number: int) -> None:
        child = self._children.pop(number, None)
        if child is not None:
            child.kill(signal.SIGKILL)
            child.close()

    def _mind(self, child: ChildProcess, holding: Holding) -> Ended | None:
        """Until the handler has ended; None when the child has died, by our hand or another."""
        child.tell(Run(holding.job))
        begun = self._world.monotonic()
        kill_at: float | None = None
        while True:
            message = child.hear(LOOK_SECONDS)
            match message:
                case Ended():
                    return message if _is_of(message, holding) else None
                case Progressed() | Completed() if not _is_of(message, holding):
                    pass  # a thread of an earlier job is still there
                case Started():
                    holding.started_at = self._world.monotonic()
                case Progressed(fraction=fraction, message=text):
                    holding.progress = (fraction, text)
                case Completed():
                    holding.completed = True
                case None if child.dead():
                    return None
                case None:
                    pass
                case _:  # pragma: no cover
                    assert_never(message)
            kill_at = self._look_after(child, holding, begun, kill_at)

    def _look_after(
        self, child: ChildProcess, holding: Holding, begun: float, kill_at: float | None
    ) -> float | None:
        """Stop the job if it must. Answers when it is to be killed."""
        now = self._world.monotonic()
        if self._closed or (kill_at is not None and now >= kill_at):
            child.kill(signal.SIGKILL)
        elif holding.stop is not None and kill_at is None:
            shutdown = holding.stop is Stop.SHUTDOWN
            child.tell(Notice(bool(holding.cancelled), bool(holding.lost), shutdown))
            child.kill(signal.SIGTERM)
            return now + self._kill_seconds
        elif holding.started_at is None and now - begun >= START_SECONDS:
            child.give_up(f"it took longer than {START_SECONDS:g} s to start")
        return kill_at


def _is_of(message: Progressed | Completed | Ended, holding: Holding) -> bool:
    return (message.id, message.token) == (holding.job.id, holding.job.token)


def _with_output(settlement: Settlement | None, output: str) -> Settlement | None:
    if settlement is None or settlement.error is None or not output:
        return settlement
    return msgspec.structs.replace(settlement, error=add_output(settlement.error, output))
