"""Who plays: workers, crews of worker processes, producers, sweepers, and who of them is hit.

Every blow is noted with its time, so that the checker can tell what it did. Whom it hits is drawn
from a deck, so that every kind of victim has its turn.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from tests.chaos.deck import Deck
from tests.chaos.roles import produce, sweep
from tests.chaos.tasks import MODULE
from tests.crash.cast import FAST, LEASE_SECONDS, Stage, gone, is_stopped, stop
from tests.processes.crew import Member
from tests.support.books import Blow
from tests.support.patience import until

WORKERS, CREWS, PRODUCERS, SWEEPERS = 3, 1, 2, 1
SETTINGS = {
    **FAST, "lease_seconds": LEASE_SECONDS, "schedule_seconds": 0.5,
    "thread_slots": 8, "process_slots": 8, "async_slots": 20,
}  # fmt: skip
"""All kinds of handlers share a queue: a claim is no larger than the smallest of these."""
KINDS = {"worker": 10, "asleep": 3, "member": 3, "child": 1, "crew": 1, "producer": 2, "sweeper": 2}
"""Who is killed, by weight."""
ENDS = {"worker": 4, "crew": 1}
"""Who is asked to end, by weight."""

ENDED = (0, -signal.SIGTERM)
"""In order, or asked to end before it had begun to listen."""


@dataclass(frozen=True)
class Victim:
    """A process to be hit; `since`: it has been asleep from then on."""

    kind: str
    pid: int
    member: Member | None = None
    since: float | None = None


class Company:
    """The processes of a play."""

    def __init__(self, stage: Stage, chance: random.Random, *, books: bool) -> None:
        self._stage = stage
        self._chance = chance
        self._books = books
        self._workers: list[Member] = []
        self._crews: list[Member] = []
        self._producers: list[Member] = []
        self._sweepers: list[Member] = []
        self._ending: list[Member] = []
        self._asleep: dict[int, tuple[Victim, float]] = {}
        self._to_kill = Deck(chance, KINDS)
        self._to_end = Deck(chance, ENDS)
        self._strangers: dict[int, psutil.Process] = {}
        """Processes that crews have started."""
        self.blows: list[Blow] = []
        self.killed: Counter[str] = Counter()
        """By kind of victim."""
        self.ended: Counter[str] = Counter()
        """Asked to end, by kind."""
        self.slept = 0
        """So many were stopped for longer than a lease: they were seen stopped when it was over."""
        self.woken: dict[int, float] = {}
        """When those who were stopped went on."""

    @property
    def asleep(self) -> Mapping[int, float]:
        """Who is stopped, and since when."""
        return {pid: victim.since or 0.0 for pid, (victim, _) in self._asleep.items()}

    # --- comings ----------------------------------------------------------------------------------

    def fill(self) -> None:
        """Replace those that are gone."""
        stage = self._stage
        while len(self._workers) < WORKERS:
            self._workers.append(stage.worker(module=MODULE, **SETTINGS))
        while len(self._crews) < CREWS:
            self._crews.append(stage.worker(module=MODULE, processes=2, **SETTINGS))
        while len(self._producers) < PRODUCERS:
            seed = self._chance.randrange(1 << 30)
            self._producers.append(
                stage.crew.start(produce, stage.url, stage.folder, seed, books=self._books)
            )
        while len(self._sweepers) < SWEEPERS:
            self._sweepers.append(stage.crew.start(sweep, stage.url, stage.folder))

    # --- blows ------------------------------------------------------------------------------------

    def kill(self, size: int) -> int:
        """SIGKILL for so many at once: mostly workers, awake or not. Answers how many died."""
        drawn = [victim for _ in range(size) if (victim := self._drawn()) is not None]
        victims = {victim.pid: victim for victim in drawn}.values()
        hit = 0
        for victim in victims:
            self._note_sleep(victim)
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
                self.blows.append(Blow(victim.pid, victim.since or time.monotonic(), "kill"))
                self.killed[victim.kind] += 1
                hit += 1
        for victim in victims:
            if victim.member is not None:
                gone(victim.member)
        return hit

    def pause(self, seconds: float) -> bool:
        """SIGSTOP for a worker or a member of a crew, for so long. See `slept`."""
        pool = [Victim("worker", member.pid, member) for member in self._workers] + self._members()
        victim = self._chance.choice(pool)
        try:
            stop(victim.pid, self._stage.url)
        except (ProcessLookupError, FileNotFoundError):
            return False  # a member of a crew that has just ended
        now = time.monotonic()
        self.blows.append(Blow(victim.pid, now, "pause"))
        if victim.member is not None:
            self._workers.remove(victim.member)
        asleep = Victim("asleep", victim.pid, victim.member, now)
        self._asleep[victim.pid] = asleep, now + seconds
        return True

    def _note_sleep(self, victim: Victim) -> None:
        """It is about to wake or to die. Was it stopped until now, and for longer than a lease?"""
        if victim.since is not None and time.monotonic() - victim.since >= LEASE_SECONDS:
            with suppress(FileNotFoundError):
                self.slept += is_stopped(victim.pid)

    def due_to_wake(self) -> list[Victim]:
        """Who has slept for long enough."""
        return [victim for victim, until in self._asleep.values() if time.monotonic() >= until]

    def wake(self, sleepers: Sequence[Victim] | None = None) -> None:
        """SIGCONT for these, or for all."""
        for victim in [v for v, _ in self._asleep.values()] if sleepers is None else sleepers:
            del self._asleep[victim.pid]
            self._note_sleep(victim)
            self.woken[victim.pid] = time.monotonic()
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGCONT)
            if victim.member is not None:
                self._workers.append(victim.member)

    def ask_to_end(self) -> None:
        """SIGTERM for a worker, or for a crew."""
        kind = self._to_end.draw()
        pool = self._crews if kind == "crew" else self._workers
        member = pool.pop(self._chance.randrange(len(pool)))
        self._note_members(member)
        self._ending.append(member)
        member.signal(signal.SIGTERM)
        self.ended[str(kind)] += 1

    def _drawn(self) -> Victim | None:
        """Somebody to be killed, who belongs to the company no more."""
        pools: dict[str, list[Victim]] = {}
        kind = self._to_kill.draw(lambda kind: bool(pools.setdefault(kind, self.pool(kind))))
        if kind is None:
            return None
        victim = self._chance.choice(pools[kind])
        self._asleep.pop(victim.pid, None)
        if victim.member in self._crews:
            self._note_members(victim.member)
        for members in (self._workers, self._crews, self._producers, self._sweepers):
            if victim.member in members:
                members.remove(victim.member)
        return victim

    def pool(self, kind: str) -> list[Victim]:
        """Who can be killed, of this kind."""
        match kind:
            case "asleep":
                return [victim for victim, _ in self._asleep.values()]
            case "member":
                return self._members()
            case "child":
                return self._children()
        named = {
            "worker": self._workers, "crew": self._crews, "producer": self._producers,
            "sweeper": self._sweepers,
        }  # fmt: skip
        return [Victim(kind, member.pid, member) for member in named[kind]]

    def _members(self) -> list[Victim]:
        """The worker processes of crews, who are awake."""
        for crew in self._crews:
            self._note_members(crew)
        return [
            Victim("member", pid)
            for pid, process in self._strangers.items()
            if pid not in self._asleep and _is_alive(process)
        ]

    def _note_members(self, crew: Member) -> None:
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(crew.pid).children():
                if _is_worker(process):
                    self._strangers[process.pid] = process

    def _children(self) -> list[Victim]:
        """Processes in which handlers run."""
        found: list[Victim] = []
        for worker in self._workers:
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(worker.pid).children()
                found += [Victim("child", child.pid) for child in children if _is_alive(child)]
        return found

    # --- goings -----------------------------------------------------------------------------------

    def producers_are_done(self) -> None:
        """They have seen that it is enough."""
        for member in (*self._producers, *self._sweepers):
            assert gone(member) == 0

    def go_home(self, seconds: float) -> None:
        """All workers end in order, those of crews too, with or without their supervisor."""
        for member in (*self._workers, *self._crews):
            self._note_members(member)
            member.signal(signal.SIGTERM)
        for member in (*self._workers, *self._crews, *self._ending):
            code = gone(member, seconds)
            assert code in ENDED, f"{code}: {self._stage.log_of(member)}"
        strangers = self._strangers.values()
        until(lambda: not any(map(_is_alive, strangers)), "all members end", seconds)

    def close(self) -> None:
        """Whatever has happened, nobody stays behind."""
        for crew in self._crews:
            self._note_members(crew)
        for victim, _ in self._asleep.values():
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
        for process in self._strangers.values():
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_worker(process: psutil.Process) -> bool:
    """Not one that has not become itself yet."""
    with suppress(psutil.NoSuchProcess):
        return "tenure.worker.supervisor.supervised" in process.cmdline()
    return False
