"""A worker in a process of its own, as the measuring process sees it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.harness import check

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0


class WorkerProcess:
    """Runs `bench.worker.app` on a database until the block ends."""

    def __init__(self, url: str, kind: str) -> None:
        self._ear, mouth = os.pipe()
        self._heard = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker.app", url, kind, str(mouth)],
            cwd=ROOT,
            pass_fds=[mouth],
        )
        os.close(mouth)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._ear)

    def hear(self) -> str:
        """The next line that a handler wrote."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while b"\n" not in self._heard:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._ear], [], [], max(0.0, left))
            check(bool(ready), f"the worker said nothing for {PATIENCE_SECONDS:g} s")
            more = os.read(self._ear, 65_536)
            check(bool(more), "the worker process has ended")
            self._heard += more
        line, self._heard = self._heard.split(b"\n", 1)
        return line.decode()
