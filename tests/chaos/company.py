"""Who plays: workers, crews of worker processes, producers, sweepers, and who of them is hit.

Every blow is noted with its time, so that the checker can tell what it did.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from tests.chaos.roles import produce, sweep
from tests.chaos.tasks import MODULE
from tests.crash.cast import FAST, Stage, gone, stop, until
from tests.processes.crew import Member
from tests.support.books import Blow

WORKERS, CREWS, PRODUCERS, SWEEPERS = 3, 1, 2, 1
SETTINGS = {
    **FAST, "thread_slots": 8, "process_slots": 8, "async_slots": 20, "schedule_seconds": 0.5,
}  # fmt: skip
"""All kinds of handlers share a queue: a claim is no larger than the smallest of these."""
KINDS = {"worker": 10, "asleep": 3, "member": 3, "child": 1, "crew": 1, "producer": 2, "sweeper": 2}
"""Who is killed, by weight."""

ENDED = (0, -signal.SIGTERM)
"""In order, or asked to end before it had begun to listen."""


@dataclass(frozen=True)
class Victim:
    """A process to be hit; `since`: it has been asleep from then on."""

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
        self._strangers: dict[int, psutil.Process] = {}
        """Processes that crews have started."""
        self.blows: list[Blow] = []

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
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
                self.blows.append(Blow(victim.pid, victim.since or time.monotonic(), "kill"))
                hit += 1
        for victim in victims:
            if victim.member is not None:
                gone(victim.member)
        return hit

    def pause(self, seconds: float) -> int:
        """SIGSTOP for a worker or a member of a crew, for so long."""
        pool = [Victim(member.pid, member) for member in self._workers] + self._members()
        victim = self._chance.choice(pool)
        try:
            stop(victim.pid, self._stage.url)
        except (ProcessLookupError, FileNotFoundError):
            return 0  # a member of a crew that has just ended
        now = time.monotonic()
        self.blows.append(Blow(victim.pid, now, "pause"))
        if victim.member is not None:
            self._workers.remove(victim.member)
        asleep = Victim(victim.pid, victim.member, now)
        self._asleep[victim.pid] = asleep, now + seconds
        return 1

    def due_to_wake(self) -> list[Victim]:
        """Who has slept for long enough."""
        return [victim for victim, until in self._asleep.values() if time.monotonic() >= until]

    def wake(self, sleepers: Sequence[Victim] | None = None) -> None:
        """SIGCONT for these, or for all."""
        for victim in [v for v, _ in self._asleep.values()] if sleepers is None else sleepers:
            del self._asleep[victim.pid]
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGCONT)
            if victim.member is not None:
                self._workers.append(victim.member)

    def ask_to_end(self) -> None:
        """SIGTERM for a worker, or for a crew."""
        pool = self._crews if self._chance.random() < 0.2 else self._workers
        member = pool.pop(self._chance.randrange(len(pool)))
        self._note_members(member)
        self._ending.append(member)
        member.signal(signal.SIGTERM)

    def _drawn(self) -> Victim | None:
        """Somebody to be killed, who belongs to the company no more."""
        [kind] = self._chance.choices([*KINDS], [*KINDS.values()])
        match kind:
            case "asleep" if self._asleep:
                return self._asleep.pop(self._chance.choice([*self._asleep]))[0]
            case "member" if members := self._members():
                return self._chance.choice(members)
            case "child" if children := self._children():
                return self._chance.choice(children)
            case "crew" if self._crews:
                self._note_members(self._crews[0])
                return self._taken(self._crews)
            case "producer" if self._producers:
                return self._taken(self._producers)
            case "sweeper" if self._sweepers:
                return self._taken(self._sweepers)
            case _:
                return self._taken(self._workers)

    def _taken(self, members: list[Member]) -> Victim | None:
        if not members:
            return None
        member = members.pop(self._chance.randrange(len(members)))
        return Victim(member.pid, member)

    def _members(self) -> list[Victim]:
        """The worker processes of crews, who are awake."""
        for crew in self._crews:
            self._note_members(crew)
        return [
            Victim(pid)
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
                found += [Victim(child.pid) for child in psutil.Process(worker.pid).children()]
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
        return "tenure.worker.member" in process.cmdline()
    return False
