"""How long it takes until a job whose worker was killed or stopped has started again.

It counts from the blow, not from the end of the lease, to the start of the handler in another
attempt; where that attempt was lost as well before it began, to its claim. Jobs at gates wait there
for their turn and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.support.books import Blow, Books, Stall, Violation, Violations


@dataclass(frozen=True)
class Recovery:
    """One lost attempt: whose, by what, and how long until the next one."""

    job: int
    token: int
    kind: str
    seconds: float
    stalled: float
    """So many of these seconds nobody could be expected to work."""


def recoveries(
    books: Books, blows: Sequence[Blow], stalls: Sequence[Stall] = ()
) -> Iterator[Recovery]:
    """All lost attempts of which the next one is on record."""
    stalls = merged(stalls)
    struck: dict[int, list[Blow]] = {}
    for each in sorted(blows, key=lambda blow: blow.at):
        struck.setdefault(each.pid, []).append(each)
    began = {(run.id, run.token): run.began for run in reversed(books.records.runs)}
    grants = {(g.id, g.token): g for grants in books.grants.values() for g in grants}
    for event in books.final.events:
        row, lost = books.rows.get(event.id), grants.get((event.id, event.token))
        if event.kind != "crashed" or lost is None or row is None or row.gate is not None:
            continue
        blow = _last_between(
            struck.get(books.pids.get(lost.worker, 0), ()), lost.began, books.mono(event.at)
        )
        following = grants.get((event.id, event.token + 1))
        if blow is None or following is None:
            continue
        start = began.get((event.id, event.token + 1), following.ended)
        stalled = sum(stall.within(blow.at, start) for stall in stalls)
        yield Recovery(event.id, event.token, blow.kind, start - blow.at, stalled)


def _last_between(blows: Sequence[Blow], began: float, ended: float) -> Blow | None:
    """The blow that has cost this attempt; none: it was lost for another reason."""
    found = [blow for blow in blows if began < blow.at < ended]
    return found[-1] if found else None


def merged(stalls: Sequence[Stall], since: float = -math.inf) -> list[Stall]:
    """The same times, none counted twice; only those that ended after `since`."""
    found: list[Stall] = []
    recent = [stall for stall in stalls if stall.ended > since]
    for stall in sorted(recent, key=lambda stall: stall.began):
        if found and stall.began <= found[-1].ended:
            last = found.pop()
            found.append(Stall(last.why, last.began, max(last.ended, stall.ended)))
        else:
            found.append(stall)
    return found


def starts_are_prompt(
    books: Books, blows: Sequence[Blow], most: float, stalls: Sequence[Stall] = ()
) -> Violations:
    """13: each job that a blow has hit runs again within lease + poll + 1 s."""
    for each in recoveries(books, blows, stalls):
        if each.seconds - each.stalled > most:
            text = f"{each.seconds:.3f} s after the {each.kind}, {each.stalled:.3f} s of it stalled"
            yield Violation(13, "late recovery", each.job, text, (each.token, each.token + 1))
