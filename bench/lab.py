"""Where benchmarks run: a private PostgreSQL server and a directory on disk, both gone afterwards.

Everything is durable with stock settings: fsync, synchronous commit, `synchronous=FULL`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.harness import ROUNDS
from tenure.store import Store, open_store
from tests.support.postgres import Server

LEAST_JOBS = 40


class Lab:
    """The place of one run. `quick` asks for smaller sizes.

    `asked` are the names that were asked for, and `peers` compete where they name none.
    `failures` says which figures are missing, and why. `sizes`: see bench/lookups.py.
    """

    def __init__(
        self,
        *,
        quick: bool,
        asked: Sequence[str] = ("all",),
        peers: Sequence[str] = (),
        rounds: int = ROUNDS,
        scale: float = 1.0,
        sizes: Sequence[int] = (),
    ) -> None:
        self.quick = quick
        self.asked = asked
        self.peers = peers
        self.rounds = rounds
        self.sizes = sizes
        self.failures: list[str] = []
        self._scale = scale / 4 if quick else scale
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

    def few(self, jobs: int) -> int:
        """So many jobs, at the scale of this run."""
        return max(LEAST_JOBS, int(jobs * self._scale))

    def wants(self, name: str, *, peer: str | None = None) -> bool:
        """Is this figure asked for? One that is named in full always is."""
        if name in self.asked:
            return True
        is_below = any(asked == "all" or name.startswith(f"{asked}.") for asked in self.asked)
        return is_below and (peer is None or peer in self.peers)

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
