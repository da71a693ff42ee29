"""A play: workers and producers at work, and disturbances that a seed has drawn.

Killed, stopped for longer than a lease, asked to end, cut off by the server, or the server itself
goes down and comes back. Whoever dies is replaced. When all disturbances are done the rest of the
work is done in peace, and then every invariant is checked, over everything that was recorded.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.chaos.roles import ENOUGH, produce
from tests.crash import ledger
from tests.crash.cast import FAST, LEASE_SECONDS, Stage, gone
from tests.processes.crew import Member
from tests.support.invariants import Books
from tests.support.plain import Plain
from tests.support.postgres import Server

WORKERS = 4
PRODUCERS = 2
PEACE_SECONDS = 120.0
SETTINGS = {**FAST, "thread_slots": 4, "process_slots": 2, "async_slots": 20}

ENDED = (0, -signal.SIGTERM)
"""In order, or asked to end before it had begun to listen."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What will be done to them. The seed decides in which order, to whom, and when."""

    seed: int
    kills: int
    pauses: int
    ends: int = 0
    cuts: int = 0
    """Connections that the server ends."""
    restarts: int = 0
    """Of the server, half of them without a word."""

    def drawn(self) -> list[str]:
        """The disturbances, in order."""
        acts = ["kill"] * self.kills + ["pause"] * self.pauses + ["end"] * self.ends
        acts += ["cut"] * self.cuts
        acts += ["restart", "crash"] * (self.restarts // 2)
        random.Random(self.seed).shuffle(acts)
        return acts


@dataclass
class Seen:
    """What came of it."""

    seconds: float = 0.0
    done: dict[str, int] = field(default_factory=dict)
    jobs: int = 0
    runs: int = 0
    lost_attempts: int = 0
    recoveries: list[float] = field(default_factory=list)
    """How long after the end of its lease each lost job was claimed again, in seconds."""

    def __str__(self) -> str:
        acts = ", ".join(f"{count} x {act}" for act, count in sorted(self.done.items()))
        return (
            f"{acts}; {self.jobs:,} jobs, {self.runs:,} runs, {self.lost_attempts:,} lost attempts,"
            f" 0 violations, {self.seconds:.0f} s"
        )


class Play:
    """One run on one stage."""

    def __init__(
        self, stage: Stage, plan: Plan, server: Server | None, *, books: bool, tell: Tell = print
    ) -> None:
        self._stage = stage
        self._plan = plan
        self._server = server
        self._books = books
        self._tell = tell
        self._chance = random.Random(plan.seed + 1)
        self._workers: list[Member] = []
        self._producers: list[Member] = []
        self._asleep: dict[int, tuple[Member, float]] = {}
        self._ending: list[Member] = []
        self._seen = Seen()

    def run(self) -> Seen:
        """Do all of it. Fails with the story of what was violated."""
        began = time.monotonic()
        self._fill()
        acts = self._plan.drawn()
        for number, act in enumerate(acts, 1):
            time.sleep(self._chance.random() * 0.5)
            self._wake()
            self._act(act)
            self._seen.done[act] = self._seen.done.get(act, 0) + 1
            self._fill()
            if number % 25 == 0 or number == len(acts):
                self._tell(
                    f"{number} of {len(acts)} disturbances, {time.monotonic() - began:.0f} s"
                )
        self._end()
        self._take_stock()
        self._seen.seconds = time.monotonic() - began
        return self._seen

    def _act(self, act: str) -> None:
        match act:
            case "kill":
                self._kill()
            case "pause":
                self._pause()
            case "end":
                member = self._drawn_worker()
                self._workers.remove(member)
                self._ending.append(member)
                member.signal(signal.SIGTERM)
            case "cut":
                self._cut()
            case _:
                assert self._server is not None
                self._server.restart("fast" if act == "restart" else "immediate")

    def _kill(self) -> None:
        """Mostly workers, awake or not, and sometimes a producer."""
        if self._chance.random() < 0.15:
            self._producers.pop(self._chance.randrange(len(self._producers))).kill()
            return
        if self._asleep and self._chance.random() < 0.2:
            member, _ = self._asleep.pop(self._chance.choice([*self._asleep]))
        else:
            member = self._drawn_worker()
            self._workers.remove(member)
        member.kill()

    def _pause(self) -> None:
        member = self._drawn_worker()
        self._workers.remove(member)
        self._stage.stop(member)
        seconds = LEASE_SECONDS + self._chance.random()
        self._asleep[member.pid] = member, time.monotonic() + seconds

    def _wake(self, *, all_of_them: bool = False) -> None:
        for pid, (member, at) in list(self._asleep.items()):
            if all_of_them or time.monotonic() >= at:
                member.signal(signal.SIGCONT)
                self._workers.append(member)
                del self._asleep[pid]

    def _cut(self) -> None:
        with Plain(self._stage.url) as plain:
            found = plain.rows(
                "select pid from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid() and client_port is not null"
            )
            for (pid,) in self._chance.sample(found, min(3, len(found))):
                plain.rows("select pg_terminate_backend(?)", pid)

    def _drawn_worker(self) -> Member:
        return self._chance.choice(self._workers)

    def _fill(self) -> None:
        """Replace those that are gone."""
        while len(self._workers) < WORKERS:
            self._workers.append(self._stage.worker(**SETTINGS))
        while len(self._producers) < PRODUCERS:
            seed = self._chance.randrange(1 << 30)
            member = self._stage.crew.start(
                produce, self._stage.url, self._stage.folder, seed, books=self._books
            )
            member.wait_for("begun")
            self._producers.append(member)

    def _end(self) -> None:
        self._stage.open(ENOUGH)
        self._wake(all_of_them=True)
        for member in self._producers:
            assert gone(member) == 0
        self._stage.drained(PEACE_SECONDS)
        for member in self._workers:
            member.signal(signal.SIGTERM)
        for member in (*self._workers, *self._ending):
            code = gone(member, PEACE_SECONDS)
            assert code in ENDED, f"{code}: {self._stage.log_of(member)}"

    def _take_stock(self) -> None:
        books = self._stage.check(effects=self._effects() if self._books else None)
        self._seen.jobs = len(books.rows)
        self._seen.runs = len(books.records.runs)
        self._seen.recoveries = sorted(_recoveries(books))
        self._seen.lost_attempts = len(self._seen.recoveries)

    def _effects(self) -> dict[int, int]:
        """The ledger; of jobs that do not write there, what they would have to have written."""
        found = ledger.entries(self._stage.url)
        with Plain(self._stage.url) as plain:
            others = plain.rows(
                "select id from tenure.history where state = 'succeeded'"
                " and task <> 'tests.crash.handlers.book'"
            )
        return {**found, **{row[0]: 1 for row in others}}


def _recoveries(books: Books) -> Iterator[float]:
    for id, grants in books.grants.items():
        crashed = {event.token for event in books.events[id] if event.kind == "crashed"}
        after = {grant.token: grant for grant in grants}
        for grant in grants:
            if grant.token in crashed and (later := after.get(grant.token + 1)) is not None:
                yield later.claimed_at - books.deadlines[grant.lease][1]
