"""A process that copies, and is killed at a point that has a name.

before:_write_missing:3    as it is about to begin its third transaction of this kind
after:_write_missing:3     just after that one was committed
inside:history:1           in a transaction, with the rows of a table written for the first time
nowhere                    it lives
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar, ParamSpec, TypeVar

from tenure.store import Store
from tenure.store.api import Operation
from tenure.store.copy import run as transfer
from tenure.store.copy import tables as cargo
from tenure.store.session import Row, Tx
from tenure.store.url import open_session
from tests.processes.crew import Voice

P = ParamSpec("P")
R = TypeVar("R")

CHUNK_ROWS = 12


def die() -> None:
    """As by power loss: nothing is tidied up."""
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(Store):
    """A store that kills its process before or after one of its operations."""

    point = ("", "", 0)
    seen: ClassVar[Counter[str]] = Counter()

    def run(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        when, name, turn = Mortal.point
        Mortal.seen[operation.__name__] += 1
        here = operation.__name__ == name and Mortal.seen[name] == turn
        if here and when == "before":
            die()
        answer = super().run(operation, *args, **kwargs)
        if here and when == "after":
            die()
        return answer


class MortalTable(cargo.Table):
    """A table that kills its process in the middle of a transaction."""

    async def write(self, tx: Tx, rows: Iterable[Row]) -> None:
        rows = list(rows)
        await super().write(tx, rows)
        when, name, turn = Mortal.point
        if rows:
            Mortal.seen[self.name] += 1
        if when == "inside" and self.name == name and Mortal.seen[name] == turn:
            die()


def move(voice: Voice, source: str, target: str, point: str) -> None:
    """Copy, and perhaps die; says how many jobs there are."""
    when, name, turn = point.split(":") if ":" in point else ("", "", "0")
    Mortal.point = (when, name, int(turn))
    cargo.CHUNK_ROWS = CHUNK_ROWS
    cargo.JOB_TABLES = tuple(MortalTable(*table) for table in cargo.JOB_TABLES)
    old, new = (Mortal(open_session(url, "sync", 4, 10.0)) for url in (source, target))
    with old, new:
        copied = transfer.copy(old, new, int)
    voice.say("copied", (copied.live, copied.finished))
