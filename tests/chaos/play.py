"""A play: producers, workers and sweepers at work, and disturbances that a seed has drawn.

Killed, some of them at once; stopped for longer than a lease; asked to end; cut off by the server;
or the server itself goes down and comes back. Whoever dies is replaced. When all disturbances are
done the rest of the work is done in peace, and then every invariant is checked, over everything
that was recorded.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from tenure.schedule import Timing
from tenure.store import NewSchedule
from tests.chaos.company import Company
from tests.chaos.pulse import Pulse
from tests.chaos.roles import ENOUGH
from tests.chaos.tasks import tick
from tests.crash import ledger
from tests.crash.cast import FAST, LEASE_SECONDS, Stage, until
from tests.support.books import Stall
from tests.support.plain import Plain
from tests.support.postgres import Server
from tests.support.recovery import Recovery, recoveries

PEACE_SECONDS = 120.0
BOUND_SECONDS = LEASE_SECONDS + FAST["idle_poll_seconds"] + 1.0
"""From a blow until its jobs run again: lease + poll + 1 s."""
AFTER_A_RESTART_SECONDS = 1.0
"""So long workers may take to find the server again."""
LONG_PAUSE_SECONDS = 1.0
"""How long a stopped process may be seen in a transaction before it is said to hold others up."""
GROUPS = (1, 1, 1, 2, 2, 3)
"""How many are killed at once."""
BEATS = (
    NewSchedule(
        name="beat", job=tick.call().job,
        timing=Timing(cron="* * * * * *", catch_up="all", catch_up_limit=1000),
    ),
    NewSchedule(
        name="poll", job=tick.call().job, timing=Timing(every_seconds=2.0, overlap="skip"),
    ),
)  # fmt: skip

NET = "put right what was wrong at gates"
"""What a worker logs when a safety net has caught something."""

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
    rest_seconds: float = 0.5
    """At most so long between two of them."""

    def drawn(self) -> list[tuple[str, int]]:
        """The disturbances, in order, and how many each is to hit."""
        chance, left = random.Random(self.seed), self.kills
        acts: list[tuple[str, int]] = []
        while left:
            size = min(left, chance.choice(GROUPS))
            acts.append(("kill", size))
            left -= size
        acts += [("pause", 1)] * self.pauses + [("end", 1)] * self.ends + [("cut", 1)] * self.cuts
        acts += [("restart", 1), ("crash", 1)] * (self.restarts // 2)
        chance.shuffle(acts)
        return acts


@dataclass
class Seen:
    """What came of it."""

    seconds: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    runs: int = 0
    workflows: int = 0
    ticks: int = 0
    lost_attempts: int = 0
    recoveries: list[Recovery] = field(default_factory=list)

    def __str__(self) -> str:
        acts = ", ".join(f"{count} x {act}" for act, count in sorted(self.done.items()))
        return (
            f"{acts}; {self.jobs:,} jobs, {self.workflows} workflows, {self.ticks} ticks,"
            f" {self.runs:,} runs, {self.lost_attempts:,} lost attempts, 0 violations,"
            f" {self.seconds:.0f} s"
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
        self._company = Company(stage, self._chance, books=books)
        self._stalls: list[Stall] = []
        self._seen = Seen()

    def run(self) -> Seen:
        """Do all of it. Fails with the story of what was violated."""
        began = time.monotonic()
        for schedule in BEATS:
            self._stage.store.add_schedule(schedule)
        with Pulse() as pulse, closing(self._company):
            self._stalls = pulse.stalls
            self._company.fill()
            acts = self._plan.drawn()
            for number, (act, size) in enumerate(acts, 1):
                self._disturb(act, size)
                if number % 25 == 0 or number == len(acts):
                    passed = time.monotonic() - began
                    self._tell(f"{number} of {len(acts)} disturbances, {passed:.0f} s")
            for act, wanted in (("kill", self._plan.kills), ("pause", self._plan.pauses)):
                while (missed := wanted - self._seen.done[act]) > 0:
                    self._disturb(act, missed)
            self._end()
        self._take_stock()
        self._seen.seconds = time.monotonic() - began
        return self._seen

    def _disturb(self, act: str, size: int) -> None:
        time.sleep(self._chance.random() * self._plan.rest_seconds)
        self._wake()
        self._seen.done[act] += self._act(act, size)
        self._company.fill()

    def _act(self, act: str, size: int) -> int:
        """Answers how many were hit."""
        match act:
            case "kill":
                return self._company.kill(size)
            case "pause":
                return self._company.pause(LEASE_SECONDS + self._chance.random())
            case "end":
                self._company.ask_to_end()
            case "cut":
                self._cut()
            case _:
                self._restart("fast" if act == "restart" else "immediate")
        return 1

    def _restart(self, mode: str) -> None:
        assert self._server is not None
        began = time.monotonic()
        self._server.restart("fast" if mode == "fast" else "immediate")
        ended = time.monotonic() + AFTER_A_RESTART_SECONDS
        self._stalls.append(Stall("the server was away", began, ended))

    def _cut(self) -> None:
        with Plain(self._stage.url) as plain:
            found = plain.rows(
                "select pid from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid() and client_port is not null"
            )
            for (pid,) in self._chance.sample(found, min(3, len(found))):
                plain.rows("select pg_terminate_backend(?)", pid)

    def _wake(self) -> None:
        """Those who have slept for long enough. One that sleeps in a transaction holds others up:
        nothing but its awakening, or its death, releases its locks."""
        sleepers = self._company.due_to_wake()
        if sleepers and self._server is not None and self._in_transaction():
            began = min(sleeper.since or 0.0 for sleeper in sleepers)
            self._stalls.append(Stall("a stopped one held locks", began, time.monotonic()))
        self._company.wake(sleepers)

    def _in_transaction(self) -> bool:
        with Plain(self._stage.url) as plain:
            return bool(
                plain.one(
                    "select count(*) from pg_stat_activity where datname = current_database() and"
                    " state like 'idle in transaction%' and"
                    f" state_change < clock_timestamp() - interval '{LONG_PAUSE_SECONDS} s'"
                )
            )

    def _end(self) -> None:
        """Nothing is disturbed any more: producers stop, everything is done, all go home."""
        store = self._stage.store
        self._company.wake()
        fired = len(store.schedule_runs("beat", limit=1000))
        until(lambda: len(store.schedule_runs("beat", limit=1000)) > fired, "one more tick")
        for schedule in BEATS:
            store.pause_schedule(schedule.name)
        self._stage.open(ENOUGH)
        self._company.producers_are_done()
        try:
            self._stage.drained(PEACE_SECONDS)
        except AssertionError:
            self._take_stock()  # tells of those that are left
            raise
        self._company.go_home(PEACE_SECONDS)

    def _take_stock(self) -> None:
        """What the safety net of gates exists for has not happened."""
        assert self._stage.store.heal_gates() == 0
        for log in self._stage.folder.glob("log-*"):
            assert NET not in log.read_text(), f"a safety net was needed: see {log}"
        blows = self._company.blows
        books = self._stage.check(
            effects=self._effects() if self._books else None,
            disturbed={blow.pid for blow in blows}, blows=blows, stalls=self._stalls,
            start_seconds=BOUND_SECONDS,
        )  # fmt: skip
        seen = self._seen
        seen.jobs = len(books.rows)
        seen.runs = len(books.records.runs)
        seen.workflows = len(books.final.workflows)
        seen.ticks = len(books.final.ticks)
        seen.lost_attempts = sum(event.kind == "crashed" for event in books.final.events)
        seen.recoveries = list(recoveries(books, blows, self._stalls))

    def _effects(self) -> dict[int, int]:
        """The ledger; of jobs that do not write there, what they would have to have written."""
        found = ledger.entries(self._stage.url)
        with Plain(self._stage.url) as plain:
            others = plain.rows(
                "select id from tenure.history where state = 'succeeded'"
                " and task <> 'tests.crash.handlers.book'"
            )
        return {**found, **{row[0]: 1 for row in others}}
