"""The environment of a simulated process: the hub's time, chance and threads, and a record."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tenure.rules.claim import Ask, Claimed
from tenure.store import AsyncStore, Store
from tenure.store.sqlite.boot_clock import EPOCH
from tenure.testing.recorder import (
    Begun,
    Ended,
    Granted,
    Line,
    Log,
    Op,
    RecordingAsyncStore,
    RecordingStore,
    Started,
)
from tenure.worker import settler
from tenure.worker.claiming import claimer
from tenure.worker.environment import Environment
from tests.simulation.hub import OP, Event, Gone, Hub, Permits, Process, Thread
from tests.simulation.store import Session
from tests.support.books import Violation


class _Asked(NamedTuple):
    """What a claim has asked for."""

    asks: Mapping[str, int | Ask]
    max_kb: int
    kept_until: float
    """Until then the worker does not lose what it gets."""


@dataclass(slots=True)
class _Large:
    """A job of some kilobytes that was handed out."""

    kb: int
    kept_until: float
    runs: bool = False


class MemoryLog(Log):
    """What one simulated process does. All times are those of the hub."""

    def __init__(self, session: Session, process: Process) -> None:
        self._session = session
        self._process = process
        self._numbers = itertools.count(1)
        self.lines: list[Line] = []
        self.wrong: list[Violation] = []
        """Claims that got more than they asked for, and requests with too many bytes."""
        self._asked: dict[int, _Asked] = {}
        self._large: dict[tuple[int, int], _Large] = {}
        self.steps = 0
        self.write(Begun(pid=process.pid))

    def write(self, line: Line) -> None:
        if self._process.dead:
            return
        line.mono = line.wall = self._session.hub.now
        self.lines.append(line)
        if isinstance(line, Started | Ended) and (large := self._large.get((line.id, line.token))):
            large.runs = isinstance(line, Started)

    def sent(
        self, op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], tenant: str | None
    ) -> int:
        OP.set(op.name)
        n = super().sent(op, args, kwargs, tenant)
        if op.name == "claim":
            now, seconds = self._session.hub.now, kwargs["lease_seconds"]
            self._asked[n] = _Asked(args[1], kwargs["max_kb"], now + seconds / 2)
            kb = sum(x.kb for x in self._large.values() if x.runs and now < x.kept_until)
            if kwargs["max_kb"] > max(0, claimer.MAX_KB_IN_HAND - kb):
                self._note(
                    "claims beyond its memory", None, f"{kb} kB run, {kwargs['max_kb']} more"
                )
        elif op.name == "settle" and not kwargs.get("on"):
            sizes = sorted(len(each.result or each.error or b"") >> 10 for each in args[1])
            if sum(sizes[:-1]) > settler.MAX_BATCH_KB:
                self._note("settles too many bytes", args[1][0].id, f"{sizes} kB")
        return n

    def answered(self, n: int, op: Op, answer: Any) -> None:
        line = op.answered(answer)
        line.n = n
        if line.granted:
            self._compare_with_ask(n, [job for lease in answer for job in lease.jobs])
            line.granted = [
                self._in_hub_time(granted, lease)
                for granted, lease in zip(line.granted, answer, strict=True)
            ]
        self.steps += 1
        self.write(line)

    def refused(self, n: int, error: BaseException) -> None:
        self.steps += 1
        super().refused(n, error)

    def _compare_with_ask(self, n: int, jobs: list[Claimed]) -> None:
        """No more of any queue or kind than wanted; no more bytes, but for one job."""
        asks, max_kb, kept_until = self._asked.pop(n)
        for queue, ask in asks.items():
            got = Counter(job.needs for job in jobs if job.queue == queue)
            assert isinstance(ask, Ask)
            if got.total() > ask.most or any(got[needs] > ask.of.get(needs, 0) for needs in got):
                self._note(
                    "claimed too much", jobs[0].id, f"{dict(got)} of {queue}, asked for {ask}"
                )
        for job in jobs:
            if job.size_kb > 1:  # a worker takes no notice of less
                self._large[job.id, job.token] = _Large(job.size_kb, kept_until)
        sizes = sorted(job.size_kb for job in jobs)
        if sum(sizes[:-1]) > max_kb:
            self._note("claimed too many bytes", jobs[0].id, f"{sizes} kB, asked for {max_kb}")

    def _note(self, what: str, id: int | None, text: str) -> None:
        self.wrong.append(Violation(2, what, id, text))

    def _in_hub_time(self, granted: Granted, lease: Any) -> Granted:
        at = self._session.clock.when(lease.claimed_at)
        seconds = (lease.expires_at - lease.claimed_at).total_seconds()
        return Granted(granted.id, at, at + seconds, granted.jobs)


class VirtualEnvironment(Environment):
    """The environment of one simulated process."""

    def __init__(
        self, session: Session, process: Process, at_crash_point: Callable[[Process, str], None]
    ) -> None:
        self._session = session
        self._hub: Hub = session.hub
        self.process = process
        self.log = MemoryLog(session, process)
        self.monotonic = self._monotonic
        self._at_crash_point = at_crash_point
        self._secrets = itertools.count(1)

    def _monotonic(self) -> float:
        return self._hub.now

    def now(self) -> datetime:
        return EPOCH + timedelta(microseconds=self._session.clock.wall())

    def random(self) -> float:
        return self._hub.random.random()

    def secret(self) -> str:
        return f"{self.process.pid}x{next(self._secrets)}"

    def thread(self, body: Callable[[], None], name: str) -> Thread:
        return Thread(self._hub, body, name)

    def event(self) -> Event:
        return Event(self._hub)

    def permits(self) -> Permits:
        return Permits(self._hub)

    def crash_point(self, name: str) -> None:
        self._at_crash_point(self.process, name)
        if self.process.dead:
            self._hub.suspend(self._hub.fiber())

    def exit_now(self, code: int) -> None:  # noqa: ARG002
        self._hub.kill(self.process)
        raise Gone

    def wrap(self, store: Store) -> Store:
        if isinstance(store, RecordingStore):
            return store
        return RecordingStore(store, self, self.log)

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        if isinstance(store, RecordingAsyncStore):
            return store
        return RecordingAsyncStore(store, self, self.log)
