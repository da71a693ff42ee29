"""The attempts of a job: each claim of it, and how that ended. Pure.

Nothing is written for this alone. A claim that did not finish the job has an entry in the timeline,
which tells all about it; the last attempt is told by the row of the job. A claim of a worker that
does not have the task is no attempt, unless it ends the job.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec

from tenure.rules.job import ErrorInfo, Event, Job, State
from tenure.rules.record import Record, value_of

LEASE_LOST = ErrorInfo("LeaseLost", "the worker died or stopped renewing its lease")


class AttemptOutcome(StrEnum):
    """How an attempt ended."""

    RUNNING = "running"
    """It has not ended."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The job has failed with this attempt."""
    RETRIED = "retried"
    """It failed, and the job runs again."""
    TIMED_OUT = "timed out"
    """It was stopped after `timeout_seconds`. The job runs again or has failed."""
    SNOOZED = "snoozed"
    RELEASED = "released"
    """Its worker returned the job, mostly because of a shutdown."""
    CRASHED = "crashed"
    """Its worker died, or lost its lease."""
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Attempt(Record, msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One attempt of a job."""

    number: int
    """1 for the first one, counted over the whole life of the job."""
    token: int
    worker: str | None
    started_at: datetime
    """When a worker claimed the job."""
    ended_at: datetime | None
    """None while it runs. A crashed attempt ends when its job is taken back."""
    duration_seconds: float | None
    """How long the handler ran; None if its worker did not report it."""
    outcome: AttemptOutcome
    charged: bool | None
    """Did it use up one of `max_attempts`? None while it runs."""
    reason: str | None
    error: ErrorInfo | None
    notes_json: str | None
    """The notes of the job when the attempt ended."""

    @cached_property
    def notes(self) -> dict[str, Any]:
        """The notes of the job when the attempt ended; empty if there was none."""
        return value_of(self, "notes_json") or {}


_NOTHING = msgspec.Raw(b"null")


class _Detail(msgspec.Struct):
    """What the timeline keeps of an attempt that has ended."""

    claimed_at: datetime | None = None
    charged: bool | None = None
    attempts: int | None = None
    reason: str | None = None
    error: msgspec.Raw = _NOTHING
    duration_seconds: float | None = None
    notes: msgspec.Raw = _NOTHING


_ENTRIES = frozenset(AttemptOutcome) - {AttemptOutcome.RUNNING, AttemptOutcome.TIMED_OUT}
_read_detail = msgspec.json.Decoder(_Detail).decode
_read_error = msgspec.json.Decoder(ErrorInfo).decode


def attempts_of(job: Job, story: Iterable[Event]) -> list[Attempt]:
    """The attempts of a job, in order. `story` are the stored entries of its timeline."""
    attempts: list[Attempt] = []
    charged = 0
    for event in story:
        if event.kind == "replayed":
            charged = 0
        if event.kind not in _ENTRIES:
            continue
        detail = _read_detail(event.detail or "{}")
        if detail.claimed_at is None:  # cancelled before a worker had it
            continue
        attempt = _ended(len(attempts) + 1, event, detail, charged)
        charged += bool(attempt.charged)
        attempts.append(attempt)
    if job.claimed_at is not None:  # a crash that ended the job is told by the timeline
        attempts.append(_last(len(attempts) + 1, job, charged))
    return attempts


def _ended(number: int, event: Event, detail: _Detail, charged_before: int) -> Attempt:
    assert detail.claimed_at is not None
    outcome, error = AttemptOutcome(event.kind), _error(detail.error)
    charged = outcome is AttemptOutcome.RETRIED
    if detail.charged is not None:
        charged = detail.charged
    elif detail.attempts is not None:  # it finished the job, which was replayed later
        charged = detail.attempts > charged_before
    if outcome is AttemptOutcome.CRASHED:
        error = LEASE_LOST
    elif outcome not in (AttemptOutcome.RETRIED, AttemptOutcome.FAILED):
        error = None
    return Attempt(
        number=number, token=event.token, worker=event.worker, started_at=detail.claimed_at,
        ended_at=event.at, duration_seconds=detail.duration_seconds,
        outcome=_timed_out(outcome, error), charged=charged, reason=detail.reason, error=error,
        notes_json=_text(detail.notes),
    )  # fmt: skip


def _last(number: int, job: Job, charged_before: int) -> Attempt:
    """The attempt that runs now, or that finished the job."""
    assert job.claimed_at is not None
    is_running = job.state is State.RUNNING
    outcome = AttemptOutcome(job.state)
    error = job.error if outcome is AttemptOutcome.FAILED else None
    return Attempt(
        number=number, token=job.token, worker=job.worker, started_at=job.claimed_at,
        ended_at=job.finished_at, duration_seconds=job.duration_seconds,
        outcome=_timed_out(outcome, error),
        charged=None if is_running else job.attempts > charged_before,
        reason=None if is_running else job.reason, error=error, notes_json=job.notes_json,
    )  # fmt: skip


def _timed_out(outcome: AttemptOutcome, error: ErrorInfo | None) -> AttemptOutcome:
    stopped = error is not None and error.type == "tenure.errors.AttemptTimedOut"
    return AttemptOutcome.TIMED_OUT if stopped else outcome


def _error(stored: msgspec.Raw) -> ErrorInfo | None:
    text = _text(stored)
    if text is None:
        return None
    try:
        return _read_error(text)
    except ValueError:  # written by other code
        return ErrorInfo(message=text)


def _text(stored: msgspec.Raw) -> str | None:
    return None if stored == _NOTHING else bytes(stored).decode()
