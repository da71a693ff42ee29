"""The checker, continued: what jobs have to do with schedules, with each other, and with tenants.

11  one job per schedule and tick, none missing where none may be
12  a child starts after its parents have ended, and only when all of them have succeeded
14  a job that was enqueued for a tenant stays with it; a test marks its jobs with the metadata
    `tenant` for this
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

from tests.support.history import JobRow
from tests.support.invariants import ENDS, Books, Expected, Violation, Violations

FINAL = set(ENDS.values())


def violations(books: Books, expected: Expected) -> Violations:
    """Everything that is wrong between jobs."""
    yield from one_job_per_tick(books)
    yield from no_tick_is_missing(books, expected.complete)
    yield from children_wait(books)
    yield from tenants_stay_apart(books)


def one_job_per_tick(books: Books) -> Violations:
    """11: whoever fires it, and however often."""
    made: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for row in books.final.jobs:
        fired = row.metadata.get("schedule")
        if fired and not fired.get("triggered"):
            made[row.tenant, fired["name"], fired["tick"]].append(row.id)
    for (_, name, tick), ids in made.items():
        if len(ids) > 1:
            yield Violation(11, "tick with two jobs", ids[1], f"{name} at {tick}, also {ids[0]}")


def no_tick_is_missing(books: Books, complete: Mapping[str, float]) -> Violations:
    """11: where the policy is to catch up with all, between the first tick and the last."""
    for name, seconds in complete.items():
        ticks = sorted(
            (tick for tick in books.final.ticks if tick.schedule == name and not tick.triggered),
            key=lambda tick: tick.at,
        )
        for first, second in pairwise(ticks):
            if second.at - first.at > 1.5 * seconds:
                text = f"{name}: none in the {second.at - first.at:g} s before this one"
                yield Violation(11, "tick missing", second.job, text)


def children_wait(books: Books) -> Violations:
    """12: no child is handed out before its parents have ended, nor when one did not succeed.

    An operator who begins a child anew does not wait for its parents: what was handed out since
    then is not looked at, all before it is.
    """
    for child, parent in books.final.edges:
        row = books.rows.get(parent)
        anew = min((e.token for e in books.events[child] if e.kind == "replayed"), default=None)
        grants = [
            grant for grant in books.grants.get(child, ()) if anew is None or grant.token < anew
        ]
        if row is None or not grants:
            continue
        ends = _ends(books, row)
        first = grants[0].claimed_at
        if not any(at <= first for _, at in ends):
            yield Violation(12, "child before its parents", child, f"parent {parent}: {row.state}")
        elif not any(state == "succeeded" and at <= first for state, at in ends):
            text = f"parent {parent}: {row.state}"
            yield Violation(12, "child without its parents", child, text)


def _ends(books: Books, row: JobRow) -> list[tuple[str, float]]:
    """How and when a job has ended: now, and each time before an operator began it anew."""
    ends = [(event.kind, event.at) for event in books.events[row.id] if event.kind in FINAL]
    if row.finished_at is not None:
        ends.append((row.state, row.finished_at))
    return ends


def tenants_stay_apart(books: Books) -> Violations:
    """14: its tenant is the one that it was enqueued for."""
    for row in books.final.jobs:
        meant = row.metadata.get("tenant", row.tenant)
        if meant != row.tenant:
            text = f"meant for {meant!r}, has {row.tenant!r}"
            yield Violation(14, "tenant crossed", row.id, text)
