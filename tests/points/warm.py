"""A warm process, from which victims are forked: it has imported everything, and has no threads.

with Warm(folder) as warm:
    report = warm.play(url, "claim")
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.points.play import Report, play
from tests.points.stages import PostgresStage, SQLiteStage, Stage

MEMORY = Path("/dev/shm")
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def quick_folder(usual: Path) -> Iterator[Path]:
    """A folder in memory, where there is such a thing: processes die here, not the machine."""
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        yield usual
        return
    with tempfile.TemporaryDirectory(prefix="tenure-points-", dir=MEMORY) as folder:
        yield Path(folder)


class Wish(msgspec.Struct):
    """What to play. `url`: of a database of PostgreSQL that is migrated; None: SQLite."""

    operation: str
    url: str | None = None
    every: int = 1
    splits: list[str] = []


class Warm:
    """The one who asks. `folder`: for files of SQLite."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.points.warm", str(folder)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def play(self, wish: Wish) -> Report:
        """Wait for it."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(wish) + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, "the warm process is gone; it has said why"
        return msgspec.json.decode(line, type=Report)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()


def main() -> None:
    """Play what is asked for, until nobody asks any more."""
    folder = Path(sys.argv[1])
    stages: dict[str | None, Stage] = {None: SQLiteStage(folder)}
    for line in sys.stdin.buffer:
        wish = msgspec.json.decode(line, type=Wish)
        if wish.url is not None and wish.url not in stages:
            stages[wish.url] = PostgresStage(wish.url, folder)
        report = play(stages[wish.url], wish.operation, every=wish.every, splits=wish.splits)
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()
    for stage in stages.values():
        stage.close()


if __name__ == "__main__":
    main()
