"""Worker processes whose handlers say when they begin and when they end."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tenure import Gate, Running, Tenure
from tenure.worker.worker import Worker
from tests.processes.crew import Crew, Member, Voice
from tests.support.patience import PATIENCE_SECONDS

FAST: Mapping[str, Any] = {
    "lease_seconds": 1.5,
    "heartbeat_seconds": 0.4,
    "sweep_seconds": 0.1,
    "idle_poll_seconds": 0.05,
}

Limit = tuple[str, Mapping[str, Any], bool]
"""A gate: its name, its limits, and whether each key has them for itself."""


def application(url: str, gates: Iterable[Limit], say: Callable[..., None] | None = None) -> Tenure:
    """An application with one task per gate; `seconds` is how long its jobs take."""
    app = Tenure(url)
    for name, limits, keyed in gates:
        by: Any = {"key" if keyed else "fair_by": lambda key: key}
        gate = Gate(name, **limits, **by)

        @app.task(name=name, gate=gate, max_attempts=50)
        async def work(job: Running, key: str, seconds: float) -> None:
            said = (job.id, job.token, key)
            if say is not None:
                say("begin", (*said, time.monotonic()))
            await asyncio.sleep(seconds)
            if say is not None:
                say("end", (*said, time.monotonic()))

    return app


def work(voice: Voice, url: str, gates: list[Limit], settings: Mapping[str, Any]) -> None:
    """The role of a worker process."""
    app = application(url, gates, voice.say)
    voice.say("begun")
    Worker(app, **settings).run()


@dataclass(frozen=True)
class Run:
    """One attempt, by the clock that all processes of a host share."""

    job: int
    token: int
    key: str
    begin: float
    end: float


def runs(members: Iterable[tuple[Member, float]]) -> list[Run]:
    """Every attempt that began. Those of a process that was killed ended then, at the latest."""
    found = []
    for member, killed_at in members:
        ends = {(job, token): at for job, token, _, at in member.said("end")}
        for job, token, key, at in member.said("begin"):
            found.append(Run(job, token, key, at, ends.get((job, token), killed_at)))
    return sorted(found, key=lambda run: run.begin)


def while_leased(app: Tenure, attempts: Iterable[Run]) -> list[Run]:
    """The same, as long as nobody had swept their leases: from then on they count for nothing."""
    found = []
    swept: dict[tuple[int, int], float] = {}
    seen: set[int] = set()
    offset = time.time() - time.monotonic()
    for run in attempts:
        if run.job not in seen:
            seen.add(run.job)
            for event in app.timeline(run.job):
                if event.kind == "crashed":
                    swept[run.job, event.token] = event.at.timestamp() - offset
        until = swept.get((run.job, run.token), run.end)
        if until > run.begin:
            found.append(Run(run.job, run.token, run.key, run.begin, min(run.end, until)))
    return found


def most_at_once(attempts: Iterable[Run]) -> int:
    """How many of these overlapped at most."""
    moments = [(run.begin, 1) for run in attempts] + [(run.end, -1) for run in attempts]
    most = now = 0
    for _, step in sorted(moments):
        now += step
        most = max(most, now)
    return most


def by_key(attempts: Iterable[Run]) -> dict[str, list[Run]]:
    """Attempts by the key of their line."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in attempts:
        found[run.key].append(run)
    return found


class Fleet:
    """Workers that may be killed."""

    def __init__(self, crew: Crew, url: str, gates: list[Limit]) -> None:
        self._crew = crew
        self._url = url
        self._gates = gates
        self.alive: list[Member] = []
        self.ended: list[tuple[Member, float]] = []

    def start(self, **settings: Any) -> Member:
        """One more worker."""
        member = self._crew.start(work, self._url, self._gates, {**FAST, **settings})
        self.alive.append(member)
        return member

    def kill(self, member: Member) -> None:
        """Without a word."""
        member.kill()
        self.alive.remove(member)
        self.ended.append((member, time.monotonic()))

    def stop(self) -> None:
        """In good order."""
        for member in self.alive:
            member.signal(signal.SIGTERM)
        while self.alive:
            member = self.alive.pop()
            member.process.join(PATIENCE_SECONDS)
            assert member.process.exitcode == 0, member.said("error")
            self.ended.append((member, time.monotonic()))
