"""What happened: the records that processes wrote, and what the database holds in the end.

The records are those of `tenure.testing.recorder`. All processes of a test run on one host, so
their monotonic clocks are one clock: what was answered before something else was sent came first.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from tenure.rules.gates import Limits
from tenure.rules.ticks import ScheduleTiming, fired_by
from tenure.testing.recorder import Answered, Begun, Ended, Key, Line, Refused, Sent, Started
from tests.support.plain import Plain

NEVER = float("inf")
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


@dataclass(frozen=True)
class Call:
    """One operation of one process, with what came of it; None when no answer is on record."""

    pid: int
    sent: Sent
    answer: Answered | Refused | None = None

    @property
    def began(self) -> float:
        """When it was sent."""
        return self.sent.mono

    @property
    def ended(self) -> float:
        """When it was answered."""
        return NEVER if self.answer is None else self.answer.mono

    @property
    def is_known(self) -> bool:
        """Is it certain whether this was done? Not without an answer, nor for a caller's `on`."""
        if self.answer is None or self.sent.on:
            return False
        return isinstance(self.answer, Answered) or not self.answer.unknown

    @property
    def answers(self) -> list[str]:
        """For each job that was sent: landed, stale, busy, refused, or unknown."""
        if not isinstance(self.answer, Answered):
            refused = isinstance(self.answer, Refused) and not self.answer.unknown
            return ["refused" if refused else "unknown"] * len(self.sent.jobs)
        return ["unknown"] * len(self.sent.jobs) if self.sent.on else self.answer.answers


@dataclass(frozen=True)
class Run:
    """One handler from its start to its end; `ended` is never when its process did not see it."""

    pid: int
    id: int
    token: int
    worker: str
    began: float
    ended: float = NEVER
    error: str | None = None
    tenant: str = ""


@dataclass
class Records:
    """Everything that all processes wrote down, in the order in which it began."""

    calls: list[Call] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def of(self, op: str) -> Iterator[Call]:
        """The calls of one operation."""
        return (call for call in self.calls if call.sent.op == op)

    def pid_of(self, worker: str) -> int | None:
        """The process in which this worker lived."""
        return next((call.pid for call in self.calls if call.sent.worker == worker), None)

    def workers_of(self, pid: int) -> set[str]:
        """The workers that lived in this process."""
        return {c.sent.worker for c in self.calls if c.pid == pid and c.sent.worker is not None}


def read_records(folder: Path) -> Records:
    """Read what every process wrote. The last line of a killed one may be cut short."""
    records = Records()
    for path in sorted(folder.glob("*.jsonl")):
        add_process(records, [_decoder.decode(line) for line in _whole_lines(path)])
    records.calls.sort(key=lambda call: call.began)
    records.runs.sort(key=lambda run: run.began)
    return records


def _whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def add_process(records: Records, lines: list[Line]) -> None:
    """Add what one process wrote."""
    if not lines:
        return
    first = lines[0]
    assert isinstance(first, Begun), f"a record begins with {first}"
    sent: dict[int, Sent] = {}
    running: dict[tuple[int, int, str], Started] = {}
    pid = first.pid
    for line in lines[1:]:
        match line:
            case Sent():
                sent[line.n] = line
            case Answered() | Refused():
                assert line.n in sent, f"nothing was sent for {line}"
                records.calls.append(Call(pid, sent.pop(line.n), line))
            case Started():
                attempt = (line.id, line.token, line.worker)
                if attempt in running:  # a second time, before the first has ended
                    records.runs.append(_run(pid, running[attempt]))
                running[attempt] = line
            case Ended():
                attempt = (line.id, line.token, line.worker)
                assert attempt in running, f"nothing was started for {line}"
                records.runs.append(_run(pid, running.pop(attempt), line.mono, line.error))
            case Begun():
                raise AssertionError("two processes wrote one file")
    records.calls += [Call(pid, line) for line in sent.values()]
    records.runs += [_run(pid, begun) for begun in running.values()]


