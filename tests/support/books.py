"""What the checker works with: the records and the rows, sorted by what the checks ask for.

Times of processes are those of the monotonic clock; times of the database are wall-clock times, and
`Books.mono` turns one into the other: all of it happened on one host.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tenure.testing.recorder import Answered, Key
from tests.support.history import Call, EventRow, Final, Records, Run

SLACK_SECONDS = 0.02
"""How far the clocks of a process and of the database may be apart: one host, one clock."""
IN_FLIGHT_SECONDS = 1.0
"""How long after its sender's death the database may still have worked on a heartbeat."""

Pair = tuple[int, int]
ENQUEUES = ("enqueue", "enqueue_workflow", "grow_workflow", "trigger_schedule", "fire")
FENCED = ("settle", "report_progress", "save_checkpoint", "record_step", "annotate", "start_once",
          "grow_workflow")  # fmt: skip
ENDS = {"succeed": "succeeded", "fail": "failed", "skip": "skipped", "abort": "cancelled"}
PUT_BACK = {"retried", "snoozed", "released", "unknown_task", "crashed"}
OPERATED = {"freed", "unheld", "moved", "replaced", *ENDS.values()}


@dataclass(frozen=True)
class Violation:
    """A broken invariant: its number in the design, what happened, to which job."""

    invariant: int
    name: str
    job: int | None
    text: str = ""
    tokens: tuple[int, ...] = ()
    """The attempts that it is about; none: all of them."""
    others: tuple[int, ...] = ()
    """Other jobs without which it cannot be understood."""

    def __str__(self) -> str:
        return f"{self.name} (invariant {self.invariant}): job {self.job}: {self.text}"


Violations = Iterator[Violation]


@dataclass(frozen=True)
class Blow:
    """What was done to a process, and when it could not go on any more."""

    pid: int
    at: float
    kind: str


@dataclass(frozen=True)
class Stall:
    """A time in which nobody could be expected to work: why, from when, until when."""

    why: str
    began: float
    ended: float

    def within(self, began: float, ended: float) -> float:
        """How many seconds of it fall into another time."""
        return max(0.0, min(ended, self.ended) - max(began, self.began))


@dataclass(frozen=True)
class Grant:
    """One job of a claim that was answered."""

    id: int
    token: int
    worker: str
    lease: int
    claimed_at: float
    began: float
    ended: float


@dataclass(frozen=True)
class Write:
    """One job of a settlement, a progress report, a checkpoint, a step, or what a job adds."""

    id: int
    token: int
    worker: str
    op: str
    outcome: str
    answer: str
    began: float


@dataclass(frozen=True)
class Told:
    """One job of an enqueue: its number in it, its id, and what was asked for."""

    call: Call
    n: int
    id: int
    created: bool
    key: Key | None
    tenant: str | None
    """None: the call does not say it."""


@dataclass(frozen=True)
class Expected:
    """What the test itself knows.

    `effects`: how often each job's transactional effect is there. `disturbed`: the processes that
    were killed or stopped; no other may lose a lease. `recovery_seconds`: how long after the end of
    its lease a job may wait for its next claim. `swept_seconds`: how long after the end of a lease
    its jobs may wait for a sweep, from `quiet_at` on. `drained`: nothing may be left. `every_tick`:
    a tick that is missing counts; not where somebody has set the clock back and forth.

    `alone`: the attempts that the store put on a lease of their own, whoever was told. Such a job
    is charged when its worker dies, or never learns of its claim, before the handler starts,
    because nobody can tell. So it may fail without a run. No other may.

    `blows`: all that was done to processes; then every lost attempt is counted, and with
    `start_seconds` each must have started again so long after the blow, stalls not counted.

    `atomic`: a transaction takes no time, so that the times in rows are those of its commit.
    """

    effects: Mapping[int, int] | None = None
    disturbed: Collection[int] | None = None
    recovery_seconds: float | None = None
    swept_seconds: float | None = None
    quiet_at: float = 0.0
    alone: Collection[Pair] = ()
    drained: bool = True
    every_tick: bool = True
    blows: Sequence[Blow] = ()
    stalls: Sequence[Stall] = ()
    start_seconds: float | None = None
    atomic: bool = False


