"""Exactly-once effects: one ledger row per job, while workers are killed and stopped all the time.

Each job writes a row into the user's own table, in the transaction that completes it. Workers die
by SIGKILL and are replaced; others are stopped by SIGSTOP for longer than their lease and go on.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.crash import ledger
from tests.crash.cast import Stage, gone
from tests.crash.handlers import book
from tests.processes.crew import Member
from tests.support.books import Books
from tests.support.history import NEVER
from tests.support.plain import Plain

JOBS, KILLS, STOPS = 2_000, 50, 20
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


@dataclass
class Chaos:
    """Kills and stops workers as the ledger grows, so that there is always work to hit."""

    stage: Stage
    chance: random.Random
    alive: list[Member] = field(default_factory=list)
    stopped: dict[int, tuple[Member, float]] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    paused: list[int] = field(default_factory=list)

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
        with Plain(self.stage.url) as plain:
            while len(self.killed) < KILLS or len(self.paused) < STOPS or self.stopped:
                self.wake()
                done = plain.one("select count(*) from ledger") / JOBS
                if done >= 0.8 * len(self.killed) / KILLS and (victim := self.choose()):
                    self.kill(victim)
                if done >= 0.8 * len(self.paused) / STOPS and (victim := self.choose()):
                    self.stop(victim)
                time.sleep(0.01)

    def choose(self) -> Member | None:
        """Somebody whose handlers are running, by their own record."""
        busy = [member for member in self.alive if self._is_busy(member)]
        return self.chance.choice(busy) if busy else None

    def _is_busy(self, member: Member) -> bool:
        lines = b"".join(p.read_bytes() for p in self.stage.folder.glob(f"{member.pid}-*.jsonl"))
        return lines.count(b'"type":"started"') > lines.count(b'"type":"ended"')


@pytest.mark.slow
def test_one_ledger_row_per_job_whatever_happens_to_the_workers(shared_stage: Stage) -> None:
    stage, chance, began = shared_stage, random.Random(20260301), time.monotonic()
    stage.add(*[book.call(chance.uniform(*HANDLER_SECONDS)) for _ in range(JOBS)])
    chaos = Chaos(stage, chance)
    for _ in range(WORKERS):
        chaos.start()
    chaos.rage()
    stage.drained(150.0)
    for member in chaos.alive:
        member.signal(signal.SIGTERM)
        assert gone(member) == 0

    entries = ledger.entries(stage.url)
    assert set(entries.values()) == {1}
    assert len(entries) == JOBS
    books = stage.check(effects=entries)
    assert Counter(row.state for row in books.final.jobs) == {"succeeded": JOBS}
    report(stage, chaos, books, time.monotonic() - began)


def report(stage: Stage, chaos: Chaos, books: Books, seconds: float) -> None:
    """Say what happened; fail when the blows have hit nobody."""
    runs = books.records.runs
    crashes = [event for event in books.final.events if event.kind == "crashed"]
    kinds = Counter(event.kind for event in books.final.events)
    hit = {run.pid for run in runs if run.ended == NEVER} & chaos.killed
    lost = {books.records.pid_of(event.worker or "") for event in crashes} & {*chaos.paused}
    refused = sum(run.error == "LeaseLost" for run in runs)
    print(
        f"\n{stage.url.partition(':')[0]}: {JOBS:,} jobs, {len(chaos.killed)} kills of which "
        f"{len(hit)} met running handlers, {len(chaos.paused)} stops past the lease of which "
        f"{len(lost)} processes lost jobs, {len(crashes)} lost leases, {dict(kinds)}, "
        f"{len(runs):,} executions, {refused} completions refused, {seconds:.0f} s"
    )
    assert len(chaos.killed) >= KILLS
    assert len(chaos.paused) >= STOPS
    assert len(hit) >= 0.8 * KILLS
    assert lost
    assert len(crashes) >= KILLS
    assert len(runs) > JOBS
