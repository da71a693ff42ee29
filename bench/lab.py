"""Where benchmarks run: a private PostgreSQL server and a directory on disk, both gone afterwards.

Everything is durable with stock settings: fsync, synchronous commit, `synchronous=FULL`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from tenure.store import Store, open_store
from tests.support.postgres import Server


class Lab:
    """The place of one run. `quick` asks for smaller sizes."""

    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def size(self, full: int, quick: int) -> int:
        """The number of jobs to use."""
        return quick if self.quick else full

    @cached_property
    def server(self) -> Server:
        """A durable server, started when the first benchmark asks for it."""
        return self._stack.enter_context(Server(durable=True))

    @cached_property
    def directory(self) -> Path:
        """A directory on the same kind of disk as the server."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-bench-")))

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of an empty database, dropped afterwards."""
        url = self.server.create_database()
        try:
            yield url
        finally:
            self.server.drop_database(url)

    @contextmanager
    def postgres_store(self, url: str) -> Iterator[Store]:
        """A migrated store with one connection."""
        with open_store(url, connections=1) as store:
            store.migrate()
            yield store

    def file(self, name: str) -> Path:
        """The path of a new SQLite file."""
        folder = Path(tempfile.mkdtemp(dir=self.directory))
        return folder / name

    def limits(self) -> list[str]:
        """What this machine can do, as context for the figures."""
        return [
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before the run",
            f"{fsync_rate(self.directory):,.0f} fsyncs/s of an appended 4 KiB block",
        ]


def fsync_rate(directory: Path, seconds: float = 0.5) -> float:
    """How many appended blocks a second reach the disk, one fsync each."""
    path = directory / "fsync"
    block = b"x" * 4096
    count = 0
    with path.open("wb", buffering=0) as file:
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            file.write(block)
            os.fsync(file.fileno())
            count += 1
        elapsed = time.perf_counter() - start
    path.unlink()
    return count / elapsed
