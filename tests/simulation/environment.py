"""The environment of a simulated process: the hub's time, chance and threads, and a record."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from tenure.store import AsyncStore, Store
from tenure.store.sqlite.boot_clock import EPOCH
from tenure.testing.recorder import (
    Begun,
    Granted,
    Line,
    Log,
    Op,
    RecordingAsyncStore,
    RecordingStore,
)
from tenure.worker.environment import Environment
from tests.simulation.hub import OP, Event, Gone, Hub, Permits, Process, Thread
from tests.simulation.store import Session


class MemoryLog(Log):
    """What one simulated process does. All times are those of the hub."""

    def __init__(self, session: Session, process: Process) -> None:
        self._session = session
        self._process = process
        self._numbers = itertools.count(1)
        self.lines: list[Line] = []
        self.steps = 0
        self.write(Begun(pid=process.pid))

    def write(self, line: Line) -> None:
        if self._process.dead:
            return
        line.mono = line.wall = self._session.hub.now
        self.lines.append(line)

    def sent(
        self, op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any], tenant: str | None
    ) -> int:
        OP.set(op.name)
        return super().sent(op, args, kwargs, tenant)

    def answered(self, n: int, op: Op, answer: Any) -> None:
        line = op.answered(answer)
        line.n = n
        if line.granted:
            line.granted = [
                self._in_hub_time(granted, lease)
                for granted, lease in zip(line.granted, answer, strict=True)
            ]
        self.steps += 1
        self.write(line)

    def refused(self, n: int, error: BaseException) -> None:
        self.steps += 1
        super().refused(n, error)

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
