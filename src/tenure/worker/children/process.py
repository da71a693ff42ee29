"""One child process as its minder sees it: a line to talk, its output, and its end."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque

from tenure.worker.children.messages import (
    Completed,
    Ended,
    Line,
    Message,
    Progressed,
    Report,
    Started,
)
from tenure.worker.environment import World

OUTPUT_BYTES = 8192
"""So much of the end of a child's output is kept with a failed attempt."""
READS = 16
"""After so many pieces of output the minder looks at something else: it may never end."""
LINE_SECONDS = 10.0
"""A child that does not take or finish a message for so long is as good as dead."""
LAST_SECONDS = 2.0
"""A process that ends closes its line a moment before its exit code can be had."""


class ChildProcess:
    """A process that leads a session of its own. One thread uses it."""

    def __init__(self, world: World) -> None:
        self._world = world
        ours, theirs = socket.socketpair()
        self._output_fd, their_output = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tenure.worker.children.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=their_output,
                stderr=their_output, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            ours.close()
            os.close(self._output_fd)
            raise
        finally:
            theirs.close()
            os.close(their_output)
        os.set_blocking(self._output_fd, False)
        ours.settimeout(LINE_SECONDS)
        self._line = Line(ours)
        self._line_open = self._output_open = True
        self._output: deque[bytes] = deque()
        self._output_bytes = 0
        self._given_up: str | None = None

    def tell(self, message: Message) -> None:
        """Tell the child something, if it still listens."""
        try:
            self._line.send(message)
        except OSError:
            self._line_open = False

    def hear(self, seconds: float) -> Report | None:
        """What the child says next, if it says anything within so long. Passes its output on."""
        poll = select.poll()
        if self._output_open:
            poll.register(self._output_fd, select.POLLIN)
        if self._line_open:
            poll.register(self._line.socket, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(seconds * 1000)]
        if self._output_fd in ready:
            self._read_output()
        if self._line.socket.fileno() in ready:
            return self._receive()
        return None

    def _receive(self) -> Report | None:
        message = self._line.receive()
        if isinstance(message, Started | Progressed | Completed | Ended):
            return message
        self._line_open = False
        return None

    def dead(self) -> bool:
        """Has the process ended, and everything that it said been heard?"""
        if self._line_open and (self._process.poll() is None or self._says_something()):
            return False
        self._line_open = False  # or a fork of its has the other end
        try:
            self._process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self.give_up("it closed its line to the worker")
            self._process.wait()
        return True

    def _says_something(self) -> bool:
        poll = select.poll()  # select() knows no descriptor above 1023
        poll.register(self._line.socket, select.POLLIN)
        return bool(poll.poll(0))

    def give_up(self, reason: str) -> None:
        """Kill it, and say why."""
        self._given_up = self._given_up or reason
        self.kill(signal.SIGKILL)

    def kill(self, how: signal.Signals) -> None:
        """Send a signal to the child and to all that it has started."""
        self._world.kill_group(self._process.pid, how)

    def close(self) -> None:
        """Let go of a child that was killed."""
        self._process.wait()
        self._line.close()
        os.close(self._output_fd)

    def reason(self) -> str:
        """Why the process has ended, in words."""
        code = self._process.wait()
        if self._given_up is not None:
            return self._given_up
        if code >= 0:
            return f"exit {code}"
        name = _name_of(-code)
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
        for _ in range(READS):
            try:
                part = os.read(self._output_fd, 65536)
            except BlockingIOError:
                return
            if not part:
                self._output_open = False
                return
            _pass_on(part)
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


def _pass_on(part: bytes) -> None:
    """To our own stderr, which an embedding application may have replaced by anything."""
    try:
        sys.stderr.buffer.write(part)
        sys.stderr.flush()
    except Exception:  # noqa: BLE001 - what cannot be shown is not worth a job
        return
