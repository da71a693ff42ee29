"""One child process as its minder sees it: its channel, its output, and its end."""

import logging
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque

from tenure.worker.children import watchdog
from tenure.worker.children.messages import (
    Channel,
    Completed,
    Ended,
    Message,
    Noted,
    Progressed,
    Report,
    Started,
    Waits,
)
from tenure.worker.children.watchdog import MARK, stray_processes
from tenure.worker.environment import Environment

log = logging.getLogger("tenure.worker")

OUTPUT_BYTES = 8192
"""How much of the end of a child's output is kept with a failed attempt."""
READS = 16
"""How many pieces of output are read at once: a child may write without end."""
CHANNEL_SECONDS = 10.0
"""A child that does not receive or finish a message for this long counts as dead."""
LAST_SECONDS = 2.0
"""A process closes its channel a moment before its exit code is available."""


class Watchdog:
    """The process that ends our children if this process is killed. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._children: dict[int, str] = {}
        self._closed = False
        _watchdogs.add(self)

    def started(self, pid: int, mark: str) -> None:
        """A child has started."""
        with self._lock:
            self._children[pid] = mark
            self._tell(f"+{pid} {mark}\n")

    def ended(self, pid: int) -> None:
        """A child has ended and was waited for: its process id may be used again."""
        with self._lock:
            if self._children.pop(pid, None) is not None and not self._closed:
                self._tell(f"-{pid}\n")

    def close(self) -> None:
        """End the watchdog. All children have ended."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._write(f"{watchdog.END}\n")
                self._end()

    def leave(self) -> None:
        """In a fork: close its copy of the pipe, whose end tells the watchdog of our end."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _tell(self, line: str) -> None:
        """Tell the watchdog. If there is none, or it has ended, start one and tell it all."""
        if self._process is not None and self._process.poll() is None and self._write(line):
            return
        if self._process is not None:
            self._end()
        theirs, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__], stdin=theirs,
                stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self.leave()
            raise
        finally:
            os.close(theirs)
        self._write("".join(f"+{pid} {mark}\n" for pid, mark in self._children.items()))

    def _write(self, lines: str) -> bool:
        try:
            os.write(self._pipe or -1, lines.encode())
        except OSError:
            return False
        return True

    def _end(self) -> None:
        assert self._process is not None
        self.leave()
        try:
            self._process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


_watchdogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()


def _leave_watchdogs() -> None:
    for each in list(_watchdogs):
        each.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_watchdogs)


class ChildProcess:
    """A process that leads a session of its own. Used by one thread."""

    def __init__(self, environment: Environment, watchdog: Watchdog) -> None:
        self._environment = environment
        self._watchdog = watchdog
        self._mark = secrets.token_hex(8)
        ours, theirs = socket.socketpair()
        self._output_fd, their_output = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tenure.worker.children.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=their_output,
                stderr=their_output, start_new_session=True, env={**os.environ, MARK: self._mark},
            )  # fmt: skip
            self._watch()
        except BaseException:
            ours.close()
            os.close(self._output_fd)
            raise
        finally:
            theirs.close()
            os.close(their_output)
        os.set_blocking(self._output_fd, False)
        ours.settimeout(CHANNEL_SECONDS)
        self._channel = Channel(ours)
        self._channel_open = self._output_open = True
        self._output: deque[bytes] = deque()
        self._output_bytes = 0
        self._given_up: str | None = None
        self.jobs = 0
        """How many jobs it was given."""

    def _watch(self) -> None:
        """Without a watchdog there is no child."""
        try:
            self._watchdog.started(self._process.pid, self._mark)
        except BaseException:
            self.kill(signal.SIGKILL)
            self._process.wait()
            self._watchdog.ended(self._process.pid)
            raise

    def send(self, message: Message) -> None:
        """Send a message, unless the child is gone."""
        try:
            self._channel.send(message)
        except OSError:
            self._channel_open = False

    def receive(self, seconds: float) -> Report | None:
        """Returns the next message of the child, if one comes in time. Forwards its output."""
        poll = select.poll()
        if self._output_open:
            poll.register(self._output_fd, select.POLLIN)
        if self._channel_open:
            poll.register(self._channel.socket, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(seconds * 1000)]
        if self._output_fd in ready:
            self._read_output()
        if self._channel.socket.fileno() in ready:
            return self._receive_report()
        return None

    def _receive_report(self) -> Report | None:
        message = self._channel.receive()
        if isinstance(message, Started | Progressed | Noted | Completed | Waits | Ended):
            return message
        self._channel_open = False
        return None

    def dead(self) -> bool:
        """Has the process ended, and have all its messages been received?"""
        if self._channel_open and (self._process.poll() is None or self._has_message()):
            return False
        self._channel_open = False  # or a fork of the child has the other end open
        try:
            self._process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self.give_up("it closed its channel to the worker")
            self._process.wait()
        return True

    def _has_message(self) -> bool:
        poll = select.poll()  # select() cannot handle descriptors above 1023
        poll.register(self._channel.socket, select.POLLIN)
        return bool(poll.poll(0))

    def give_up(self, reason: str) -> None:
        """Kill the child for this reason."""
        self._given_up = self._given_up or reason
        self.kill(signal.SIGKILL)

    def kill(self, how: signal.Signals) -> None:
        """Send a signal to the child and to all processes that it has started."""
        self._environment.kill_group(self._process.pid, how)

    def close(self) -> None:
        """Wait for a killed child, and close its channel and its output.

        Processes that its handlers moved to a session of their own were not killed with it.
        """
        self._process.wait()
        self._watchdog.ended(self._process.pid)
        for stray in stray_processes(self._mark, self._process.pid):
            log.warning(
                "child process %d has ended; %s was started by a handler in a session of its own "
                "and still runs", self._process.pid, stray,
            )  # fmt: skip
        self._channel.close()
        os.close(self._output_fd)

    def reason(self) -> str:
        """Why the process has ended, for people to read."""
        code = self._process.wait()
        if self._given_up is not None:
            return self._given_up
        if code >= 0:
            return f"exit {code}"
        name = _name_of(-code)
        hint = "; perhaps the system ran out of memory" if name == "SIGKILL" else ""
        return f"exit {128 - code} ({name}{hint})"

    def output(self) -> str:
        """The end of the output since `forget_output`."""
        self._read_output()
        return b"".join(self._output)[-OUTPUT_BYTES:].decode("utf-8", "replace")

    def forget_output(self) -> None:
        """A new job begins."""
        self._read_output()
        self._output.clear()
        self._output_bytes = 0

    def _read_output(self) -> None:
        """Forward the output, and keep its end."""
        for _ in range(READS):
            try:
                part = os.read(self._output_fd, 65536)
            except BlockingIOError:
                return
            if not part:
                self._output_open = False
                return
            _forward(part)
            self._output.append(part[-OUTPUT_BYTES:])
            self._output_bytes += len(self._output[-1])
            while self._output_bytes - len(self._output[0]) >= OUTPUT_BYTES:
                self._output_bytes -= len(self._output.popleft())


def _name_of(number: int) -> str:
    """Most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _forward(part: bytes) -> None:
    """Write to our own stderr. An embedding application may have replaced it."""
    try:
        sys.stderr.buffer.write(part)
        sys.stderr.flush()
    except Exception:  # noqa: BLE001 - output that cannot be shown must not fail a job
        return
