"""Starts, watches and stops the measured worker processes."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tenure.benchmark.tasks import app
from tenure.errors import MeasurementFailed

START_SECONDS = 60.0
STOP_SECONDS = 5.0
LOOK_SECONDS = 0.02
TOLD_BYTES = 2000


class Workers:
    """One `python -m tenure.benchmark` with its worker processes."""

    def __init__(self, url: str, processes: int, queues: Sequence[str]) -> None:
        self._url = url
        self._processes = processes
        self._queues = queues
        self._process: subprocess.Popen[bytes] | None = None
        self._told: IO[bytes] | None = None

    def start(self) -> None:
        """Start the processes and wait until all of them are alive."""
        self._told = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tenure.benchmark", str(self._processes), *self._queues],
            env=os.environ | {"TENURE_URL": self._url},
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._told,
            start_new_session=True,  # Ctrl-C in a terminal goes to the measuring process only
        )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while sum(worker.alive for worker in app.workers()) < self._processes:
            self.check()
            if time.monotonic() > deadline:
                raise MeasurementFailed(
                    f"the workers did not start within {START_SECONDS:g} s{self._last_words()}"
                )
            time.sleep(LOOK_SECONDS)

    def check(self) -> None:
        """Raise if they have exited."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise MeasurementFailed(
                f"the workers exited with {self._process.returncode}{self._last_words()}"
            )

    def cpu_seconds(self) -> float | None:
        """Their CPU time so far; None if the system does not report it."""
        assert self._process is not None
        with suppress(OSError):
            ticks = sum(_ticks(pid) for pid in _family(self._process.pid))
            return ticks / os.sysconf("SC_CLK_TCK")
        return None

    def stop(self) -> None:
        """Stop them: two SIGTERMs, then SIGKILL."""
        process = self._process
        if process is not None:
            assert process.stdin is not None
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
                process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
                    break
            process.stdin.close()
        if self._told is not None:
            self._told.close()

    def _last_words(self) -> str:
        assert self._told is not None
        self._told.seek(max(0, self._told.seek(0, os.SEEK_END) - TOLD_BYTES))
        lines = self._told.read().decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def _family(parent: int) -> Iterator[int]:
    """A process and its children."""
    yield parent
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text("ascii")
    yield from map(int, children.split())


def _ticks(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0
