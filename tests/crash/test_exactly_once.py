"""Exactly-once effects: one ledger row per job, while workers are killed and stopped all the time.

Each job writes a row into the user's own table, in the transaction that completes it. Workers die
by SIGKILL and are replaced; others are stopped by SIGSTOP for longer than their lease and go on.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conftest import Count
from tests.crash import ledger
from tests.crash.cast import Stage, gone
from tests.crash.handlers import book
from tests.processes.crew import Member
from tests.support.books import Books
from tests.support.history import NEVER
from tests.support.plain import Plain

MORE = 20
"""Jobs that are added when there is nothing left to do, and not all blows have been dealt."""
WORKERS, SLOTS = 4, 4
LEASE_SECONDS = 1.5
"""Long enough for a busy machine: a job that loses its lease is tried alone from then on."""
STOP_SECONDS = LEASE_SECONDS + 0.25
HANDLER_SECONDS = (0.05, 0.15)
SETTINGS: Mapping[str, Any] = {
    "lease_seconds": LEASE_SECONDS,
    "heartbeat_seconds": 0.4,
    "sweep_seconds": 0.1,
    "thread_slots": SLOTS,
    "idle_poll_seconds": 0.02,
}


@dataclass(frozen=True)
class Size:
    """How many jobs there are at first, and how many workers are killed and stopped."""

    jobs: int
    kills: int
    stops: int


SHARE = Size(jobs=300, kills=10, stops=4)
WHOLE = Size(jobs=2_000, kills=50, stops=20)


@dataclass
class Chaos:
    """Kills and stops workers as the ledger grows, so that there is always work to hit."""

    stage: Stage
    size: Size
    chance: random.Random
    alive: list[Member] = field(default_factory=list)
    stopped: dict[int, tuple[Member, float]] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    paused: list[int] = field(default_factory=list)
    jobs: int = 0

    def add(self, jobs: int) -> None:
        """More work."""
        self.stage.add(*[book.call(self.chance.uniform(*HANDLER_SECONDS)) for _ in range(jobs)])
        self.jobs += jobs

    def start(self) -> None:
        """One more worker."""
        self.alive.append(self.stage.worker(**SETTINGS))

    def kill(self, victim: Member) -> None:
        """SIGKILL for one, and a successor."""
        self.alive.remove(victim)
        victim.kill()
        self.killed.add(victim.pid)
        self.start()

    def stop(self, victim: Member) -> None:
        """SIGSTOP for one."""
        self.alive.remove(victim)
        victim.signal(signal.SIGSTOP)
        self.stopped[victim.pid] = (victim, time.monotonic())
        self.paused.append(victim.pid)

    def wake(self) -> None:
        """SIGCONT for those who were stopped past their lease."""
        for pid, (member, since) in list(self.stopped.items()):
            if time.monotonic() - since > STOP_SECONDS:
                member.signal(signal.SIGCONT)
                self.alive.append(member)
                del self.stopped[pid]

    def rage(self) -> None:
        """Until all kills and stops have been dealt out, evenly over the work."""
        kills, stops = self.size.kills, self.size.stops
        with Plain(self.stage.url) as plain:
            while len(self.killed) < kills or len(self.paused) < stops or self.stopped:
                self.wake()
                written = plain.one("select count(*) from ledger")
                done = written / self.size.jobs
                if len(self.killed) < kills and done >= 0.8 * len(self.killed) / kills:
                    self.hit(self.kill)
                if len(self.paused) < stops and done >= 0.8 * len(self.paused) / stops:
                    self.hit(self.stop)
                if written == self.jobs:
                    self.add(MORE)
                time.sleep(0.01)

    def hit(self, blow: Callable[[Member], None]) -> None:
        """A worker whose handlers are running, by its own record; none if there is none."""
        if busy := [member for member in self.alive if self._is_busy(member)]:
            blow(self.chance.choice(busy))

    def _is_busy(self, member: Member) -> bool:
        lines = b"".join(p.read_bytes() for p in self.stage.folder.glob(f"{member.pid}-*.jsonl"))
        return lines.count(b'"type":"started"') > lines.count(b'"type":"ended"')


@pytest.mark.slow
def test_one_ledger_row_per_job_whatever_happens_to_the_workers(
    shared_stage: Stage, whole: bool, count: Count
) -> None:
    stage, began = shared_stage, time.monotonic()
    chaos = Chaos(stage, WHOLE if whole else SHARE, random.Random(20260301))
    chaos.add(chaos.size.jobs)
    for _ in range(WORKERS):
        chaos.start()
    chaos.rage()
    stage.drained()
    for member in chaos.alive:
        member.signal(signal.SIGTERM)
        assert gone(member) == 0

    entries = ledger.entries(stage.url)
    assert set(entries.values()) == {1}
    assert len(entries) == chaos.jobs
    books = stage.check(effects=entries)
    assert Counter(row.state for row in books.final.jobs) == {"succeeded": chaos.jobs}
    report(stage, chaos, books, time.monotonic() - began)
    count("effects", len(entries))


def report(stage: Stage, chaos: Chaos, books: Books, seconds: float) -> None:
    """Say what happened; fail when the blows have hit nobody."""
    runs = books.records.runs
    crashes = [event for event in books.final.events if event.kind == "crashed"]
    kinds = Counter(event.kind for event in books.final.events)
    hit = {run.pid for run in runs if run.ended == NEVER} & chaos.killed
    lost = {books.records.pid_of(event.worker or "") for event in crashes} & {*chaos.paused}
    refused = sum(run.error == "LeaseLost" for run in runs)
    print(
        f"\n{stage.url.partition(':')[0]}: {chaos.jobs:,} jobs, {len(chaos.killed)} kills of which "
        f"{len(hit)} met running handlers, {len(chaos.paused)} stops past the lease of which "
        f"{len(lost)} processes lost jobs, {len(crashes)} lost leases, {dict(kinds)}, "
        f"{len(runs):,} executions, {refused} completions refused, {seconds:.0f} s"
    )
    assert len(chaos.killed) >= chaos.size.kills
    assert len(chaos.paused) >= chaos.size.stops
    assert len(hit) >= 0.5 * chaos.size.kills
    assert lost
    assert len(crashes) >= chaos.size.kills
    assert len(runs) > chaos.jobs