def _run(pid: int, begun: Started, ended: float = NEVER, error: str | None = None) -> Run:
    return Run(pid, begun.id, begun.token, begun.worker, begun.mono, ended, error, begun.tenant)


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job as its row shows it; `state` is `live` for every live one. Times are the database's."""

    id: int
    token: int
    state: str
    attempts: int
    max_attempts: int
    crashes: int
    created_at: float
    finished_at: float | None = None
    reason: str | None = None
    key: Key | None = None
    tenant: str = ""
    task: str = "app.work"
    priority: int = 0
    gate: str | None = None
    gate_key: str | None = None
    fired: tuple[str, float] | None = None
    """The schedule that has enqueued it, and the tick."""
    called_for: tuple[int, int] | None = None
    """The failed job for which a hook has enqueued it: id and token."""

    @property
    def is_live(self) -> bool:
        """Is it not in history?"""
        return self.state == "live"


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """One line of a job's story."""

    id: int
    token: int
    kind: str
    at: float
    worker: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GateRow:
    """What a gate allows."""

    name: str
    max_running: int | None = None
    rate: float | None = None
    per_seconds: float = 1.0
    burst: int | None = None
    keyed: bool = False
    by_hand: bool = False

    @property
    def limits(self) -> Limits:
        """The same for who counts with it."""
        return Limits(
            max_running=self.max_running, rate=self.rate, per_seconds=self.per_seconds,
            burst=self.burst, keyed=self.keyed,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class WorkflowRow:
    """A workflow, with the ids of its nodes, each with its rule, and the finaliser's."""

    id: int
    nodes: Mapping[int, str]
    ended_at: float | None = None
    outcome: str | None = None
    finaliser: int | None = None
    tenant: str = ""


@dataclass(frozen=True, kw_only=True)
class ScheduleRow:
    """A schedule: since when it ticks, and up to when its ticks were dealt with."""

    name: str
    timing: ScheduleTiming
    created_at: float
    done_until: float
    tenant: str = ""


@dataclass(frozen=True)
class TickRow:
    """A tick that was dealt with; without a job it was left out on purpose."""

    schedule: str
    at: float
    job: int | None
    triggered: bool = False
    tenant: str = ""


@dataclass
class Final:
    """What the database holds in the end."""

    jobs: list[JobRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    gates: list[GateRow] = field(default_factory=list)
    workflows: list[WorkflowRow] = field(default_factory=list)
    parents: list[tuple[int, int]] = field(default_factory=list)
    """Jobs and who they wait for."""
    schedules: list[ScheduleRow] = field(default_factory=list)
    ticks: list[TickRow] = field(default_factory=list)
    counted: Mapping[str, int] | None = None
    """How many jobs there are in each state, as everybody is told."""


_JOB = (
    "id", "token", "attempts", "max_attempts", "crashes", "created_at", "reason", "tenant",
    "unique_scope", "unique_key", "unique_until", "task", "priority", "gate", "gate_key",
    "cast(metadata as text)",
)  # fmt: skip


Seconds = Callable[[Any], float]


def read_final(url: str) -> Final:
    """Read the rows of all jobs, their stories, and what they belong to."""
    with Plain(url) as plain:
        return final_of(plain)


def final_of(plain: Plain, seconds: Seconds | None = None) -> Final:
    """The same on an open connection.

    `seconds` turns the times at which something happened into those of the records, where these are
    not the database's. Times of schedules and their ticks are meant for the wall clock, and stay.
    """
    seconds = seconds or _seconds
    live = plain.table("job", (*_JOB, "'live'", "null"))
    done = plain.table("history", (*_JOB, "cast(state as text)", "finished_at"))
    events = plain.rows(
        "select job_id, token, kind, at, worker, cast(detail as text) from tenure.event"
        " order by seq"
    )
    return Final(
        [_job_row(row, seconds) for row in (*live, *done)],
        [each for row in events for each in _event_rows(row, seconds)],
        _gates(plain),
        _workflows(plain, seconds),
        [(id, parent) for id, parent in plain.table("parent", ("job_id", "parent_id"))],
        _schedules(plain),
        _ticks(plain),
        dict(plain.rows("select cast(state as text), count(*) from tenure.jobs group by 1")),
    )


def _job_row(row: tuple[Any, ...], seconds: Seconds) -> JobRow:
    id, token, attempts, most, crashes, created, reason, tenant, scope, key, until, *rest = row
    task, priority, gate, gate_key, metadata, state, end = rest
    by = fired_by(metadata)
    return JobRow(
        id=id, token=token, state=state, attempts=attempts, max_attempts=most, crashes=crashes,
        created_at=seconds(created), finished_at=None if end is None else seconds(end),
        reason=reason, key=None if key is None else Key(tenant, scope, key, until),
        tenant=tenant, task=task, priority=priority, gate=gate, gate_key=gate_key,
        fired=None if by is None or by.triggered else (by.name, by.tick.timestamp()),
        called_for=_called_for(metadata),
    )  # fmt: skip


def _called_for(metadata: str | None) -> tuple[int, int] | None:
    if metadata is None or '"failed_job"' not in metadata:
        return None
    failed = json.loads(metadata)["failed_job"]
    return failed["id"], failed["token"]


def _event_rows(row: tuple[Any, ...], seconds: Seconds) -> list[EventRow]:
    """One event; tries of workers that do not have the task are one row, and told one by one."""
    id, token, kind, at, worker, detail = row
    told = json.loads(detail) if detail else {}
    return [
        EventRow(id=id, token=each, kind=kind, at=seconds(at), worker=worker, detail=told)
        for each in range(token + 1 - told.get("tries", 1), token + 1)
    ]


def _gates(plain: Plain) -> list[GateRow]:
    names = ("name", "max_running", "rate", "per_seconds", "burst")
    return [
        GateRow(**dict(zip(names, row, strict=True)), keyed=bool(keyed), by_hand=bool(by_hand))
        for *row, keyed, by_hand in plain.table("gate", (*names, "keyed", "by_hand"))
    ]


def _workflows(plain: Plain, seconds: Seconds) -> list[WorkflowRow]:
    nodes: dict[int, dict[int, str]] = defaultdict(dict)
    for id, workflow, rule in plain.table("node", ("job_id", "workflow_id", "cast(rule as text)")):
        nodes[workflow][id] = rule
    columns = ("id", "ended_at", "cast(outcome as text)", "finaliser_id", "tenant")
    return [
        WorkflowRow(
            id=id, nodes=nodes[id], ended_at=None if ended is None else seconds(ended),
            outcome=outcome, finaliser=finaliser, tenant=tenant,
        )
        for id, ended, outcome, finaliser, tenant in plain.table("workflow", columns)
    ]  # fmt: skip


def _schedules(plain: Plain) -> list[ScheduleRow]:
    columns = ("name", "cast(timing as text)", "created_at", "done_until", "tenant")
    return [
        ScheduleRow(
            name=name, timing=msgspec.json.decode(timing, type=ScheduleTiming),
            created_at=_seconds(created), done_until=_seconds(done), tenant=tenant,
        )
        for name, timing, created, done, tenant in plain.table("schedule", columns)
    ]  # fmt: skip


def _ticks(plain: Plain) -> list[TickRow]:
    rows = plain.table("tick", ("schedule", "tick_at", "job_id", "triggered", "tenant"))
    return [
        TickRow(name, _seconds(at), job, bool(triggered), tenant)
        for name, at, job, triggered, tenant in rows
    ]


def _seconds(value: datetime | int) -> float:
    """A time as PostgreSQL or SQLite gives it."""
    return value.timestamp() if isinstance(value, datetime) else value / 1e6
