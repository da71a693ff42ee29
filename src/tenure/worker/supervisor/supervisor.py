"""Several worker processes under one supervisor: started, watched, replaced, stopped together.

The supervisor runs no jobs and uses no database. Each worker process has a socket to it; if the
supervisor is gone, they drain and end (supervised.py). A process that dies is replaced, and its
jobs run again when their leases have expired.
"""

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from tenure.errors import ConfigError
from tenure.worker.children.app_ref import REFUSED, AppRef
from tenure.worker.environment import Environment
from tenure.worker.logs import LogSetup, log_setup
from tenure.worker.settings import WorkerSettings

LOOK_SECONDS = 0.1
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 10.0
HEALTHY_SECONDS = 10.0
MAX_JOBS_REACHED = 79
"""The exit code of a worker process that has run as many jobs as `max_jobs` says."""

log = logging.getLogger("tenure.worker")


class Orders(msgspec.Struct, frozen=True):
    """What the supervisor tells a worker process."""

    app: AppRef
    settings: Mapping[str, Any]
    logs: LogSetup


def _plain(setting: Any) -> object:
    """Encode a path, or a mapping that is not a `dict`."""
    return dict(setting) if isinstance(setting, Mapping) else os.fspath(setting)


class Supervisor:
    """The supervisor of some worker processes."""

    def __init__(
        self, app: AppRef, settings: WorkerSettings, count: int, environment: Environment
    ) -> None:
        orders = Orders(app, msgspec.structs.asdict(settings), log_setup())
        self._orders = msgspec.json.encode(orders, enc_hook=_plain)
        self._count = count
        self._until_idle = settings.until_idle
        self._environment = environment
        self._processes: list[_Supervised] = []
        # Not a `threading.Event`: if a signal handler interrupts its `wait` and calls `set`, both
        # need the same lock, and the thread waits for itself for ever.
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()

    def stop(self) -> None:
        """Let every process drain. Safe in a signal handler."""
        self._stops.put(None)

    def kill(self) -> None:
        """Kill every process at once; their jobs run again when their leases have expired."""
        for process in self._processes:
            process.kill()

    def run(self) -> None:
        """Run until `stop` is called and every process has ended.

        With `until_idle`, also until every process has ended by itself.
        """
        self._processes = [_Supervised(self._orders, self._environment) for _ in range(self._count)]
        try:
            refused = False
            while not (refused or self._is_stopped(LOOK_SECONDS)):
                refused = self._refused()
                if self._until_idle and all(process.is_done() for process in self._processes):
                    break
                for process in self._processes:
                    if not refused and not (self._until_idle and process.is_done()):
                        process.replace_if_dead()
            for process in self._processes:
                process.terminate()
            for process in self._processes:
                process.wait()
            if refused:
                raise ConfigError("a worker process refused to start; its log line says why")
        finally:
            for process in self._processes:
                process.close()

    def _refused(self) -> bool:
        """Has a process refused to start, while none was ever healthy? Another would refuse, too.

        If others are healthy, the code has changed since they started: they go on.
        """
        return any(process.refused() for process in self._processes) and not any(
            process.was_healthy() for process in self._processes
        )

    def _is_stopped(self, timeout_seconds: float) -> bool:
        try:
            self._stops.get(timeout=timeout_seconds)
        except queue.Empty:
            return False
        return True


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    with suppress(ValueError):  # a signal without a name
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


class _Supervised:
    """One worker process, and its successors."""

    def __init__(self, orders: bytes, environment: Environment) -> None:
        self._orders = orders
        self._environment = environment
        self._pause = FIRST_PAUSE_SECONDS
        self._next_start = 0.0
        self._started_at = 0.0
        self._healthy = False
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._try_to_start()

    def _try_to_start(self) -> None:
        """Start the process. If the machine is short of processes or descriptors, try later."""
        self._started_at = self._environment.monotonic()
        try:
            self._start()
        except OSError as error:
            self._rest(f"a worker process could not be started ({error})")

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tenure.worker.supervisor.supervised", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        with suppress(BrokenPipeError):  # it has died already, and will be replaced
            self._socket.sendall(self._orders + b"\n")

    def refused(self) -> bool:
        """Has it refused to start?"""
        return self._process is not None and self._process.poll() == REFUSED

    def was_healthy(self) -> bool:
        """Has it, or one before it, run for some time?"""
        is_alive = self._process is not None and self._process.poll() is None
        self._healthy = self._healthy or (is_alive and self._age() > HEALTHY_SECONDS)
        return self._healthy

    def _age(self) -> float:
        return self._environment.monotonic() - self._started_at

    def is_done(self) -> bool:
        """Has it ended because there is no work left?"""
        return self._process is not None and self._process.poll() == 0

    def replace_if_dead(self) -> None:
        """Start a successor, later and later while processes die soon after their start.

        The successor of a process that has run its `max_jobs` starts at once.
        """
        if self._process is not None and (code := self._process.poll()) is not None:
            pid = self._process.pid
            if code == MAX_JOBS_REACHED:
                log.info("worker process %d has run its jobs; a new one starts", pid)
                self.close()
                self._process = None
                self._pause, self._next_start = FIRST_PAUSE_SECONDS, 0.0
            else:
                self._rest(f"worker process {pid} {_ending(code)}")
        if self._process is None and self._environment.monotonic() >= self._next_start:
            self._try_to_start()

    def _rest(self, why: str) -> None:
        healthy = self._age() > HEALTHY_SECONDS
        self._healthy = self._healthy or healthy
        self._pause = FIRST_PAUSE_SECONDS if healthy else min(LAST_PAUSE_SECONDS, 2 * self._pause)
        log.error("%s; a new one starts in %.1f s", why, self._pause)
        self.close()
        self._process = None
        self._next_start = self._environment.monotonic() + self._pause

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
        if self._socket is not None:
            self._socket.close()
