"""A play: producers, workers and sweepers at work, and disturbances that a seed has drawn.

Killed, some of them at once; stopped for longer than a lease; asked to end; cut off by the server;
or the server itself goes down and comes back. Whoever dies is replaced. A play goes on until all of
this has happened as often as planned, to every kind of victim; the rows are audited in between.
Then the rest of the work is done in peace, and every invariant is checked, over everything that was
recorded.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from tenure.rules.graph import NewNode, NewWorkflow
from tenure.rules.ticks import ScheduleTiming
from tenure.store import NewSchedule
from tests.chaos.company import KINDS, WORKERS, Company
from tests.chaos.pulse import Pulse
from tests.chaos.roles import ENOUGH
from tests.chaos.sessions import held_up, idle_sessions
from tests.chaos.tasks import by_threes, by_twos, grow, last, one_by_one, paced, tick
from tests.crash.cast import FAST, LEASE_SECONDS, Stage
from tests.crash.handlers import book, nap, nap_in_child
from tests.support.audit import check as check_rows
from tests.support.books import Books, Stall
from tests.support.invariants import check
from tests.support.known import SERVER_CRASHED, Known
from tests.support.patience import until
from tests.support.plain import Plain
from tests.support.postgres import Server
from tests.support.recount import recounted, told
from tests.support.recovery import Recovery, recoveries

PEACE_SECONDS = 120.0
BOUND_SECONDS = LEASE_SECONDS + FAST["idle_poll_seconds"] + 1.0
"""From a blow until its jobs run again: lease + poll + 1 s."""
AFTER_A_RESTART_SECONDS = 1.0
"""So long workers may take to find the server again."""
AUDIT_EVERY = 25
"""After so many disturbances the rows are audited."""
GROUPS = (1, 1, 1, 2, 2, 3)
"""How many are killed at once."""
BEATS = (
    NewSchedule(
        name="beat", job=tick.call().job,
        timing=ScheduleTiming(cron="* * * * * *", catch_up="all", catch_up_limit=1000),
    ),
    NewSchedule(
        name="poll", job=tick.call().job, timing=ScheduleTiming(every_seconds=2.0, overlap="skip"),
    ),
)  # fmt: skip

GATED = (one_by_one.call("a", 0.0), by_twos.call("a", 0.0), by_threes.call(0.0), paced.call())
FLOW = NewWorkflow(
    name="opening",
    nodes=(
        NewNode(name="first", job=nap.call(0.1).job),
        NewNode(name="grow", job=grow.call(1).job, after=(0,)),
        NewNode(name="join", job=nap.call(0.0).job, after=(0, 1)),
    ),
    finaliser=NewNode(name="last", job=last.call().job),
)
"""What producers may or may not draw is there once, from the beginning."""

NET = "inconsistent gate rows"
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
    """A pause counts when the process was still stopped at the end of a lease."""
    killed: Counter[str] = field(default_factory=Counter)
    """By kind of victim."""
    ended: Counter[str] = field(default_factory=Counter)
    """Asked to end, by kind."""
    audits: int = 0
    """How often the rows were audited while all were at work."""
    jobs: int = 0
    runs: int = 0
    workflows: int = 0
    ticks: int = 0
    in_child: int = 0
    """Runs in child processes."""
    gates: Counter[str] = field(default_factory=Counter)
    """Runs at each gate."""
    lost_attempts: int = 0
    recoveries: list[Recovery] = field(default_factory=list)

    def __str__(self) -> str:
        acts = ", ".join(f"{count} x {act}" for act, count in sorted(self.done.items()))
        return (
            f"{acts}; killed: {_counts(self.killed)}; asked to end: {_counts(self.ended)};"
            f" {self.audits} audits; {self.in_child} runs in child processes;"
            f" at gates: {_counts(self.gates)}; {self.jobs:,} jobs, {self.workflows} workflows,"
            f" {self.ticks} ticks, {self.runs:,} runs, {self.lost_attempts:,} lost attempts,"
            f" 0 violations, {self.seconds:.0f} s"
        )


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(found.items()))


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
        self._open()
        try:
            with Pulse() as pulse, closing(self._company):
                self._stalls = pulse.stalls
                self._company.fill()
                self._rage(began)
                self._end()
        finally:
            self._known.keep(self._stage.folder)
        self._take_stock()
        self._seen.seconds = time.monotonic() - began
        return self._seen

    def _open(self) -> None:
        """There is one of each kind of work, whatever the producers draw."""
        for schedule in BEATS:
            self._stage.store.add_schedule(schedule)
        self._stage.store.enqueue_workflow(FLOW)
        self._stage.add(*GATED, *[nap_in_child.call(0.3)] * WORKERS)
        if self._books:
            self._stage.add(book.call())

    def _rage(self, began: float) -> None:
        acts = self._plan.drawn()
        for number, (act, size) in enumerate(acts, 1):
            self._disturb(act, size)
            if number % AUDIT_EVERY == 0 or number == len(acts):
                self._audit()
                passed = time.monotonic() - began
                self._tell(f"{number} of {len(acts)} disturbances, {passed:.0f} s")
        self._go_on(acts)

    def _go_on(self, acts: list[tuple[str, int]]) -> None:
        """Until all has happened that was planned: blows that hit nobody do not count."""
        wanted: Counter[str] = Counter()
        for act, size in acts:
            wanted[act] += size
        for act in {*wanted} - {"pause"}:
            while (missed := wanted[act] - self._seen.done[act]) > 0:
                self._disturb(act, missed)
        for kind in KINDS:
            while not self._company.killed[kind]:
                self._provide(kind)
                self._disturb("kill", 1)
        while (missed := wanted["pause"] - self._company.slept) > 0:
            if missed > len(self._company.asleep):
                self._disturb("pause", 1)
            else:
                self._rest()

    def _provide(self, kind: str) -> None:
        """A victim of this kind; most are always there."""
        if kind == "asleep":
            self._disturb("pause", 1)
        elif kind == "child":
            self._stage.add(*[nap_in_child.call(1.0)] * WORKERS)
            until(lambda: self._company.pool("child"), "a job runs in a child process")

    def _rest(self) -> None:
        """Some time passes; who has slept for long enough wakes."""
        time.sleep(self._chance.random() * self._plan.rest_seconds)
        if self._server is not None:
            company, url = self._company, self._stage.url
            sessions = idle_sessions(url)
            now = time.monotonic()
            busy = list(self._stalls)
            self._stalls += held_up(sessions, company.asleep, company.woken, now, busy)
        self._company.wake(self._company.due_to_wake())

    def _disturb(self, act: str, size: int) -> None:
        self._rest()
        hit = self._act(act, size)
        if act != "pause":  # counted when it is over
            self._seen.done[act] += hit
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
                return self._cut()
            case _:
                self._restart("fast" if act == "restart" else "immediate")
        return 1

    def _audit(self) -> None:
        """The rows are in order at any time, in one snapshot of them."""
        with Plain(self._stage.url) as plain:
            plain.rows(
                "begin isolation level repeatable read read only" if plain.is_postgres else "begin"
            )
            check_rows(plain)
            plain.rows("rollback")
        self._seen.audits += 1

    def _restart(self, mode: str) -> None:
        assert self._server is not None
        began = time.monotonic()
        self._server.restart("fast" if mode == "fast" else "immediate")
        now = time.monotonic()
        why = "the server was away" if mode == "fast" else SERVER_CRASHED
        self._stalls.append(Stall(why, began, now))
        self._stalls.append(Stall("the server was away", now, now + AFTER_A_RESTART_SECONDS))

    def _cut(self) -> bool:
        """The server ends some connections. Answers whether there were any."""
        with Plain(self._stage.url) as plain:
            found = plain.rows(
                "select pid from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid() and client_port is not null"
            )
            drawn = self._chance.sample(found, min(3, len(found)))
            hit = [plain.one("select pg_terminate_backend(?)", pid) for (pid,) in drawn]
        return any(hit)

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
        folder, url = self._stage.folder, self._stage.url
        counted, happened = told(self._stage.store).total(), recounted(url).total()
        assert 0 < counted <= happened, f"the statistics count {counted} ends of {happened}"
        self._count(check(folder, url, self._known.expected(url)))

    @property
    def _known(self) -> Known:
        """What the checker cannot know from the records."""
        return Known(
            blows=self._company.blows, stalls=self._stalls, start_seconds=BOUND_SECONDS,
            ledger="ledger" if self._books else None, writers=[book.name],
        )  # fmt: skip

    def _count(self, books: Books) -> None:
        seen, company = self._seen, self._company
        seen.done["pause"] = company.slept
        seen.killed, seen.ended = company.killed, company.ended
        ran = [books.rows[run.id] for run in books.records.runs]
        seen.in_child = sum(row.task == nap_in_child.name for row in ran)
        seen.gates = Counter(row.gate for row in ran if row.gate is not None)
        seen.jobs = len(books.rows)
        seen.runs = len(books.records.runs)
        seen.workflows = len(books.final.workflows)
        seen.ticks = len(books.final.ticks)
        seen.lost_attempts = sum(event.kind == "crashed" for event in books.final.events)
        seen.recoveries = list(recoveries(books, company.blows, self._stalls))
