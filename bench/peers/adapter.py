"""What a competitor must be able to do. One subclass each, in adapters/.

`unfinished` and `finished` are looked up in the database, behind the library's back: a job counts
when its completion is durable, not when its handler returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from bench.peers.board import Board

CHUNK = 1000
"""Jobs per call of a bulk enqueue, and per transaction where there is no such call."""


def payload(job: int) -> dict[str, object]:
    """About 100 bytes of JSON, the same for everybody."""
    return {
        "number": job,
        "template": "welcome",
        "locale": "en_GB",
        "to": "someone.or.other@example.com",
    }


def chunks(first: int, end: int, size: int = CHUNK) -> list[range]:
    """These jobs in pieces."""
    return [range(start, min(end, start + size)) for start in range(first, end, size)]


class Adapter(ABC):
    """One competitor on one database."""

    name: ClassVar[str]
    store: ClassVar[Literal["postgres", "sqlite"]]
    packages: ClassVar[Sequence[str]] = ()
    """What its virtual environment holds, pinned. Nothing: ours, in the present environment."""
    python: ClassVar[tuple[int, int]] = (3, 11)
    """The oldest Python that it runs on."""
    settings: ClassVar[str]
    on_loop: ClassVar[bool]
    """Is its client used on an event loop? A synchronous client must not see one."""
    stored: ClassVar[str]
    """SQL: how many jobs are in the table before any has run?"""
    unfinished: ClassVar[str]
    """SQL: are there jobs whose completion is not in the database yet?"""
    finished: ClassVar[str | None]
    """SQL: how many completed jobs does the database know of? None: it forgets them."""
    drain_jobs: ClassVar[int]
    """So many jobs take a few seconds to drain."""
    enqueue_jobs: ClassVar[int]

    def __init__(self, url: str, board: Board, slots: int | None = None) -> None:
        self.url = url
        self.board = board
        self.slots = slots
        """How many jobs a worker runs at once; None: what is best for speed."""

    @abstractmethod
    def install(self) -> None:
        """Make the tables."""

    @abstractmethod
    async def open(self) -> None:
        """Become a producer."""

    @abstractmethod
    async def enqueue_many(self, first: int, end: int) -> None:
        """Enqueue these jobs in the fastest documented way, durably, in chunks."""

    @abstractmethod
    async def enqueue(self, job: int) -> None:
        """Enqueue one job, durably."""

    async def close(self) -> None:  # noqa: B027 - many have nothing to close
        """Stop being a producer."""

    @abstractmethod
    def work(self, worker: int) -> None:
        """Be a worker until a signal comes: prepare, wait for the go, run."""
