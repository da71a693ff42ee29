"""Handlers in child processes that can be killed: one warm child per slot, one job at a time.

A thread per slot minds its child: it sends the job, passes on what the child says, and, when the
job must stop, terminates and then kills the child's whole process group. A child that dies costs
its job one attempt, with the reason on record; the next job gets a new child.
"""

import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque

import msgspec

from tenure.client import Client
from tenure.codec import add_output
from tenure.lifecycle import Settlement
from tenure.worker.attempt import Attempt
from tenure.worker.elsewhere import AppRef, locate
from tenure.worker.executors import Ended as EndedCall
from tenure.worker.executors import InThreads
from tenure.worker.holding import Holding
from tenure.worker.messages import Ended, Hello, Line, Notice, Progressed, Run, Started
from tenure.worker.world import World

LOOK_SECONDS = 0.02
"""How often a minder looks whether its job must stop."""
OUTPUT_BYTES = 8192
"""So much of the end of a child's output is kept with a failed attempt."""

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

    def _attempt(self, holding: Holding, number: int) -> Settlement | None:
        job = holding.job
        attempt = Attempt(job, holding.task.options_of_task, self._world.random)
        if holding.stop is not None:
            return attempt.stopped(holding.stop, 0.0)
        holding.started_at = started = self._world.monotonic()
        try:
            child = self._child(number)
            ended = self._mind(child, holding)
        except Exception as error:
            log.exception("job %d of %s could not be given to a child", job.id, job.task)
            self._drop(number)
            return attempt.raised(error, 0.0)
        seconds = self._world.monotonic() - started
        stop, output = holding.asked_to(), child.output()
        if ended is None or ended.stopped or stop is not None:
            self._drop(number)
        if stop is not None and (ended is None or ended.stopped):
            return attempt.stopped(stop, seconds)
        if ended is None:
            return attempt.child_died(child.reason(), output, seconds)
        holding.completed = ended.completed
        return _with_output(ended.settlement, output)

    def close(self) -> None:
        super().close()
        for child in self._children.values():
            child.kill(signal.SIGKILL)
            child.close()

    def _child(self, number: int) -> "ChildProcess":
        child = self._children.get(number)
        if child is None or child.dead():
            if self._app_ref is None:
                self._app_ref = locate(self._app)
            child = self._children[number] = ChildProcess(self._world)
            child.line.send(Hello(self._app_ref, self._worker))
        child.forget_output()
        return child

    def _drop(self, number: int) -> None:
        child = self._children.pop(number, None)
        if child is not None:
            child.kill(signal.SIGKILL)
            child.close()

    def _mind(self, child: "ChildProcess", holding: Holding) -> Ended | None:
        """Until the handler has ended; None when the child has died, by our hand or another."""
        try:
            child.line.send(Run(holding.job))
        except OSError:
            return None
        killed_at: float | None = None
        while True:
            message = child.hear(LOOK_SECONDS)
            match message:
                case Ended():
                    return message
                case Started():
                    holding.started_at = self._world.monotonic()
                case Progressed(fraction=fraction, message=text):
                    holding.progress = (fraction, text)
                case None if child.dead():
                    return None
            if holding.stop is not None:
                if killed_at is None:
                    killed_at = self._world.monotonic() + self._kill_seconds
                    child.tell(Notice(bool(holding.cancelled), bool(holding.lost)))
                    child.kill(signal.SIGTERM)
                elif self._world.monotonic() >= killed_at:
                    child.kill(signal.SIGKILL)


class ChildProcess:
    """One child: a process that leads a group of its own, a line to it, and its output."""

    def __init__(self, world: World) -> None:
        self._world = world
        ours, theirs = socket.socketpair()
        output, their_output = os.pipe()
        os.set_blocking(output, False)
        self._output_fd = output
        self._output: deque[bytes] = deque()
        self._output_bytes = 0
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tenure.worker.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=their_output,
                stderr=their_output, start_new_session=True,
            )  # fmt: skip
        finally:
            theirs.close()
            os.close(their_output)
        self.line = Line(ours)
        self._line_open = True

    def hear(self, seconds: float) -> Started | Progressed | Ended | None:
        """What the child says next, if it says anything within so long. Passes its output on."""
        poll = select.poll()
        poll.register(self._output_fd, select.POLLIN)
        if self._line_open:
            poll.register(self.line.socket, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(seconds * 1000)]
        if self._output_fd in ready:
            self._read_output()
        if self._line_open and self.line.socket.fileno() in ready:
            message = self.line.receive()
            if message is None:
                self._line_open = False
            assert message is None or isinstance(message, Started | Progressed | Ended)
            return message
        return None

    def tell(self, notice: Notice) -> None:
        """Tell the child something, if it still listens."""
        try:
            self.line.send(notice)
        except OSError:
            self._line_open = False

    def dead(self) -> bool:
        """Has the process ended, or closed its line for good?"""
        if self._process.poll() is None and self._line_open:
            return False
        if self._process.poll() is None:  # it closed its line: nothing can be expected from it
            self.kill(signal.SIGKILL)
            self._process.wait()
        return True

    def kill(self, how: signal.Signals) -> None:
        """Send a signal to the child and to all that it has started."""
        self._world.kill_group(self._process.pid, how)

    def close(self) -> None:
        """Let go of a child that was killed."""
        self._process.wait()
        self.line.close()
        os.close(self._output_fd)

    def reason(self) -> str:
        """Why the process has ended, in words."""
        code = self._process.wait()
        if code >= 0:
            return f"exit {code}"
        name = signal.Signals(-code).name
        hint = "; perhaps the system ran out of memory" if name == "SIGKILL" else ""
        return f"exit {128 - code} ({name}{hint})"

    def output(self) -> str:
        """The end of what the child has written since `forget_output`."""
        self._read_output()
        return b"".join(self._output)[-OUTPUT_BYTES:].decode("utf-8", "replace")

    def forget_output(self) -> None:
        """A new job begins."""
        self._read_output()
        self._output.clear()
        self._output_bytes = 0

    def _read_output(self) -> None:
        """Pass on what the child has written, and keep its end."""
        while True:
            try:
                part = os.read(self._output_fd, 65536)
            except (BlockingIOError, OSError):
                return
            if not part:
                return
            sys.stderr.buffer.write(part)
            sys.stderr.flush()
            self._output.append(part[-OUTPUT_BYTES:])
            self._output_bytes += len(self._output[-1])
            while self._output_bytes - len(self._output[0]) >= OUTPUT_BYTES:
                self._output_bytes -= len(self._output.popleft())


def _with_output(settlement: Settlement | None, output: str) -> Settlement | None:
    if settlement is None or settlement.error is None or not output:
        return settlement
    return msgspec.structs.replace(settlement, error=add_output(settlement.error, output))
