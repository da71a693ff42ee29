"""The shortest story that explains a violation: what happened to its jobs, in order of time.

+0.000  process 71    enqueue -> job 7
+0.012  w1 (72)       claim -> token 1 on lease 3
+0.013  w1 (72)       the handler begins, token 1
+0.500  process 72    SIGKILL
+2.012  database      crashed, token 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tenure.testing.recorder import Answered
from tests.support.books import Blow, Books, Violation
from tests.support.history import NEVER

MOST_LINES = 14
SIDE = 1
"""Of little weight: left out first."""


@dataclass(frozen=True, order=True)
class Line:
    """One thing that happened, by the clock of the processes."""

    at: float
    who: str
    what: str
    token: int | None = None
    weight: int = 2


def told(books: Books, violation: Violation, blows: Sequence[Blow] = ()) -> Iterator[str]:
    """The lines of a story, shortened to those that matter."""
    jobs = [id for id in (violation.job, *violation.others) if id is not None]
    lines = sorted({line for id in jobs for line in _lines(books, id, blows)})
    if violation.tokens and not violation.others:
        lines = [line for line in lines if line.token is None or line.token in violation.tokens]
    if len(lines) > MOST_LINES:
        lines = [line for line in lines if line.weight > SIDE]
    begin = lines[0].at if lines else 0.0
    half = MOST_LINES // 2
    for n, line in enumerate(lines):
        if n < half or n >= len(lines) - half:
            yield f"    {line.at - begin:+9.3f}  {line.who:<20} {line.what}"
        elif n == half:
            yield f"    ({len(lines) - 2 * half} lines left out)"


def _lines(books: Books, id: int, blows: Sequence[Blow]) -> Iterator[Line]:
    yield from _enqueued(books, id)
    yield from _held(books, id)
    yield from _ran(books, id)
    yield from _written(books, id)
    yield from _operated(books, id)
    for event in books.events[id]:
        what = f"{event.kind}, token {event.token}, of {event.worker}"
        yield Line(books.mono(event.at), "database", f"job {id}: {what}", event.token)
    row = books.rows.get(id)
    if row is None:
        yield Line(_last(books), "database", f"job {id}: there is no row")
    else:
        at = _last(books) if row.finished_at is None else books.mono(row.finished_at)
        what = f"{row.state}, token {row.token}, {row.attempts} attempts, {row.crashes} crashes"
        yield Line(at, "database", f"job {id}: its row is {what}")
    pids = {books.pids.get(grant.worker) for grant in books.grants.get(id, ())}
    for blow in blows:
        if blow.pid in pids:
            yield Line(blow.at, f"process {blow.pid}", blow.kind)


def _last(books: Books) -> float:
    """When the records end."""
    ends = [call.ended for call in books.records.calls if call.ended != NEVER]
    begins = [call.began for call in books.records.calls]
    return max([*ends, *begins], default=0.0) + 1e-6


def _who(books: Books, worker: str) -> str:
    return f"{worker} ({books.pids.get(worker, '?')})"


def _enqueued(books: Books, id: int) -> Iterator[Line]:
    for told_of in books.enqueues():
        if told_of.id == id:
            call = told_of.call
            what = f"job {id}" if told_of.created else f"job {id}, which was there"
            yield Line(call.ended, f"process {call.pid}", f"{call.sent.op} -> {what}")


def _held(books: Books, id: int) -> Iterator[Line]:
    leases = {}
    for grant in books.grants.get(id, ()):
        leases[grant.lease] = grant
        what = f"claim -> job {id}, token {grant.token} on lease {grant.lease}"
        yield Line(grant.ended, _who(books, grant.worker), what, grant.token)
    for call in books.records.of("extend"):
        for lease in leases.keys() & set(call.sent.leases):
            lost = isinstance(call.answer, Answered) and lease in call.answer.lost
            word = "lost" if lost else "no answer" if call.answer is None else "extended"
            who, token = _who(books, call.sent.worker or ""), leases[lease].token
            weight = SIDE + lost
            yield Line(call.began, who, f"extend lease {lease} -> {word}", token, weight)


def _ran(books: Books, id: int) -> Iterator[Line]:
    for run in books.records.runs:
        if run.id == id:
            who = _who(books, run.worker)
            yield Line(
                run.began, who, f"job {id}: the handler begins, token {run.token}", run.token
            )
            if run.ended != NEVER:
                how = f" with {run.error}" if run.error else ""
                what = f"job {id}: the handler ends{how}, token {run.token}"
                yield Line(run.ended, who, what, run.token, SIDE + bool(run.error))


def _written(books: Books, id: int) -> Iterator[Line]:
    for write in books.writes:
        if write.id == id:
            word = f"{write.op} {write.outcome}".strip()
            what = f"job {id}: {word}, token {write.token} -> {write.answer}"
            weight = SIDE + (write.op == "settle" or write.answer == "landed")
            yield Line(write.began, _who(books, write.worker), what, write.token, weight)


def _operated(books: Books, id: int) -> Iterator[Line]:
    for call in books.records.calls:
        if call.sent.worker is None and (id, 0) in call.sent.jobs:
            said = call.answer.said if isinstance(call.answer, Answered) else "no answer"
            yield Line(call.began, f"process {call.pid}", f"{call.sent.op} job {id} -> {said}")
