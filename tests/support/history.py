"""What happened: the records that processes wrote, and what the database holds in the end.

The records are those of `tenure.worker.recorder`. All processes of a test run on one host, so their
monotonic clocks are one clock: what was answered before something else was sent came before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from tenure.worker.recorder import Answered, Begun, Ended, Key, Line, Refused, Sent, Started
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
                running[line.id, line.token, line.worker] = line
            case Ended():
                begun = running.pop((line.id, line.token, line.worker))
                records.runs.append(_run(pid, begun, line.mono, line.error))
            case Begun():
                raise AssertionError("two processes wrote one file")
    records.calls += [Call(pid, line) for line in sent.values()]
    records.runs += [_run(pid, begun) for begun in running.values()]


def _run(pid: int, begun: Started, ended: float = NEVER, error: str | None = None) -> Run:
    return Run(pid, begun.id, begun.token, begun.worker, begun.mono, ended, error)


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
    metadata: Mapping[str, Any] = field(default_factory=dict)

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
class TickRow:
    """A tick of a schedule, and the job that was made of it; None: it was skipped."""

    tenant: str
    schedule: str
    at: float
    """By the wall clock."""
    job: int | None = None
    triggered: bool = False


@dataclass
class Final:
    """What the database holds in the end. `edges` are pairs of a child and one of its parents."""

    jobs: list[JobRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    ticks: list[TickRow] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)


_JOB = (
    "id", "token", "attempts", "max_attempts", "crashes", "created_at", "reason", "tenant",
    "unique_scope", "unique_key", "unique_until", "cast(metadata as text)",
)  # fmt: skip


def read_final(url: str) -> Final:
    """Read the rows of all jobs, and their stories."""
    with Plain(url) as plain:
        return final_of(plain)


def final_of(plain: Plain, seconds: Callable[[Any], float] | None = None) -> Final:
    """The same on an open connection. `seconds` turns the database's times into those of records,

    if they are not the same.
    """
    seconds = seconds or _seconds
    live = plain.table("job", (*_JOB, "'live'", "null"))
    done = plain.table("history", (*_JOB, "cast(state as text)", "finished_at"))
    events = plain.rows(
        "select job_id, token, kind, at, worker, cast(detail as text) from tenure.event"
        " order by seq"
    )
    ticks = plain.table("tick", ("tenant", "schedule", "tick_at", "job_id", "triggered"))
    return Final(
        [_job_row(row, seconds) for row in (*live, *done)],
        [_event_row(row, seconds) for row in events],
        [_tick_row(row) for row in ticks],
        [(child, parent) for child, parent in plain.table("parent", ("job_id", "parent_id"))],
    )


def _job_row(row: tuple[Any, ...], seconds: Callable[[Any], float]) -> JobRow:
    id, token, attempts, most, crashes, created, reason, tenant, scope, key, until = row[:11]
    metadata, state, end = row[11:]
    return JobRow(
        id=id, token=token, state=state, attempts=attempts, max_attempts=most, crashes=crashes,
        created_at=seconds(created), finished_at=None if end is None else seconds(end),
        reason=reason, key=None if key is None else Key(tenant, scope, key, until), tenant=tenant,
        metadata=json.loads(metadata) if metadata else {},
    )  # fmt: skip


def _event_row(row: tuple[Any, ...], seconds: Callable[[Any], float]) -> EventRow:
    id, token, kind, at, worker, detail = row
    return EventRow(
        id=id, token=token, kind=kind, at=seconds(at), worker=worker,
        detail=json.loads(detail) if detail else {},
    )  # fmt: skip


def _tick_row(row: tuple[Any, ...]) -> TickRow:
    tenant, schedule, at, job, triggered = row
    return TickRow(
        tenant=tenant, schedule=schedule, at=_seconds(at), job=job, triggered=bool(triggered)
    )


def _seconds(value: datetime | int) -> float:
    """A time as PostgreSQL or SQLite gives it."""
    return value.timestamp() if isinstance(value, datetime) else value / 1e6
