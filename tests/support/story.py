"""The story of one job: what was sent, answered, run and written about it, in the order of time."""

from __future__ import annotations

from collections.abc import Iterator

from tenure.worker.recorder import Answered
from tests.support.history import NEVER, Call
from tests.support.invariants import Books

Moment = tuple[float, str]


def story_of(books: Books, job: int | None) -> list[str]:
    """One line per moment."""
    if job is None:
        return []
    moments = sorted([*_calls(books, job), *_runs(books, job), *_rows(books, job)])
    return [f"{at:12.6f}  {what}" for at, what in moments]


def _calls(books: Books, job: int) -> Iterator[Moment]:
    leases: set[int] = set()
    for call in books.records.calls:
        answer = call.answer
        who = f"{call.sent.worker or 'client'} (process {call.pid})"
        if isinstance(answer, Answered):
            for id, created in answer.enqueued:
                if id == job:
                    how = "enqueued" if created else "its key is held"
                    yield call.ended, f"{call.sent.op} by {who}: {how}"
            for granted in answer.granted:
                for id, token in granted.jobs:
                    if id == job:
                        leases.add(granted.id)
                        alone = "alone" if len(granted.jobs) == 1 else f"with {len(granted.jobs)}"
                        lease = f"{alone} on lease {granted.id} until {granted.expires_at:.6f}"
                        text = f"claim by {who}: token {token}, {lease}, answered {call.ended:.6f}"
                        yield granted.claimed_at, text
        for id in leases & set(call.sent.leases):
            if call.sent.op == "extend":
                yield call.began, f"extend by {who}: lease {id}: {_beat(call, id)}"
        outcomes = call.sent.outcomes or [""] * len(call.sent.jobs)
        said = call.answers if len(call.answers) == len(outcomes) else [_said(call)] * len(outcomes)
        for (id, token), outcome, word in zip(call.sent.jobs, outcomes, said, strict=True):
            if id == job:
                with_token = f" token {token}" if token else ""
                what = f"{call.sent.op} by {who}:{with_token} {outcome}"
                yield call.began, f"{what}: {word} at {call.ended:.6f}"


def _beat(call: Call, lease: int) -> str:
    if not isinstance(call.answer, Answered):
        return _said(call)
    if lease in call.answer.lost:
        return "lost"
    return "busy" if lease in call.answer.busy else "extended"


def _said(call: Call) -> str:
    if call.answer is None:
        return "no answer"
    return str(getattr(call.answer, "error", None) or getattr(call.answer, "said", None) or "done")


def _runs(books: Books, job: int) -> Iterator[Moment]:
    for run in books.records.runs:
        if run.id == job:
            where = f"token {run.token}, {run.worker} (process {run.pid})"
            yield run.began, f"handler starts: {where}"
            if run.ended != NEVER:
                yield run.ended, f"handler ends: {where}: {run.error or 'returned'}"


def _rows(books: Books, job: int) -> Iterator[Moment]:
    for event in books.events[job]:
        yield event.at, f"event {event.kind}: token {event.token}, {event.worker or 'nobody'}"
    for row in books.final.jobs:
        if row.id == job:
            at = row.created_at if row.finished_at is None else row.finished_at
            facts = f"attempts {row.attempts} of {row.max_attempts}, crashes {row.crashes}"
            yield at, f"row: {row.state}, token {row.token}, {facts}, {row.reason or 'no reason'}"
