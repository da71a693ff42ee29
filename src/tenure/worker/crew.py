"""Several worker processes under one supervisor: started, watched, replaced, stopped together.

The supervisor runs no jobs and touches no database. Each process has a line to it; when the
supervisor is gone, they drain and end (member.py). A process that dies is replaced, and its jobs
come back by their leases.
"""

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from tenure.worker.elsewhere import AppRef
from tenure.worker.settings import WorkerSettings
from tenure.worker.world import World

LOOK_SECONDS = 0.1
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 10.0
HEALTHY_SECONDS = 10.0

log = logging.getLogger("tenure.worker")


class Orders(msgspec.Struct, frozen=True):
    """What the supervisor tells a process."""

    app: AppRef
    settings: Mapping[str, Any]
    log_level: int


class Crew:
    """The supervisor of some worker processes."""

    def __init__(self, app: AppRef, settings: WorkerSettings, processes: int, world: World) -> None:
        level = logging.getLogger().getEffectiveLevel()
        self._orders = Orders(app, msgspec.structs.asdict(settings), level)
        self._processes = processes
        self._world = world
        self._members: list[_Member] = []
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let every process drain. Safe in a signal handler."""
        self._stopping.set()

    def kill(self) -> None:
        """End every process at once; leases bring their jobs back."""
        for member in self._members:
            member.kill()

    def run(self) -> None:
        """Until `stop` is called and every process has ended."""
        self._members = [_Member(self._orders, self._world) for _ in range(self._processes)]
        try:
            while not self._stopping.wait(LOOK_SECONDS):
                for member in self._members:
                    member.replace_if_dead()
            for member in self._members:
                member.terminate()
            for member in self._members:
                member.wait()
        finally:
            for member in self._members:
                member.close()


class _Member:
    """One worker process, and its successors."""

    def __init__(self, orders: Orders, world: World) -> None:
        self._orders = orders
        self._world = world
        self._pause = FIRST_PAUSE_SECONDS
        self._next_start = 0.0
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._line = ours
        self._started_at = self._world.monotonic()
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-m", "tenure.worker.member", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        ours.sendall(msgspec.json.encode(self._orders) + b"\n")

    def replace_if_dead(self) -> None:
        """Start a successor, later and later while they die young."""
        now = self._world.monotonic()
        if self._process is not None and (code := self._process.poll()) is not None:
            lived = now - self._started_at
            self._pause = (
                FIRST_PAUSE_SECONDS
                if lived > HEALTHY_SECONDS
                else min(LAST_PAUSE_SECONDS, 2 * self._pause)
            )
            log.error(
                "worker process %d ended with %d; a new one starts in %.1f s",
                self._process.pid, code, self._pause,
            )  # fmt: skip
            self._line.close()
            self._process = None
            self._next_start = now + self._pause
        if self._process is None and now >= self._next_start:
            self._start()

    def terminate(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def wait(self) -> None:
        if self._process is not None:
            self._process.wait()

    def close(self) -> None:
        self._line.close()