class Books:
    """The records and the rows, sorted by what the checks ask for."""

    def __init__(self, records: Records, final: Final) -> None:
        self.records = records
        self.final = final
        self.rows = {row.id: row for row in final.jobs}
        self.events: dict[int, list[EventRow]] = defaultdict(list)
        for event in final.events:
            self.events[event.id].append(event)

    @cached_property
    def grants(self) -> dict[int, list[Grant]]:
        """What each job was handed out as, in the order of the database's time."""
        found: dict[int, list[Grant]] = defaultdict(list)
        for call in self.records.of("claim"):
            for lease in call.answer.granted if isinstance(call.answer, Answered) else ():
                for id, token in lease.jobs:
                    worker = call.sent.worker or ""
                    found[id].append(
                        Grant(id, token, worker, lease.id, lease.claimed_at, call.began, call.ended)
                    )
        for grants in found.values():
            grants.sort(key=lambda grant: (grant.claimed_at, grant.token))
        return found

    @cached_property
    def writes(self) -> list[Write]:
        """Every fenced write that was sent."""
        found = []
        for call in self.records.calls:
            if call.sent.op in FENCED:
                sent = call.sent
                outcomes = sent.outcomes or [""] * len(sent.jobs)
                for (id, token), word, answer in zip(
                    sent.jobs, outcomes, call.answers, strict=True
                ):
                    found.append(
                        Write(id, token, sent.worker or "", sent.op, word, answer, call.began)
                    )
        return found

    @cached_property
    def settlements(self) -> dict[Pair, list[Write]]:
        """The settlements of each attempt, whatever was answered."""
        found: dict[Pair, list[Write]] = defaultdict(list)
        for write in self.writes:
            if write.op == "settle":
                found[write.id, write.token].append(write)
        return found

    @cached_property
    def deadlines(self) -> dict[int, tuple[float, float]]:
        """Of each lease: until when it was valid at least, and at most."""
        found: dict[int, tuple[float, float]] = {}
        for call in self.records.of("claim"):
            for lease in call.answer.granted if isinstance(call.answer, Answered) else ():
                found[lease.id] = (lease.expires_at, lease.expires_at)
        for call in self.records.of("extend"):
            seconds = call.sent.lease_seconds or 0.0
            for lease_id in set(call.sent.leases) & set(found):
                least, most = found[lease_id]
                if not isinstance(call.answer, Answered):
                    most = max(most, call.sent.wall + IN_FLIGHT_SECONDS + seconds)
                elif lease_id not in (*call.answer.lost, *call.answer.busy):
                    least = max(least, call.sent.wall + seconds)
                    most = max(most, call.answer.wall + seconds)
                found[lease_id] = (least, most)
        return found

    @cached_property
    def offset(self) -> float:
        """What the wall clock shows more than the monotonic one."""
        calls = self.records.calls
        return statistics.median(call.sent.wall - call.sent.mono for call in calls) if calls else 0

    def mono(self, wall: float) -> float:
        """A time of the database by the clock of the processes."""
        return wall - self.offset

    @cached_property
    def pids(self) -> dict[str, int]:
        """In which process each worker lived."""
        found: dict[str, int] = {}
        for call in self.records.calls:
            if call.sent.worker is not None:
                found.setdefault(call.sent.worker, call.pid)
        return found

    def ends_of(self, run: Run) -> float:
        """Until when a handler ran on a lease that was certainly valid."""
        ends = [run.ended]
        ends += [
            self.mono(self.deadlines[grant.lease][0])
            for grant in self.grants.get(run.id, ())
            if grant.token == run.token
        ]
        ends += [
            self.mono(event.at)
            for event in self.events[run.id]
            if event.token == run.token and event.kind == "crashed"
        ]
        ends += [write.began for write in self.settlements.get((run.id, run.token), ())]
        return min(ends)

    def enqueues(self) -> Iterator[Told]:
        """Every answer that a job was enqueued, or was there already."""
        for op in ENQUEUES:
            for call in self.records.of(op):
                if isinstance(call.answer, Answered):
                    told = call.answer.enqueued
                    keys = call.sent.keys or [None] * len(told)
                    unsaid: str | None = "" if op in ("enqueue", "enqueue_workflow") else None
                    tenants: Sequence[str | None] = call.sent.tenants or [unsaid] * len(told)
                    for n, (id, created) in enumerate(told):
                        yield Told(call, n, id, created, keys[n], tenants[n])

    def since_replay(self, id: int) -> list[EventRow]:
        """The story of a job since an operator last began it anew."""
        events = self.events[id]
        begun = max((e.token for e in events if e.kind == "replayed"), default=0)
        return [event for event in events if event.token >= begun]
